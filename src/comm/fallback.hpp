// Fallbacks: collectives that the library builds from other operations, for backends that lack them
// or cannot add in the requested order.
//
// A fallback enqueues groups of operations and local work on one stream, and never waits.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/group_shape.hpp"
#include "comm/operation.hpp"
#include "device/ops.hpp"

namespace atoll_v1::atoll {

class BackendCommunicator;

// The call of the user that a fallback performs, and the functions that the fallback may use. A
// fallback uses nothing else of the backend's group.
class ATOLL_LOCAL FallbackContext {
 public:
  // `intra` is the group of the ranks of this host, or null if no such group is open.
  FallbackContext(BackendCommunicator& group, const Operation& called,
                  const std::shared_ptr<Work::State>& work, Stream& on, BackendCommunicator* intra);
  // Returns a context with the same call and stream, but with `other` as the operation to build.
  FallbackContext with(const Operation& other) const;

  std::uint64_t ranks() const { return shape.ranks; }
  std::uint64_t rank() const { return shape.rank; }
  DeviceOps& ops() const;
  std::span<const int> world_ranks() const;  // ranks of the World, by rank of the communicator
  std::uint64_t sequence() const;            // number of the user's call
  bool backend_performs(std::int32_t kind, DType dtype, ReduceOp op) const;

  // Enqueues the operations as one group. The flight recorder lists them as parts of the user's
  // call.
  void submit(std::vector<Operation> parts) const;
  void submit_to(BackendCommunicator& other, std::vector<Operation> parts) const;
  // Enqueues an all_to_all among the ranks of this host, with blocks of `count` elements. Returns
  // false, and enqueues nothing, if these ranks have no group of their own.
  bool all_to_all_intra(ConstView src, View dst, std::uint64_t count) const;
  // Enqueues the messages that are not empty as one group.
  void submit_messages(std::vector<Operation> messages) const;
  // Returns memory of the communicator that all its fallbacks share; valid until the call is
  // complete.
  View scratch(std::uint64_t count, DType dtype) const;
  void copy_unless_there(View dst, ConstView src) const;
  // Runs `find` on the thread of the operation's stream; for CPU memory only. If the ranks called
  // different operations, `find` returns a text, and the operation fails with this text on every
  // rank.
  void enqueue_check(std::function<std::string()> find) const;

  const GroupShape& shape;
  const Operation& operation;
  const std::shared_ptr<Work::State>& state;
  Stream& stream;

 private:
  BackendCommunicator& group_;
  BackendCommunicator* intra_;
  std::int32_t called_;  // kind of the operation that the user called
};

// Messages between two ranks match in the order of the calls.
Operation send_to(std::uint64_t peer, ConstView data);
Operation receive_from(std::uint64_t peer, View data);

// Ranks at equal distances: first, first + step, ...
struct Peers {
  std::uint64_t first, step, count;
};
// Sends from(i) to peer i and receives to(i) from it, for all peers as one group. Copies the part
// of this rank itself.
template <class From, class To>
void exchange(const FallbackContext& call, const Peers& peers, const From& from, const To& to) {
  std::vector<Operation> messages;
  for (std::uint64_t i = 0; i < peers.count; ++i) {
    const std::uint64_t rank = peers.first + i * peers.step;
    if (rank == call.rank()) {
      call.copy_unless_there(to(i), from(i));
    } else {
      messages.push_back(send_to(rank, from(i)));
      messages.push_back(receive_from(rank, to(i)));
    }
  }
  call.submit_messages(std::move(messages));
}

// Operations that move data, for backends that lack them: each block is sent in a message, directly
// from its rank to the ranks that need the block.
void fallback_gather(const FallbackContext& call);  // performs gather and gather_v
// On CPU memory the ranks first tell each other how much they send, and the call fails if a
// receiver expects another count.
void fallback_all_to_all_v(const FallbackContext& call);
void fallback_scatter(const FallbackContext& call);
void fallback_all_gather_v(const FallbackContext& call);
// The exchange of a reduce_scatter_v: `parts` receives counts[rank] elements from every rank,
// packed in rank order.
void exchange_v(const FallbackContext& call, ConstView src, View parts);

// A sum on this rank over parts of dst.count elements each, added in rank order.
struct LocalSum {
  View dst;
  ConstView parts;
  ReduceOp op;
  int block;
  // One factor per part, in CPU memory; null means that every factor is 1.
  const double* factors = nullptr;
  std::uint64_t divisor = 0;  // divisor of an average; 0 means the number of parts
};
void sum(const FallbackContext& call, const LocalSum& what);

// Returns true when the sum is computed first inside hosts and then across hosts, which is done
// when it sends fewer bytes between hosts.
bool sums_by_levels(const GroupShape& shape, const Operation& operation);
// Cuts src into slices, where slice r has counts[r] elements. Sums this rank's slice over all
// ranks, level by level, and writes the sum to dst. `scratch` has scratch_of_levels() bytes, which
// do not grow with the data.
void sum_by_levels(const FallbackContext& call, ConstView src,
                   std::span<const std::uint64_t> counts, View dst, View scratch);
std::uint64_t scratch_of_levels(const GroupShape& shape, const Operation& operation,
                                std::span<const std::uint64_t> counts);

// The ranks tell each other which operation they called, and the call fails if the operations
// differ. `room` is CPU memory of bytes_of_agreement() bytes for the exchange. Returns the factors
// of all ranks, which later work on the stream may read. Returns null for GPU memory, where all
// factors have been applied before.
const double* agree(const FallbackContext& call, View room);
std::uint64_t bytes_of_agreement(const GroupShape& shape);

// Fallback reductions are built from data movement and local sums in f32 or wider, added in rank
// order. In one level each of n ranks sends (n - 1) / n of the data, as in a ring, and twice that
// for all_reduce.
void fallback_reduce_scatter(const FallbackContext& call);  // performs reduce_scatter(_v)
void fallback_all_reduce(const FallbackContext& call);
void fallback_reduce(const FallbackContext& call);
// Returns the bytes of scratch memory that a fallback reduce_scatter or all_reduce needs.
std::uint64_t scratch_of_sum(const GroupShape& shape, const Operation& operation);

}  // namespace atoll_v1::atoll
