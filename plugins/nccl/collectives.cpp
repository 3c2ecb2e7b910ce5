// Implements the collectives: each is one NCCL call, or one group of messages, broadcasts or
// reduces. NCCL chooses the algorithms and the order of sums. If the N ranks are in several islands
// (sets of GPUs joined by a fast fabric such as NVLink), NCCL's rings send (N - 1) / N of the data
// through each host's links; the library uses a two-level algorithm instead if its cost model
// predicts that this is faster.
#include "communicator.hpp"
#include "sdk/backend.hpp"

// Null if the loaded NCCL is older than 2.28.
extern "C" ncclResult_t ncclAlltoAll(const void* src, void* dst, std::size_t count,
                                     ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
    __attribute__((weak));

namespace atoll_nccl {
namespace {

// The arguments that most NCCL calls need, converted from an operation.
struct Call {
  explicit Call(const NcclCommunicator& comm, const atoll_operation& operation_)
      : operation(operation_),
        nccl(comm.nccl()),
        stream(static_cast<cudaStream_t>(operation_.stream)),
        rank(comm.rank()),
        size(comm.size()),
        type(type_of(operation_.dtype)),
        element(dtype_size(operation_.dtype)),
        src(static_cast<const std::byte*>(operation_.src)),
        dst(static_cast<std::byte*>(operation_.dst)) {}

  ncclResult_t send(const void* data, int peer) const {
    return ncclSend(data, operation.count, type, peer, nccl, stream);
  }
  ncclResult_t recv(void* data, int peer) const {
    return ncclRecv(data, operation.count, type, peer, nccl, stream);
  }

  const atoll_operation& operation;
  ncclComm_t nccl;
  cudaStream_t stream;
  int rank;
  int size;
  ncclDataType_t type;
  std::size_t element;
  const std::byte* src;
  std::byte* dst;
};

// Implements the barrier as an all_reduce of one word, because NCCL has no barrier. The all_reduce
// is complete on a rank only after all ranks have called it.
ncclResult_t barrier(const NcclCommunicator& comm, const atoll_operation& operation) {
  return ncclAllReduce(comm.barrier_word(), comm.barrier_word(), 1, ncclInt32, ncclMax, comm.nccl(),
                       static_cast<cudaStream_t>(operation.stream));
}

// Calls ncclBroadcast. The root may pass its data in src or in dst.
ncclResult_t broadcast(const Call& call) {
  const auto& operation = call.operation;
  const void* src = call.src != nullptr ? operation.src : operation.dst;
  void* dst = call.dst != nullptr ? operation.dst : const_cast<void*>(operation.src);
  return ncclBroadcast(src, dst, operation.count, call.type, operation.peer, call.nccl,
                       call.stream);
}

// Calls ncclAlltoAll, which copy engines can run. NCCL 2.27 lacks this function, so with it a rank
// sends a message to each rank, including itself, and receives one from each.
ncclResult_t all_to_all(const Call& call) {
  if (ncclAlltoAll != nullptr) {
    return ncclAlltoAll(call.src, call.dst, call.operation.count, call.type, call.nccl,
                        call.stream);
  }
  const std::size_t block = call.operation.count * call.element;
  ncclResult_t result = ncclSuccess;
  for (int peer = 0; peer < call.size; ++peer) {
    const std::size_t offset = static_cast<std::size_t>(peer) * block;
    result = worse(result, call.send(call.src + offset, peer));
    result = worse(result, call.recv(call.dst + offset, peer));
  }
  return result;
}

// Implements gather and scatter as messages between the root and each rank. The root does not send
// to itself if its block is already in place.
ncclResult_t gather_or_scatter(const Call& call) {
  const std::size_t block = call.operation.count * call.element;
  const int root = call.operation.peer;
  const bool gathers = call.operation.kind == ATOLL_GATHER;
  const bool is_root = call.rank == root;
  const std::size_t own = block * static_cast<std::size_t>(root);
  const bool in_place =
      is_root && (gathers ? call.src == call.dst + own : call.dst == call.src + own);
  ncclResult_t result = ncclSuccess;
  if (!in_place) result = gathers ? call.send(call.src, root) : call.recv(call.dst, root);
  for (int peer = 0; is_root && peer < call.size; ++peer) {
    if (in_place && peer == root) continue;
    const std::size_t offset = block * static_cast<std::size_t>(peer);
    result = worse(
        result, gathers ? call.recv(call.dst + offset, peer) : call.send(call.src + offset, peer));
  }
  return result;
}

// Calls of(root, offset, count), which makes one NCCL call, for each nonempty block of a _v
// collective. The block of `root` has `count` elements and begins at byte `offset` of the whole
// tensor.
template <class Of>
ncclResult_t each_block(const Call& call, const Of& of) {
  ncclResult_t result = ncclSuccess;
  std::size_t offset = 0;
  for (int root = 0; root < call.size; ++root) {
    const std::uint64_t count = call.operation.counts[root];
    if (count > 0) result = worse(result, of(root, offset, count));
    offset += count * call.element;
  }
  return result;
}

// Implements all_gather_v as a group of broadcasts, one per block.
ncclResult_t all_gather_v(const Call& call) {
  return each_block(call, [&](int root, std::size_t offset, std::uint64_t count) {
    std::byte* block = call.dst + offset;
    return ncclBroadcast(root == call.rank ? call.src : block, block, count, call.type, root,
                         call.nccl, call.stream);
  });
}

// Implements reduce_scatter_v as a group of reduces, one per block.
ncclResult_t reduce_scatter_v(const Call& call) {
  return each_block(call, [&](int root, std::size_t offset, std::uint64_t count) {
    return ncclReduce(call.src + offset, root == call.rank ? call.dst : nullptr, count, call.type,
                      op_of(call.operation.op), root, call.nccl, call.stream);
  });
}

}  // namespace

ncclResult_t perform(const NcclCommunicator& comm, const atoll_operation& operation) {
  if (operation.kind == ATOLL_BARRIER) return barrier(comm, operation);
  if (operation.count == 0) return ncclSuccess;
  const Call call(comm, operation);
  switch (operation.kind) {
    case ATOLL_BROADCAST:
      return broadcast(call);
    case ATOLL_ALL_GATHER:
      return ncclAllGather(call.src, call.dst, operation.count, call.type, call.nccl, call.stream);
    case ATOLL_REDUCE_SCATTER:
      return ncclReduceScatter(call.src, call.dst, operation.count, call.type, op_of(operation.op),
                               call.nccl, call.stream);
    case ATOLL_ALL_REDUCE:
      return ncclAllReduce(call.src, call.dst, operation.count, call.type, op_of(operation.op),
                           call.nccl, call.stream);
    case ATOLL_REDUCE:
      return ncclReduce(call.src, call.dst, operation.count, call.type, op_of(operation.op),
                        operation.peer, call.nccl, call.stream);
    case ATOLL_ALL_TO_ALL:
      return all_to_all(call);
    case ATOLL_GATHER:
    case ATOLL_SCATTER:
      return gather_or_scatter(call);
    case ATOLL_ALL_GATHER_V:
      return all_gather_v(call);
    case ATOLL_REDUCE_SCATTER_V:
      return reduce_scatter_v(call);
    case ATOLL_SEND:
      return call.send(call.src, operation.peer);
    default:
      return call.recv(call.dst, operation.peer);
  }
}

}  // namespace atoll_nccl
