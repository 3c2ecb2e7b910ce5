// What the fake NCCL (fake_gpu.hpp) does once calls are there: each rank's queue of collectives,
// run when all ranks have one, and messages, run in pairs. Its caller locks.
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

// Of memory in windows of a communicator.
struct Place {
  int window = -1;  // its number among them, in the order of their registration; -1: in none
  std::size_t offset = 0;
  bool operator==(const Place&) const = default;
};

struct Call {
  Kind kind;
  const void* src;
  void* dst;
  std::size_t count;
  ncclDataType_t type;
  int op = 0;  // ncclRedOp_t
  int peer = 0;
  cudaStream_t stream = nullptr;  // of an emulated GPU: what is launched runs in its order
  Place src_place{}, dst_place{};
  bool done = false;
  bool given_up = false;
};
using Shared = std::shared_ptr<Call>;

// One rank's part in ncclCommSplit.
struct Split {
  int rank, color, key;
  ncclComm_t comm;
  ncclComm_t* out;
};

struct Clique {
  explicit Clique(int n) : ranks(n), collectives(static_cast<std::size_t>(n)) {}
  std::vector<Split> splits;  // until all ranks are there
  int ranks;
  int joined = 0;
  int finalized = 0;
  bool broken = false;                          // ranks called different things
  std::vector<std::deque<Shared>> collectives;  // by rank, not run yet
  std::map<std::pair<int, int>, std::pair<std::deque<Shared>, std::deque<Shared>>> messages;
};

// Runs what is complete now; a call that was run is done. Sets `broken` where ranks differ.
void arrive(Clique& clique, int rank, const Shared& call);

}  // namespace fake_gpu
