// Measures the memory bandwidth that all ranks together reach for the traffic of a collective.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "job.hpp"
#include "limit.hpp"
#include "operation.hpp"
#include "traffic/kernels.hpp"

namespace busbw {

// Measures a rate on first use and caches it. Collective over the World.
class MemoryRate {
 public:
  // Selects the treatment of a rate that has been measured before. `improve` measures again and
  // keeps the better rate. It is for a collective that was faster than the limit, which means that
  // other work disturbed the first measurement.
  enum class Known {
    keep,
    improve
  };

  explicit MemoryRate(Job& job) : job_(job) {}
  // Returns the GB/s that one rank reads and writes together. All ranks use `slots` one after
  // another. The slots are the buffers of the collective itself, so that the measurement touches as
  // much memory, in the same pages; it overwrites them. The rate is the best of cached stores,
  // streaming stores and memcpy, and of a few batches of 20 ms. A batch lasts from the start of a
  // host's first rank to the end of its last; the slowest host counts. Returns 0 for traffic
  // without bytes.
  double gbyte_s(const Traffic& traffic, traffic::Element element, std::span<const Memory> slots,
                 Known known);

 private:
  struct Pass {
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
  };
  struct Question {
    Traffic traffic;
    traffic::Element element = traffic::Element::f32;
    std::size_t slots = 0;
    friend bool operator==(const Question&, const Question&) = default;
  };

  double measure(const Question& question, std::span<const Memory> slots);
  Pass pass_at(const Traffic& traffic, std::uint64_t bytes, Memory memory) const;
  using Go = std::function<void(std::size_t pass, traffic::Stores)>;
  double seconds_of(const Question& question, std::uint64_t bytes, const std::vector<Pass>& passes);
  double best_batch(const Go& go, traffic::Stores stores, double once);
  // Returns the time of the best batch. `begins_and_ends[rank]` lists the begin and the end of each
  // batch in turn.
  double best_span(const std::vector<std::vector<double>>& begins_and_ends) const;

  Job& job_;
  std::vector<std::pair<Question, double>> known_;
};

}  // namespace busbw
