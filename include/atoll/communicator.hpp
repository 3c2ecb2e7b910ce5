// Collectives over one axis of a mesh, on one backend.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/device.hpp"
#include "atoll/mesh.hpp"

namespace atoll_v1::atoll {

class BackendCommunicator;  // internal: creates every Work (src/comm/backend_communicator.hpp)

// An operation in flight. The buffers of the operation must stay alive until it is complete.
// Destroying a Work does not cancel the operation.
class ATOLL_API Work {
 public:
  Work() = default;  // creates a Work without an operation, which is complete
  // Makes `stream` wait for the operation and returns at once. If the operation is known to have
  // failed, throws its error.
  void wait(Stream& stream) const;
  // Blocks the host until the operation is complete. Throws the error of a failed operation.
  void synchronize() const;
  // Like synchronize(), but returns false if the operation is not complete within `limit`.
  bool synchronize_for(std::chrono::nanoseconds limit) const;
  bool done() const;  // true if the operation is complete or has failed
  // The error of a failed operation; nullopt if it is in flight or has succeeded.
  std::optional<Error> error() const;
  // Source and tag of the message that a complete recv() with tags has received. -1 while it is in
  // flight, after a failure, and for other operations.
  int source() const;
  int tag() const;
  // Calls `callback` exactly once, with error(), when the operation is complete or has failed: at
  // once on this thread if it is, and else on a thread of the library, in the order of the calls.
  // On CPU memory this is the thread that has performed the operation, which may be one that waits
  // in synchronize(). The callback may enqueue work; it must not wait for streams, nor for a mutex
  // that a waiting thread holds. What it throws is logged.
  void then(std::function<void(const std::optional<Error>& error)> callback) const;
  // Performs a collective of a single rank: copies src to dst on `stream`, unless src and dst are
  // the same memory. On a GPU, then() of the result waits until the copy is complete.
  static Work local_copy(ConstView src, View dst, Stream& stream);

  struct ATOLL_LOCAL State;  // this struct is defined in src/comm/operation.hpp

 private:
  friend class BackendCommunicator;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// The arithmetic of a reducing collective: `op` combines factor * src of all ranks.
//
// Either every rank passes a factor or none does. This is not checked: on CPU memory a rank
// without a factor counts as one with the factor 1, and on a GPU the ranks can wait for each other
// until the timeout or get wrong sums. Factors may differ between ranks; `op` may not. A factor
// other than 1 requires sum or avg of a floating-point type. The factor is applied before the sum,
// in the type in which the sum accumulates (f32 for the 16-bit types). In GPU memory a kernel
// applies the factor before the operation. That kernel rounds the products of 16-bit types to 16
// bits and needs scratch memory as large as src.
struct Reduction {
  ReduceOp op = ReduceOp::sum;
  double factor = 1.0;
  bool has_factor = false;
  bool native = false;

  constexpr Reduction(ReduceOp op_) : op(op_) {}  // NOLINT(google-explicit-constructor)
  constexpr Reduction(ReduceOp op_, double factor_) : op(op_), factor(factor_), has_factor(true) {}
  // Lets the backend use its own arithmetic. NCCL then reduces bf16 and f16 itself, rounds the
  // partial result at every rank, and divides before it adds for averages. By default the library
  // exchanges the data and adds in f32. The native way is faster on slow links, but its error grows
  // with the number of ranks. Has no effect in deterministic mode. All ranks must agree.
  constexpr Reduction natively() const {
    Reduction result = *this;
    result.native = true;
    return result;
  }
};

// How data moves between ranks over the connections that exist so far. A backend connects two ranks
// when they first exchange data. A member without a value is not known yet.
struct ATOLL_API Transports {
  // Names of the networks in use between hosts, such as "IB" or "Socket".
  std::vector<std::string> networks;
  std::optional<bool> gpudirect_rdma;  // true when NICs access GPU memory on every connection
  bool partly = false;                 // true when NICs access GPU memory on only some connections
  std::optional<bool> nvls;            // true when NVLink switches can reduce and multicast
  // After the first all_gather: true when all_gathers have used copy engines, which need no compute
  // units; false when all have used compute units.
  std::optional<bool> copy_engines;
  // Bytes of GPU memory that the backend holds for the communicators of this process. NCCL reports
  // them from version 2.29.7 on.
  std::optional<std::uint64_t> device_bytes;
  std::string unknown;            // why no transport is known; empty when one is known
  std::string to_string() const;  // returns text such as "network IB with GPUDirect RDMA"
};
// Combines the transports of all ranks. `device_bytes` is the largest of any rank. Collective over
// the World.
ATOLL_API Transports gather_transports(World& world, const Transports& mine);
// Requires GPUDirect RDMA between hosts. Throws Error(unsupported) that names a rank which reaches
// another host without GPUDirect RDMA, or does not know its transports. A rank without connections
// to other hosts passes the check. If the job has several hosts and no rank has such a connection,
// the function throws as well. Collective over the World.
ATOLL_API void require_gpudirect_rdma(World& world, const Transports& mine);

class Communicator;
class Registration;

// How many compute units of a GPU (SMs) the collectives of a communicator may take from kernels
// that run beside them. A hint; backends on CPU memory ignore it.
enum class ComputeUnits {
  any,  // as many as make the collective fast
  few,
  none  // copy engines move data where the hardware can; sums still take compute units
};

struct CommunicatorOptions {
  std::string name{};  // name in messages and traces; an empty name means the name of the axis
  // Name of the backend; empty means config().backend, or else the best common backend. All ranks
  // must pass the same name. The settings below must be equal too.
  std::string backend{};
  Device device = Device::cpu();
  // A communicator to split, or null. It must be idle, and every rank of it must open a
  // communicator in the same call, on any axis. A backend that supports splitting (NCCL) then opens
  // the new communicator without another bootstrap; the new communicator makes its own connections.
  // `backend` and `device` are taken from the parent.
  const Communicator* parent = nullptr;
  // If false, all_gather and reduce_scatter over several hosts send all data through one NCCL
  // communicator, and never first inside a host and then between hosts. This saves the GPU memory
  // of two more NCCL communicators. Other backends ignore this member. All ranks must pass the same
  // value. split() uses the value of the communicator that it splits; open() with a `parent` does
  // not.
  bool levels = true;
  // Settings of this communicator. All ranks must pass the same settings: open() compares them, and
  // if they differ, every rank throws Error(mismatch), which names the setting and two ranks. A
  // setting without a value is taken from the parent, or without a parent from the World's Config.
  std::optional<std::chrono::milliseconds> timeout{};  // time limit of one collective
  std::optional<int> deterministic{};                  // 0 or 1, as in Config::deterministic
  std::optional<std::string> algorithm{};              // as in Config::algorithm
  std::optional<ComputeUnits> compute_units{};         // without a parent the default is `any`
  // Ends open() when any thread requests this stop, before or during the call. One rank is enough:
  // open() then throws Error(aborted) on all ranks, also on those that call it later. On a rank
  // whose open() has returned, the next operation throws it. Has no effect once open() has returned
  // on this rank. Need not be equal on all ranks. The backend mpi notices a stop only after all
  // ranks have called open().
  std::stop_token stop{};
  // If true, send() and recv() have tags, and recv() accepts any_source and any_tag. Messages then
  // use connections of their own. Only the backends host and verbs on CPU memory support it;
  // otherwise open() throws Error(unsupported). All ranks must pass the same value.
  bool tags = false;
};

// Calls: every collective is enqueued on the stream given to it and returns at once. All ranks of
// the axis must call the same operations of a communicator in the same order, with the same counts,
// dtypes and ops. Calls of several threads are performed one after the other; it is the callers'
// duty that their order is the same on all ranks, which is not checked. Operations of one
// communicator run in the order of the calls, even on different streams. A count of 0 is allowed.
// If an in-place form is documented, each rank may choose to use it.
//
// GPU memory: in one call, either all ranks must pass a src from allocate() or none; the same holds
// for dst. The library does not check this rule: if ranks break it, the operation can wait until
// its timeout or give wrong data. Memory from allocate() that other ranks access (src and dst of
// all_reduce, dst of all_gather, src of reduce_scatter) must be at the same offset of the same
// allocation on every rank. Ranks that share several communicators must call them in the same
// order, at least for the first operation of each, because NCCL connects ranks at the first
// operation and waits for the other ranks.
//
// Types: operations that only move data accept every dtype. Reductions of f8e4m3 and f8e5m2 throw
// Error(unsupported). Sums and products of integers wrap around. A sum of truth values (bool) is
// "or", a product "and"; averages of them do not exist. Pass a complex number as two elements of
// its real type: sums and averages are then those of complex numbers, but products are not.
//
// Sums: bf16 and f16 accumulate in f32 and are rounded once, or once per level when a backend adds
// inside each host before it sends. A backend that can order its sums chooses an algorithm by size
// and shape, and adds every element in the order of that algorithm. Inside a host, and with the
// algorithm `flat` between hosts, the order is an adjacent-pair tree over the ranks:
// ((0 + 1) + (2 + 3)) + .... With `two_level`, a tree over the ranks of each host comes first, then
// a tree over the hosts. Both orders are the same if every host has the same number of neighbouring
// ranks and this number is a power of two. plugins/collectives/between_hosts.md lists the orders of
// the other algorithms.
//
// If a backend cannot order its sums (MPI, NCCL), the library builds the sums of 16-bit types from
// all_to_all, local sums and all_gather; src/comm/fallbacks.md says when it adds inside each host
// first. Other types are added in the backend's order. Config::deterministic requests one tree and
// one rounding for all floating-point reductions, which sends more bytes between hosts. On an axis
// with blocks (Axis::block) a deterministic sum is a tree over the ranks of each block, then a tree
// over the blocks.
//
// Errors: wrong arguments throw Error(invalid_argument) before anything is sent: a rank or count
// out of range, unequal dtypes, null with elements, an overlap of src and dst that is not
// documented, a dtype or op that does not exist, a factor that is not allowed. The Work keeps the
// failure of its operation, and the stream drops later work until this failure was thrown or
// returned (device.hpp). With Config::failure_scope "communicator", the failure ends this
// communicator on all its ranks: operations in flight fail and later calls throw, everywhere with
// the error of the rank that failed first. The loss of a rank has the same effect on each
// communicator that contains the rank. Other communicators go on. With the scope "job", a failure
// fails the World: every communicator of every rank aborts and every wait ends. abort() ends one
// communicator only. Every call of a Communicator that was moved from throws
// Error(invalid_argument), and so does an operation after the World has been destroyed.
class ATOLL_API Communicator {
 public:
  // Collective over the axis; blocks until all its ranks have called it. All ranks open
  // communicators of the same ranks in the same order. Communicators that have only some ranks in
  // common may be opened in any order in which the waiting ranks form no cycle. Ranks of one axis
  // compare what they open. If names, ranks of the axis, parents or kinds of memory differ, all of
  // them throw Error(mismatch), and if the options are wrong on some ranks, all ranks throw the
  // error of the lowest of them. If a rank opens nothing
  // within Config::rendezvous_timeout, the others throw Error(timeout), which names the
  // communicator and the rank. Throws Error(invalid_argument) for an axis that breaks the rules of
  // Axis. Ranks exchange which backends they can use and choose the best common one. If there is
  // none, throws Error(unsupported) with the reason of each backend.
  static Communicator open(const Axis& axis, CommunicatorOptions options = {});
  // Opens a communicator of these ranks of the World, in this order, which is the same on all of
  // them. Ranks that are not listed need not call it. The errors are those of open() above.
  static Communicator open(World& world, std::vector<int> ranks, std::string name,
                           CommunicatorOptions options = {});
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  // Blocks until all enqueued operations are complete, unless the communicator has other handles,
  // which with_timeout() makes.
  ~Communicator();

  int rank() const;  // rank of the caller in the axis
  int size() const;
  std::string_view name() const;
  std::string_view backend() const;
  const Device& device() const;

  // dst[r * n + i] = (src of rank r)[i] for every rank r, with n = src.count. In place:
  // src = dst + rank * n.
  [[nodiscard]] Work all_gather(ConstView src, View dst, Stream& stream);
  // dst[i] = op over all ranks r of (src of rank r)[rank * n + i], with n = dst.count. In place:
  // dst = src + rank * n.
  [[nodiscard]] Work reduce_scatter(ConstView src, View dst, Reduction reduction, Stream& stream);
  // dst[i] = op over all ranks r of (src of rank r)[i]. In place: src = dst.
  [[nodiscard]] Work all_reduce(ConstView src, View dst, Reduction reduction, Stream& stream);
  // Reduces like all_reduce, but only dst of `root` is written. Other ranks may pass an empty dst.
  [[nodiscard]] Work reduce(ConstView src, View dst, Reduction reduction, int root, Stream& stream);
  // Copies `data` of rank `root` to `data` of every other rank.
  [[nodiscard]] Work broadcast(View data, int root, Stream& stream);
  // dst[r * n + i] = (src of rank r)[rank * n + i] for every rank r, with n = count / size. src and
  // dst must not overlap.
  [[nodiscard]] Work all_to_all(ConstView src, View dst, Stream& stream);
  // On `root` only: dst[r * n + i] = (src of rank r)[i] for every rank r, with n = src.count. Other
  // ranks may pass an empty dst. In place on root: src = dst + rank * n.
  [[nodiscard]] Work gather(ConstView src, View dst, int root, Stream& stream);
  // dst[i] = (src of `root`)[rank * n + i], with n = dst.count. Other ranks may pass an empty src.
  // In place on root: dst = src + rank * n.
  [[nodiscard]] Work scatter(ConstView src, View dst, int root, Stream& stream);
  // Uneven forms: counts[r] elements belong to rank r, packed in rank order. All ranks pass the
  // same counts. In all_gather_v, src.count = counts[rank] and dst.count is the sum of counts; in
  // reduce_scatter_v, src.count is the sum and dst.count = counts[rank]. The in-place forms are
  // those of all_gather and reduce_scatter.
  [[nodiscard]] Work all_gather_v(ConstView src, View dst, std::span<const std::uint64_t> counts,
                                  Stream& stream);
  [[nodiscard]] Work reduce_scatter_v(ConstView src, View dst,
                                      std::span<const std::uint64_t> counts, Reduction reduction,
                                      Stream& stream);
  // gather with counts[r] elements from rank r: src.count = counts[rank], and on `root` dst.count
  // is the sum of counts. In place on root: src is the root's part of dst.
  [[nodiscard]] Work gather_v(ConstView src, View dst, std::span<const std::uint64_t> counts,
                              int root, Stream& stream);
  // Sends send_counts[r] elements of src to rank r and receives recv_counts[r] elements of dst from
  // rank r, both packed in rank order. Every rank passes its own counts. The count that a rank
  // sends must equal the count that the receiver expects. On CPU memory a difference is
  // Error(mismatch); on a GPU the operation can hang until its timeout or give wrong data. src and
  // dst must not overlap.
  [[nodiscard]] Work all_to_all_v(ConstView src, std::span<const std::uint64_t> send_counts,
                                  View dst, std::span<const std::uint64_t> recv_counts,
                                  Stream& stream);
  // The same with one view for each rank, anywhere in memory. all_to_all_v: this rank sends src[r]
  // to rank r and receives dst[r] from rank r. gather_v: the root receives the src of rank r in
  // dst[r]. scatter_v: the root sends src[r] to rank r. Only the root reads its list; other ranks
  // may pass an empty one. Counts and dtypes may differ between views, but must be equal on the
  // sender and the receiver. A view that receives must not overlap another view. The library sends
  // messages for them.
  [[nodiscard]] Work all_to_all_v(std::span<const ConstView> src, std::span<const View> dst,
                                  Stream& stream);
  [[nodiscard]] Work gather_v(ConstView src, std::span<const View> dst, int root, Stream& stream);
  [[nodiscard]] Work scatter_v(std::span<const ConstView> src, View dst, int root, Stream& stream);
  // Point-to-point messages. A send is complete when src may be reused, which can be before the
  // receiver has the data. If the receiver expects another count or dtype, its operation throws
  // Error(mismatch), which shows both sides, and the communicator fails on all ranks, or the World
  // (Config::failure_scope). Ranks that send to each other, and a rank that sends to itself, use
  // group().
  //
  // With CommunicatorOptions::tags, a receive takes the earliest message that comes from `peer`, or
  // from any rank if `peer` is any_source, and has this tag, or any if `tag` is any_tag. Messages
  // with the same source and tag keep their order. Messages are independent of collectives, and
  // those on different streams do not wait for each other. Ranks may send to each other, and to
  // themselves, before they receive: the receiver keeps messages that no receive has asked for, up
  // to 256 MiB in all; a single larger message is kept as well. Above that, a send waits until a
  // receive takes its message, and so do later messages of the same sender, whatever their tag. A
  // send makes progress only while the receiver is in a send or recv of this communicator. Tags are
  // numbers from 0 to 2147483647.
  static constexpr int any_source = -1, any_tag = -1;
  [[nodiscard]] Work send(ConstView src, int peer, Stream& stream, int tag = 0);
  [[nodiscard]] Work recv(View dst, int peer, Stream& stream, int tag = 0);
  // The Work is complete when the streams of all ranks have reached the barrier.
  [[nodiscard]] Work barrier(Stream& stream);

  // Performs several sends and receives as one operation, so that they cannot deadlock each other.
  struct SendRecv {
    enum class Kind {
      send,
      recv
    } kind;
    View data;  // memory of the message; a send only reads the memory
    int peer;
    int tag = 0;
  };
  [[nodiscard]] Work group(std::span<const SendRecv> operations, Stream& stream);
  // Performs all operations that `calls` starts on this communicator and this thread as one
  // operation. They must use `stream`; another one is Error(invalid_argument). Nothing starts
  // before `calls` returns, so it must not wait for a result: the Works that it gets are empty. Use
  // the Work that group() returns. A group() inside `calls` joins the outer one. The messages come
  // first, as one group, then the collectives in the order of the calls, so no operation may need
  // the result of another one. Faster than single calls on NCCL, which launches consecutive
  // collectives together. If `calls` throws, nothing starts, and group() throws the same.
  [[nodiscard]] Work group(const std::function<void()>& calls, Stream& stream);

  // Returns the bytes of device memory that a sum without a factor needs besides src and dst: 0
  // when the backend computes the sum, more when the library builds the sum from other collectives.
  // `count` is dst.count of a reduce_scatter or src.count of an all_reduce. This scratch memory is
  // allocated at the first call that needs it and then kept.
  enum class Sum {
    reduce_scatter,
    all_reduce
  };
  std::uint64_t scratch_bytes(Sum sum, std::uint64_t count, DType dtype) const;
  // Allocates `bytes` of scratch memory in advance with atoll::allocate(), so that the backend
  // accesses it without a copy; scratch memory that the first call allocates is not registered with
  // the backend. Collective: all ranks pass the same number. Throws Error(invalid_argument) after
  // the first operation, and the errors of atoll::allocate().
  void reserve_scratch(std::uint64_t bytes);

  // Throws the error with which this communicator has ended on any rank, or World::failure(). Does
  // not block; any thread may call it.
  void check() const;
  // Returns another handle of this communicator, whose operations have the time limit `timeout`; -1
  // ms means CommunicatorOptions::timeout. All ranks must pass the same value.
  Communicator with_timeout(std::chrono::milliseconds timeout) const;

  // Returns the transports that this process uses. A backend that cannot tell its communicators
  // apart reports the transports of all of them.
  Transports transports() const;

  // Collective, like MPI_Comm_split: ranks of one color form a new communicator, ordered by key and
  // then by rank. A rank without a color gets no communicator. The new communicator has the same
  // backend and device; without `name` it is called NAME.COLOR.
  std::optional<Communicator> split(std::optional<int> color, int key = 0,
                                    std::string name = {}) const;

  // Ends this communicator on all its ranks. The World does not fail, and other communicators can
  // still be used. Operations in flight fail with Error(aborted), which names this rank and
  // `reason`; later calls throw this error. The data of failed operations is undefined, and their
  // streams fail as after other errors. Returns at once: the store tells the other ranks. Any
  // thread may call it; only the first call counts. If several ranks call it at the same time, this
  // is the first one that reaches the store. An operation that fails before its rank learns of it
  // reports the abort() of its own rank. Calls of allocate() and register_memory() in progress fail
  // as well. Destroy the communicator as usual.
  void abort(std::string_view reason);

  struct ATOLL_LOCAL Impl;  // this struct is defined in src/comm/communicator_impl.hpp

 private:
  friend Buffer allocate(const Device& device, std::size_t bytes,
                         std::span<const std::reference_wrapper<Communicator>> communicators);
  friend Buffer allocate_alone(const Device& device, std::size_t bytes,
                               std::span<const std::reference_wrapper<Communicator>> communicators);
  friend Registration register_memory(
      void* memory, std::size_t bytes,
      std::span<const std::reference_wrapper<Communicator>> communicators);
  ATOLL_LOCAL explicit Communicator(std::shared_ptr<Impl> impl);
  Implementation<std::shared_ptr<Impl>> impl_;
};

// Allocates memory that `communicators` access on their fastest path: the memory is registered with
// each communicator, and CPU memory is mapped by all ranks on this host. Collective over each of
// the communicators, in the same order and with the same size on all ranks. The memory is filled
// with zeros and aligned to 4,096 bytes.
//
// Before a rank touches a page, the ranks compare sizes and free memory. All ranks then throw the
// same error: Error(mismatch) for different sizes, and Error(out_of_memory) if the CPU memory of
// all ranks of a host together does not fit into the free memory of the host, or the size exceeds
// a limit of a rank (control group, ulimit), and Error(invalid_argument) if a rank names a
// communicator twice. If a rank does not call the function before the communicator's timeout, the
// others throw Error(timeout), which names the rank.
//
// A rank may destroy its Buffer as soon as no rank uses the memory, independently of the other
// ranks. If it destroys the Buffer earlier, for example while an exception unwinds, the memory
// stays mapped for the operations in flight. CPU memory is freed after each communicator has
// performed an operation that was called later, or is destroyed; GPU memory is freed when all
// communicators are destroyed. A Buffer may outlive the communicators. Collectives accept other
// memory too, but are slower with it; see register_memory().
ATOLL_API Buffer allocate(const Device& device, std::size_t bytes,
                          std::span<const std::reference_wrapper<Communicator>> communicators);
inline Buffer allocate(const Device& device, std::size_t bytes,
                       std::initializer_list<std::reference_wrapper<Communicator>> communicators) {
  return allocate(device, bytes, std::span(communicators.begin(), communicators.size()));
}

// Allocates memory on this rank alone, for allocators that grow when one rank needs more. Not
// collective. Blocks until the collectives that are enqueued on the communicators are complete. The
// memory is registered with each backend that can register the memory of one rank: verbs, and nccl
// by ncclCommRegister, after which a collective must get registered memory on all ranks or on none.
// Other ranks of the host do not map the memory. The destructor of the Buffer waits for earlier
// collectives; messages with tags keep the memory until they are complete. 0 bytes give an empty
// Buffer. Errors are thrown on this rank only, and the communicators stay usable:
// Error(out_of_memory), Error(invalid_argument) if a communicator is named twice, and the error of
// a communicator that has ended.
ATOLL_API Buffer
allocate_alone(const Device& device, std::size_t bytes,
               std::span<const std::reference_wrapper<Communicator>> communicators);
inline Buffer allocate_alone(
    const Device& device, std::size_t bytes,
    std::initializer_list<std::reference_wrapper<Communicator>> communicators) {
  return allocate_alone(device, bytes, std::span(communicators.begin(), communicators.size()));
}

// A registration of memory that the caller allocated. Move-only. The destructor calls deregister().
class ATOLL_API Registration {
 public:
  Registration();  // registers nothing
  Registration(Registration&&) noexcept;
  Registration& operator=(Registration&&) noexcept;
  ~Registration();

  // Ends the registration; the caller may then free the memory. Does not wait for other ranks, but
  // all ranks must end a registration between the same two operations. Blocks the host until the
  // enqueued operations of the communicators are complete, so it must not run in a task of a
  // stream. Does nothing if the registration has ended.
  void deregister() noexcept;
  // True if every communicator accesses the memory as fast as memory from allocate().
  bool fast() const noexcept;
  // Why fast() is false, and how operations access the memory instead; empty if fast() is true.
  const std::string& slow() const noexcept;

 private:
  friend Buffer allocate_alone(const Device& device, std::size_t bytes,
                               std::span<const std::reference_wrapper<Communicator>> communicators);
  friend Registration register_memory(
      void* memory, std::size_t bytes,
      std::span<const std::reference_wrapper<Communicator>> communicators);
  struct ATOLL_LOCAL State;  // this struct is defined in src/comm/memory.cpp
  ATOLL_LOCAL explicit Registration(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

// Registers [memory, memory + bytes), which the caller allocated with malloc, cudaMalloc, mmap or a
// framework, with `communicators`. Collective over each of them, in the same order and with the
// same size on all ranks. Operations accept the memory without a registration too. The effect
// depends on the backend; the READMEs of the backends list the costs:
//   host: memory of a shared mapping with a file (a memfd, a file in /dev/shm) becomes as fast as
//     memory from allocate(). The pages of malloc belong to one process, so a registration leaves
//     their cost as it is.
//   verbs: inside a host the same as `host`. Between hosts the adapters of this rank register the
//     memory once, and other ranks then write to it without a copy.
//   nccl: NCCL registers the memory with its networks and, where it can, with other GPUs. Then
//     either all ranks must pass registered memory in a call, at the same offset, or none.
//   mpi: a registration has no effect.
// The result tells whether the memory is fast, which may differ between ranks. The memory must not
// be freed, and its file must not shrink, before the registration has ended. Blocks until earlier
// operations of the communicators are complete. Throws Error(invalid_argument) for no communicator.
// If a rank passes null, 0 bytes, CPU memory that is not mapped, memory that overlaps memory which
// a communicator has registered or allocated, or a communicator twice, all ranks throw its
// Error(invalid_argument). If sizes differ, all ranks throw Error(mismatch); if a rank is absent,
// the others throw Error(timeout) as in allocate().
[[nodiscard]] ATOLL_API Registration
register_memory(void* memory, std::size_t bytes,
                std::span<const std::reference_wrapper<Communicator>> communicators);
[[nodiscard]] inline Registration register_memory(
    void* memory, std::size_t bytes,
    std::initializer_list<std::reference_wrapper<Communicator>> communicators) {
  return register_memory(memory, bytes, std::span(communicators.begin(), communicators.size()));
}

// Describes a backend that the loader found in the plugin path.
struct BackendInfo {
  std::string name;
  std::string file;
  std::string unusable;  // why this process cannot use the backend; empty when it can
  int preference = 0;    // the usable backend with the highest preference is chosen
};
// Loads every backend in the plugin path and probes whether it supports this kind of memory. Not
// collective.
ATOLL_API std::vector<BackendInfo> available_backends(World& world,
                                                      DeviceKind kind = DeviceKind::cpu);

}  // namespace atoll_v1::atoll
