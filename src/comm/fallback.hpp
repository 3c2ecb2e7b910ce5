// Collectives that core builds from other operations, for backends that lack them or cannot add in
// the requested order.
//
// A fallback sees the group of ranks through FallbackContext alone. It enqueues groups of
// operations and local work on one stream; nothing here waits.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/group_shape.hpp"
#include "comm/operation.hpp"

namespace atoll_v1::atoll {

class BackendGroup;

// The call of a user that a fallback performs, and everything that the fallback may use.
class FallbackContext {
 public:
  FallbackContext(BackendGroup& group, const Operation& called,
                  const std::shared_ptr<Work::State>& work, Stream& on);
  // The same call and stream, with `other` as the operation to build.
  FallbackContext with(const Operation& other) const;

  std::uint64_t ranks() const { return shape.ranks; }
  std::uint64_t rank() const { return shape.rank; }
  const Device& device() const;
  std::span<const int> world_ranks() const;  // ranks of the World, by rank of the group
  std::uint64_t sequence() const;            // number of the next operation of the communicator
  bool performs(std::int32_t kind, DType dtype, ReduceOp op) const;  // the backend supports it

  // Enqueues the operations as one group of the backend, recorded as parts of the call.
  void submit(std::vector<Operation> parts) const;
  void submit_to(BackendGroup& group, std::vector<Operation> parts) const;
  // Enqueues the messages that are not empty as one group.
  void submit_messages(std::vector<Operation> messages) const;
  // Memory of the communicator that all fallbacks share; valid until the call is complete.
  View scratch(std::uint64_t count, DType dtype) const;
  void copy_unless_there(View dst, ConstView src) const;
  // Runs `find` on the stream's thread, on host memory only. When it returns a text, the ranks
  // called different operations, and the call fails with it on every rank.
  void enqueue_check(std::function<std::string()> find) const;

  const GroupShape& shape;
  const Operation& operation;
  const std::shared_ptr<Work::State>& state;
  Stream& stream;

 private:
  BackendGroup& group_;
  std::int32_t called_;  // kind that the user called
};

// Messages between two ranks match in the order of the calls.
Operation send_to(std::uint64_t peer, ConstView data);
Operation receive_from(std::uint64_t peer, View data);

// Each block goes directly from its rank to the ranks that need it, in messages.
void fallback_gather(const FallbackContext& call);
void fallback_scatter(const FallbackContext& call);
void fallback_all_gather_v(const FallbackContext& call);
// The exchange of a reduce_scatter_v: `parts` receives counts[rank] elements from every rank,
// packed in rank order.
void exchange_v(const FallbackContext& call, ConstView src, View parts);

// A sum of `ranks` parts of dst.count elements each, in rank order, on this rank.
struct LocalSum {
  View dst;
  ConstView parts;
  std::uint64_t ranks;
  ReduceOp op;
  int block;
  const double* factors = nullptr;  // one per part, in host memory; null means that all are 1
  std::uint64_t divisor = 0;        // divisor of an average; 0 means `ranks`
};
void sum(const FallbackContext& call, const LocalSum& what);

// True when this sum goes level by level, which it does where that saves bytes between hosts.
bool sums_by_levels(const GroupShape& shape, const Operation& operation);
// Cuts src into slices, slice r of counts[r] elements, and writes this rank's sum over all ranks to
// dst. `scratch` has scratch_of_levels() bytes, which is bounded.
void sum_by_levels(const FallbackContext& call, ConstView src,
                   std::span<const std::uint64_t> counts, View dst, View scratch);
std::uint64_t scratch_of_levels(const GroupShape& shape, const Operation& operation,
                                std::span<const std::uint64_t> counts);

// Ranks exchange which operation they called, in `room`, host memory of bytes_of_agreement(); a
// difference fails the call. Returns the factors of all ranks, valid in stream order from there on;
// null on another device than the host, where the only factor is 1.
const double* agree(const FallbackContext& call, View room);
std::uint64_t bytes_of_agreement(const GroupShape& shape);

// Built from moves and local sums in f32 or wider, in rank order. In one level each rank sends
// (n - 1) / n of the data, as a ring does, and twice that for all_reduce.
void fallback_reduce_scatter(const FallbackContext& call);
void fallback_reduce_scatter_v(const FallbackContext& call);
void fallback_all_reduce(const FallbackContext& call);
void fallback_reduce(const FallbackContext& call);
// Bytes of scratch memory of a fallback reduce_scatter or all_reduce.
std::uint64_t scratch_of_sum(const GroupShape& shape, const Operation& operation);

}  // namespace atoll_v1::atoll
