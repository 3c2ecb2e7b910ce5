// Collectives that core builds from others, for backends that lack them.
#pragma once

#include <utility>
#include <vector>

#include "comm/communicator_impl.hpp"

namespace atoll_v1::atoll {

// One call on its way: what was asked, and where its pieces are enqueued.
struct Call {
  Communicator::Impl& impl;
  const Request& request;
  const std::shared_ptr<Work::State>& state;
  Stream& stream;
  std::int32_t called = request.kind;  // by the user

  // Enqueues a group of its pieces.
  void submit(std::vector<Request> pieces) const {
    for (Request& piece : pieces) piece.part_of = called;
    impl.submit(std::move(pieces), state, stream);
  }
  std::uint64_t ranks() const { return static_cast<std::uint64_t>(impl.axis.size()); }
  std::uint64_t rank() const { return static_cast<std::uint64_t>(impl.axis.index); }
};

// Out of messages. Each block goes straight from where it is to where it belongs.
void composed_gather(const Call& call);
void composed_scatter(const Call& call);
void composed_all_gather_v(const Call& call);
// Brings counts[rank] elements of every rank together, packed in rank order; src is as of
// reduce_scatter_v.
void exchange_v(const Call& call, ConstView src, View parts);

// Out of moves and local sums in f32 or wider, in rank order. Each rank sends (n - 1) / n of the
// data once (twice for all_reduce), as a ring would.
void composed_reduce_scatter(const Call& call);
void composed_reduce_scatter_v(const Call& call);
void composed_all_reduce(const Call& call);
void composed_reduce(const Call& call);

}  // namespace atoll_v1::atoll
