// What every implementation's rank does: wait for a request, make buffers, check one operation
// against its closed form, time batches. An implementation supplies a Peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "control.hpp"

namespace atoll_bench {

// Of one row, on one rank. In place they overlap in the way that the implementation asks for.
struct Buffers {
  std::byte* input = nullptr;   // input_elements(): filled before the first operation
  std::byte* output = nullptr;  // output_elements(): where the result of the first one is
};

class Peer {
 public:
  virtual ~Peer() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  // Collective. Whatever an implementation prepares once for many operations belongs here.
  virtual Buffers prepare(const Row& row, Variant variant) = 0;
  // `operations` times the collective of the row; complete on this rank when it returns.
  virtual void run(std::int64_t operations) = 0;
  // Collective. Frees what prepare() made.
  virtual void release() = 0;
};

// Binds this process, and the threads that it makes later, to the core of its rank where there is
// one for each; else it runs where the system likes. Two ranks that the system leaves on one core
// for a while are a row that says nothing. To be called first; `rank` and `ranks`: variables of the
// environment.
void take_core(int rank, int ranks);
void take_core(const char* rank, const char* ranks);

// Serves requests of the driver until it says quit; the exit status of the program. Kills the
// process when its parent dies.
int serve(Peer& peer);

// Pages as good as the system gives them, so that no implementation has worse ones.
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
