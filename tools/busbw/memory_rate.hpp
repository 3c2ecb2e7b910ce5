// What the memory of the hosts gives for the traffic of a collective, by all ranks at the same
// time.
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

// Measures on first use and remembers. Every function is collective over the World.
class MemoryRate {
 public:
  explicit MemoryRate(Job& job) : job_(job) {}
  // GB/s that one rank reads and writes together. All ranks go over `places` in turn, which are the
  // buffers of the collective itself (and are overwritten), so that the footprint and the pages are
  // those that it has. The best of cached and streaming stores and memcpy, the best of a few
  // batches of 20 ms, from the first rank's start to the last rank's end on each host; the slowest
  // host. 0 for traffic without bytes.
  double gbyte_s(const Traffic& traffic, traffic::Element element, std::span<const Memory> slots);
  // Measures again and remembers the better: for a rate that a collective has surpassed, because
  // something else used the memory when it was measured.
  void improve(const Traffic& traffic, traffic::Element element, std::span<const Memory> slots);

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
  // Of the best batch; `begins_and_ends` by rank, a pair for each batch.
  double best_span(const std::vector<std::vector<double>>& begins_and_ends) const;

  Job& job_;
  std::vector<std::pair<Question, double>> known_;
};

}  // namespace busbw
