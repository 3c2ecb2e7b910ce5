// Collectives that core builds from others, for backends that lack them.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/communicator_impl.hpp"

namespace atoll_v1::atoll {

// What is asked of a communicator.
struct Asked {
  Communicator::Impl& impl;
  const Request& request;

  std::uint64_t ranks() const { return static_cast<std::uint64_t>(impl.axis.size()); }
  std::uint64_t rank() const { return static_cast<std::uint64_t>(impl.axis.index); }
};

// One call on its way: where the pieces of it are enqueued.
struct Call : Asked {
  const std::shared_ptr<Work::State>& state;
  Stream& stream;
  std::int32_t called = request.kind;  // by the user

  // Enqueues a group of its pieces.
  void submit(std::vector<Request> pieces) const {
    for (Request& piece : pieces) piece.part_of = called;
    impl.submit(std::move(pieces), state, stream);
  }
};

// Messages between two ranks match in the order of their requests.
Request send(ConstView data, std::uint64_t peer);
Request receive(View data, std::uint64_t peer);
// Enqueues them as one group, but for empty ones.
void submit_messages(const Call& call, std::vector<Request> messages);
void copy_unless_there(const Call& call, View dst, ConstView src);

// Out of messages. Each block goes straight from where it is to where it belongs.
void composed_gather(const Call& call);
void composed_scatter(const Call& call);
void composed_all_gather_v(const Call& call);
// Brings counts[rank] elements of every rank together, packed in rank order; src is as of
// reduce_scatter_v.
void exchange_v(const Call& call, ConstView src, View parts);

// One local sum: `ranks` parts of dst.count elements, in rank order.
struct LocalSum {
  View dst;
  ConstView parts;
  std::uint64_t ranks;
  ReduceOp op;
  int block;
  const double* factors = nullptr;  // by part, on the host; NULL: all 1
  std::uint64_t divisor = 0;        // of avg; 0: `ranks`
};
void sum(const Call& call, const LocalSum& what);

// hosts: of the ranks of the axis, in their order; block: of the tree over all of them, 0 for none.
// None where there is one level, hosts have different numbers of ranks, or the ranks of a host
// are no subtree.
std::optional<Levels> levels_of(std::span<const int> hosts, int block);

// Whether this sum goes level by level: where that saves bytes between hosts.
bool sums_by_levels(const Asked& asked);
// The sum over all ranks of slices of src, slice r as long as counts[r]: this rank's, to dst.
// `scratch` is memory of as many bytes as the other function says, which is bounded.
void sum_by_levels(const Call& call, ConstView src, std::span<const std::uint64_t> counts, View dst,
                   View scratch);
std::uint64_t scratch_of_levels(const Asked& asked, std::span<const std::uint64_t> counts);

// All ranks tell each other what they called, in host memory of as many bytes as the other function
// says; calls that differ fail. The factors of all ranks, there from then on in the order of the
// stream; NULL on another device than the host's, where no factor but 1 is taken.
const double* agree(const Call& call, View room);
std::uint64_t bytes_of_agreement(const Asked& asked);

// Out of moves and local sums in f32 or wider, in rank order. In one level each rank sends
// (n - 1) / n of the data once (twice for all_reduce), as a ring would.
void composed_reduce_scatter(const Call& call);
void composed_reduce_scatter_v(const Call& call);
void composed_all_reduce(const Call& call);
void composed_reduce(const Call& call);
// Scratch memory that these take for a reduce_scatter or an all_reduce.
std::uint64_t scratch_of_sum(const Asked& asked);

}  // namespace atoll_v1::atoll
