// Collectives over one axis of a mesh, on one backend.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/device.hpp"
#include "atoll/mesh.hpp"

namespace atoll_v1::atoll {

class BackendGroup;  // makes Works; src/comm/backend_group.hpp

// An operation under way. Its buffers must stay alive until it is complete. Dropping a Work does
// not cancel it.
class Work {
 public:
  Work() = default;  // complete
  // Makes `stream` wait; the host runs on. Throws the operation's failure, if it is known by now.
  void wait(Stream& stream) const;
  // Blocks the host until the operation is complete. Throws its failure.
  void synchronize() const;
  bool done() const;
  // A collective over one rank: a copy on `stream`, or nothing when src and dst are the same.
  static Work local_copy(ConstView src, View dst, Stream& stream);

  struct State;  // src/comm/work_state.hpp

 private:
  friend class BackendGroup;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// What a reducing collective computes: op over factor * src. Either all ranks give a factor or none
// does; factors may differ by rank, `op` may not. A factor other than 1 is for sum and avg of
// floating point types; it is applied in the type that sums (f32 for the 16-bit types), before the
// sum. In memory of a GPU it is a kernel in front of the operation, which rounds the products of
// 16-bit types to these, and takes scratch as large as src.
struct Reduction {
  ReduceOp op = ReduceOp::sum;
  double factor = 1.0;
  bool has_factor = false;

  constexpr Reduction(ReduceOp op_) : op(op_) {}  // NOLINT(google-explicit-constructor)
  constexpr Reduction(ReduceOp op_, double factor_) : op(op_), factor(factor_), has_factor(true) {}
};

// How data moves between ranks, as far as connections exist: they are made when they are first
// used.
struct Transports {
  std::vector<std::string> networks;   // what joins hosts ("IB", "Socket"); none so far, perhaps
  std::optional<bool> gpudirect_rdma;  // NICs reach memory of GPUs: on every connection; else false
  bool partly = false;                 // on some of them
  std::optional<bool> nvls;            // NVLink switches can add and copy for it
  std::string unknown;                 // why nothing is known; "": it is
  std::string to_string() const;       // "network IB with GPUDirect RDMA, NVLS available"
};
// Of all ranks together. Collective over the World.
Transports gather_transports(World& world, const Transports& mine);
// Collective over the World. Error(unsupported) names a rank that reaches another host without
// GPUDirect RDMA, or does not know; one that reaches none itself is fine, unless all are so and
// there are several hosts.
void require_gpudirect_rdma(World& world, const Transports& mine);

class Communicator;

struct CommunicatorOptions {
  std::string name{};     // for messages and traces; default: the axis' name
  std::string backend{};  // default: config().backend, else the best that probes on all ranks
  Device device = Device::host();
  // An idle communicator whose every rank opens one of this axis now, each its own: a backend that
  // can (NCCL) makes them out of it, without another bootstrap. On its backend and device.
  const Communicator* parent = nullptr;
};

// Every collective is enqueued on the stream given to it and returns at once; all ranks of the axis
// call the same operations of one communicator in the same order with the same counts, dtypes and
// ops. Operations of one communicator run in the order of their calls, whatever stream they are on.
// Counts of 0 are fine. Where a form in place is documented, each rank is free to use it or not. On
// GPUs src is in memory of allocate() on all ranks of a call or on none, and so is dst; and what
// other ranks reach there (src and dst of all_reduce, dst of all_gather, src of reduce_scatter) is
// at one offset of one allocation on all of them. Communicators that share ranks are then called in
// one order on these, at least for the first operations: NCCL connects ranks when it needs to, and
// waits for the others.
//
// Sums: bf16 and f16 accumulate in f32 and round once, or once per level where a backend sums
// inside each host before it sends. On a backend that can order its sums the order is that of the
// algorithm, which is taken by size and shape, and the same for every element: an adjacent-pair
// tree over the ranks ((0 + 1) + (2 + 3)) + ... inside a host and wherever all ranks exchange at
// once; with two levels a tree over the ranks of each host, then over the hosts, which is the same
// one where hosts have equal powers of two of ranks in a row; another order by what large sums
// between many hosts take (plugins/host/README.md). Where a backend cannot order its sums
// (capability says so) core builds the sum from all_to_all, local sums and all_gather, level by
// level where hosts allow it, for the 16-bit types, and leaves the order of the others to the
// backend. Config::deterministic asks for the one tree and one rounding of all floating point
// reductions everywhere, at the price of more bytes between hosts; over an axis with blocks
// (Axis::block) a tree over the ranks of each block, then one over the blocks.
//
// Errors: wrong arguments throw Error(invalid_argument) here, before anything is sent: ranks and
// counts that do not fit, unequal dtypes, NULL with elements, src and dst that overlap other than
// as documented, a factor where none is allowed. A failure of the operation is kept in its Work,
// and fails the World: every communicator of every rank aborts, every wait ends.
class Communicator {
 public:
  // Collective over the axis; communicators that share a rank open in one order on all ranks. Ranks
  // exchange which backends probe and take the best common one; Error(unsupported) says what each
  // rank lacks.
  static Communicator open(const Axis& axis, CommunicatorOptions options = {});
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();  // waits for the operations that were enqueued

  int rank() const noexcept;  // in the axis
  int size() const noexcept;
  std::string_view name() const noexcept;
  std::string_view backend() const noexcept;
  const Device& device() const noexcept;

  // dst[r * n + i] = src of rank r [i], n = src.count. In place: src = dst + rank * n.
  [[nodiscard]] Work all_gather(ConstView src, View dst, Stream& stream);
  // dst[i] = op over ranks of src[rank * n + i], n = dst.count. In place: dst = src + rank * n.
  [[nodiscard]] Work reduce_scatter(ConstView src, View dst, Reduction reduction, Stream& stream);
  // dst[i] = op over ranks of src[i]. In place: src = dst.
  [[nodiscard]] Work all_reduce(ConstView src, View dst, Reduction reduction, Stream& stream);
  // The same on `root`, whose dst alone is written; others may pass an empty one.
  [[nodiscard]] Work reduce(ConstView src, View dst, Reduction reduction, int root, Stream& stream);
  // data of `root` on every rank.
  [[nodiscard]] Work broadcast(View data, int root, Stream& stream);
  // dst[r * n + i] = src of rank r [rank * n + i], n = count / size. No overlap.
  [[nodiscard]] Work all_to_all(ConstView src, View dst, Stream& stream);
  // On `root`, whose dst alone is written: dst[r * n + i] = src of rank r [i], n = src.count.
  // Others may pass an empty dst. In place on root: src = dst + rank * n.
  [[nodiscard]] Work gather(ConstView src, View dst, int root, Stream& stream);
  // dst[i] = src of `root` [rank * n + i], n = dst.count. Others may pass an empty src. In place on
  // root: dst = src + rank * n.
  [[nodiscard]] Work scatter(ConstView src, View dst, int root, Stream& stream);
  // Uneven forms. counts[r] elements belong to rank r, the same counts on all ranks; they lie
  // packed in rank order. all_gather_v: src.count = counts[rank], dst.count = their sum;
  // reduce_scatter_v the other way round. In place as in the even forms.
  [[nodiscard]] Work all_gather_v(ConstView src, View dst, std::span<const std::uint64_t> counts,
                                  Stream& stream);
  [[nodiscard]] Work reduce_scatter_v(ConstView src, View dst,
                                      std::span<const std::uint64_t> counts, Reduction reduction,
                                      Stream& stream);
  // One sided pairs: a send is complete when the data left src, or lies in a buffer of the backend.
  // Two ranks that send to each other put both into one group().
  [[nodiscard]] Work send(ConstView src, int peer, Stream& stream);
  [[nodiscard]] Work recv(View dst, int peer, Stream& stream);
  // Complete when every rank has got here, on its stream.
  [[nodiscard]] Work barrier(Stream& stream);

  // Several sends and receives as one operation, which cannot deadlock among each other.
  struct SendRecv {
    enum class Kind {
      send,
      recv
    } kind;
    View data;  // read only for a send
    int peer;
  };
  [[nodiscard]] Work group(std::span<const SendRecv> operations, Stream& stream);

  // Device memory that a sum takes beside its buffers: 0 where the backend sums, more where the
  // library builds the sum. It is allocated at the first call that needs it, and kept; or here, for
  // those who plan their memory. `count` is that of dst in a reduce_scatter, of data in an
  // all_reduce; without a factor.
  enum class Sum {
    reduce_scatter,
    all_reduce
  };
  std::uint64_t scratch_bytes(Sum sum, std::uint64_t count, DType dtype) const;
  void reserve_scratch(std::uint64_t bytes);  // before the first operation

  // Of this process, whichever communicator of the backend it is.
  Transports transports() const;

  // Collective: ranks of one color form a new communicator, ordered by key, then by rank; a rank
  // without a color gets none. Same backend and device; the default name is NAME.COLOR.
  std::optional<Communicator> split(std::optional<int> color, int key = 0,
                                    std::string name = {}) const;

  struct Impl;  // src/comm/communicator_impl.hpp

 private:
  friend Buffer allocate(const Device& device, std::size_t bytes,
                         std::span<const std::reference_wrapper<Communicator>> communicators);
  explicit Communicator(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;  // shared with the operations under way
};

// Memory on the fast path of `communicators`: registered with each of them, on host memory mapped
// by their ranks of this host. Collective over every one of the communicators: same order of calls
// and same size on all ranks. Filled with zeros, aligned to 4,096 bytes; given back by the handle,
// on each rank at its own time, when nothing uses it any more on any rank; freed when each of the
// communicators has had another call, or is gone, on GPUs when all are gone. A buffer may outlive
// the communicators. Every collective takes memory from elsewhere as well, slower.
Buffer allocate(const Device& device, std::size_t bytes,
                std::span<const std::reference_wrapper<Communicator>> communicators);
inline Buffer allocate(const Device& device, std::size_t bytes,
                       std::initializer_list<std::reference_wrapper<Communicator>> communicators) {
  return allocate(device, bytes, std::span(communicators.begin(), communicators.size()));
}

// What the loader found: name, file, and why a backend is unusable here (empty when it is usable).
struct BackendInfo {
  std::string name;
  std::string file;
  std::string unusable;
  int preference = 0;
};
// Loads and probes every backend of the plugin path, for this kind of memory. Not collective.
std::vector<BackendInfo> available_backends(World& world, DeviceKind kind = DeviceKind::host);

}  // namespace atoll_v1::atoll
