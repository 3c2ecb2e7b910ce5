// The part of a rank that all implementations share: wait for a request, make buffers, check one
// operation against its closed form, and time batches. Each implementation supplies a Peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "control.hpp"

namespace atoll_bench {

// The buffers of one row on one rank. In place they overlap in the way that the implementation
// requires.
struct Buffers {
  std::byte* input = nullptr;   // input_elements() elements, filled before the first operation
  std::byte* output = nullptr;  // output_elements() elements, the result of the first operation
};

class Peer {
 public:
  virtual ~Peer() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  // Collective. Anything that an implementation prepares once for many operations belongs here.
  virtual Buffers prepare(const Row& row, Variant variant) = 0;
  // Runs the collective of the row `operations` times. All of them are complete on this rank when
  // it returns.
  virtual void run(std::int64_t operations) = 0;
  // Collective. Frees everything that prepare() made.
  virtual void release() = 0;
};

// If there are as many cores as ranks, binds this process and its later threads to the core of its
// rank; otherwise the system decides. Two ranks that share a core for a while would make a row
// meaningless. Must be called first. `rank` and `ranks` are numbers, or names of environment
// variables.
void take_core(int rank, int ranks);
void take_core(const char* rank, const char* ranks);

// Serves requests until the driver ends the job, and returns the exit status of the program. The
// process is killed when its parent dies.
int serve(Peer& peer);

// Memory of the largest pages that the system grants, so that no implementation is at a
// disadvantage.
class PlainMemory {
 public:
  PlainMemory() = default;
  explicit PlainMemory(std::size_t bytes);
  PlainMemory(PlainMemory&& other) noexcept;
  PlainMemory& operator=(PlainMemory&& other) noexcept;
  ~PlainMemory();
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace atoll_bench
