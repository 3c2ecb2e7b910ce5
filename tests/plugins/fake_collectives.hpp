// The part of the fake NCCL (fake_gpu.hpp) that runs operations. Each rank has a queue of
// collectives, and a collective runs when all ranks have it at the head of their queues. A message
// runs when both its send and its receive have been called. The caller holds the lock of the fake
// NCCL.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace fake_gpu {

enum class Kind {
  all_gather,
  all_to_all,
  all_reduce,
  broadcast,
  reduce,
  reduce_scatter,
  send,
  recv
};

// Position of a buffer in the windows that a communicator has registered.
struct Place {
  // Index of the window in the order of registration; -1 if the buffer is in no window.
  int window = -1;
  std::size_t offset = 0;
  bool operator==(const Place&) const = default;
};

struct Call {
  Kind kind;
  const void* src;
  void* dst;
  std::size_t count;
  ncclDataType_t type;
  int op = 0;  // kind of reduction, a value of ncclRedOp_t
  int peer = 0;
  cudaStream_t stream = nullptr;  // stream on which the operation runs, if the GPU is emulated
  Place src_place{}, dst_place{};
  bool done = false;
  bool given_up = false;
};
using Shared = std::shared_ptr<Call>;

// The arguments that one rank passed to ncclCommSplit.
struct Split {
  int rank, color, key;
  ncclComm_t comm;
  ncclComm_t* out;
  ncclConfig_t config;
};

struct Clique {
  explicit Clique(int n) : ranks(n), collectives(static_cast<std::size_t>(n)) {}
  std::vector<Split> splits;  // calls of ncclCommSplit, kept until all ranks have called it
  int ranks;
  int joined = 0;
  int finalized = 0;
  // True if the ranks have called different operations.
  bool broken = false;
  // Calls of collectives that have not run yet, one queue for each rank.
  std::vector<std::deque<Shared>> collectives;
  std::map<std::pair<int, int>, std::pair<std::deque<Shared>, std::deque<Shared>>> messages;
};

// Adds a call to its queue, then runs every operation that is complete and marks the calls of the
// operation as done. Sets `broken` if ranks have called different operations.
void arrive(Clique& clique, int rank, const Shared& call);

}  // namespace fake_gpu
