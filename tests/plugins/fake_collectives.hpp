// The part of the fake NCCL (fake_gpu.hpp) that runs operations. Collectives wait in one queue per
// rank and run when every rank has one; messages run in pairs of send and receive. The caller holds
// the lock.
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
  all_reduce,
  broadcast,
  reduce,
  reduce_scatter,
  send,
  recv
};

// Position of a buffer in the registered windows of a communicator.
struct Place {
  int window = -1;  // index in the order of registration; -1 when the memory is in no window
  std::size_t offset = 0;
  bool operator==(const Place&) const = default;
};

struct Call {
  Kind kind;
  const void* src;
  void* dst;
  std::size_t count;
  ncclDataType_t type;
  int op = 0;  // an ncclRedOp_t
  int peer = 0;
  cudaStream_t stream = nullptr;  // stream of the emulated GPU, whose order the operation follows
  Place src_place{}, dst_place{};
  bool done = false;
  bool given_up = false;
};
using Shared = std::shared_ptr<Call>;

// One rank's arguments of ncclCommSplit.
struct Split {
  int rank, color, key;
  ncclComm_t comm;
  ncclComm_t* out;
};

struct Clique {
  explicit Clique(int n) : ranks(n), collectives(static_cast<std::size_t>(n)) {}
  std::vector<Split> splits;  // collected until all ranks have called ncclCommSplit
  int ranks;
  int joined = 0;
  int finalized = 0;
  bool broken = false;                          // ranks called different operations
  std::vector<std::deque<Shared>> collectives;  // per rank, calls that have not run yet
  std::map<std::pair<int, int>, std::pair<std::deque<Shared>, std::deque<Shared>>> messages;
};

// Adds a call, then runs every operation that is complete and marks its calls as done. Sets
// `broken` when ranks called different operations.
void arrive(Clique& clique, int rank, const Shared& call);

}  // namespace fake_gpu
