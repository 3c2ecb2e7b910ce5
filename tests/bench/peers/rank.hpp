// The part of a rank program that all implementations share: it waits for a request, allocates
// buffers, checks one operation against the expected values, and times batches. Each implementation
// supplies a Peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "control.hpp"

namespace atoll_bench {

// The buffers of one row on one rank. In place, input and output overlap as the implementation
// requires.
struct Buffers {
  // The rank's contribution: input_elements() elements, filled before the first operation.
  std::byte* input = nullptr;
  // The rank's result: output_elements() elements, written by the first operation.
  std::byte* output = nullptr;
};

// Fills the buffers of a rank for the first operation.
void fill(const Row& row, const Buffers& buffers, int rank, int ranks);
// Describes a wrong element of the result of that operation; "" if all are right.
std::string difference(const Row& row, const Buffers& buffers, int rank, int ranks);

class Peer {
 public:
  virtual ~Peer() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  // Allocates the buffers of a row, and prepares everything that many operations share. All ranks
  // call this function together.
  virtual Buffers prepare(const Row& row, Variant variant) = 0;
  // Runs the collective of the row `operations` times. When run() returns, all operations are
  // complete on this rank.
  virtual void run(std::int64_t operations) = 0;
  // Frees everything that prepare() allocated. All ranks call this function together.
  virtual void release() = 0;
};

// Binds this process and its future threads to the core with the number of its rank, if there are
// at least as many cores as ranks. Otherwise the scheduler chooses the cores. Without binding, two
// ranks could share a core for a while, which would make a row meaningless. Must be called before
// all other functions. `rank` and `ranks` are numbers, or names of environment variables that hold
// numbers.
void take_core(int rank, int ranks);
void take_core(const char* rank, const char* ranks);

// Serves requests until the driver ends the job, and returns the exit status of the program. The
// kernel kills the process when its parent dies.
int serve(Peer& peer);

// Memory in the largest pages that the system grants, so that all implementations measure with the
// same page size.
class PlainMemory {
 public:
  PlainMemory() = default;
  explicit PlainMemory(std::size_t bytes);
  std::byte* data() const { return data_.get(); }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Unmap> data_;
};

}  // namespace atoll_bench
