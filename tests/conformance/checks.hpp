// The checks of the suite. Every rank calls all of them in one order.
#pragma once

#include <span>
#include <vector>

#include "atoll/communicator.hpp"
#include "check.hpp"

namespace conformance {

// A communicator over all ranks, a stream for it, and where results go.
struct Rank {
  atoll::World& world;
  atoll::Communicator& comm;
  atoll::Stream& stream;
  Report& report;
  Arena* source = nullptr;  // where src and dst of the operations are; none: memory of their own
  Arena* target = nullptr;
  int axis_block = 0;  // of the order of sums, as in Axis; 0: one tree over all ranks

  int rank() const { return comm.rank(); }
  int size() const { return comm.size(); }
  int block() const { return axis_block > 0 ? axis_block : size(); }
  std::string backend() const { return std::string(comm.backend()); }
  // The host backend, also where the library builds its levels.
  bool sums_as_host() const;
  // Whether sums of 16-bit types are rounded on each host and again between them.
  bool rounds_per_level(DType dtype) const;
  // What that may cost a reduction of contributions.
  double slack(DType dtype, ReduceOp op) const;
};

// What each rank of `comm` says, in their order.
std::vector<std::int64_t> all_say(const Rank& self, atoll::Communicator& comm, std::int64_t mine);

// Every operation of a kind, out of place and in place, for every root: what is true of one memory
// or communicator is to be true of another.
void move(Rank& self, DType dtype, std::uint64_t count);
void reduce(Rank& self, DType dtype, ReduceOp op, std::uint64_t count);
void move_rooted(Rank& self, DType dtype, std::uint64_t count, int root);
void reduce_rooted(Rank& self, DType dtype, ReduceOp op, std::uint64_t count, int root);
void move_uneven(Rank& self, DType dtype, std::span<const std::uint64_t> counts);
void reduce_uneven(Rank& self, DType dtype, ReduceOp op, std::span<const std::uint64_t> counts);
// Ways to share about `count` elements a rank unevenly, with zeros.
std::vector<std::vector<std::uint64_t>> uneven_counts(int ranks, std::uint64_t count);

void check_all_gather(Rank& self);
void check_broadcast(Rank& self);
void check_all_to_all(Rank& self);

void check_reduce_scatter(Rank& self);
void check_all_reduce(Rank& self);
// Floating point sums in the order of an adjacent-pair tree, where the backend promises it.
void check_order_of_summation(Rank& self);
// Whether sums have one order in this layout.
bool has_order_of_summation(const Rank& self);
// All reductions over an axis whose planned shards are no power of two, which the library builds.
void check_sums_in_blocks(Rank& self);
bool has_sums_in_blocks(const Rank& self);

void check_gather(Rank& self);
void check_scatter(Rank& self);
void check_reduce(Rank& self);
void check_all_gather_v(Rank& self);
void check_reduce_scatter_v(Rank& self);
// Factors that differ by rank, in every reduction.
void check_factors(Rank& self);

void check_send_recv(Rank& self);
void check_group(Rank& self);
void check_barrier(Rank& self);

void check_wait_orders_streams(Rank& self);
void check_calls_return_at_once(Rank& self);
void check_order_across_streams(Rank& self);
void check_many_in_flight(Rank& self);
void check_two_communicators(Rank& self);
void check_mesh_axes(Rank& self);
// What was enqueued is complete before a computation of known length, which calls nothing, ends.
void check_progress_beside_compute(Rank& self);

void check_split(Rank& self);

// Memory of atoll::allocate, alone and together with other memory.
void check_registered_memory(Rank& self);
void check_mixed_memory(Rank& self);
void check_allocation(Rank& self);
// Counts beyond 2^31, when ATOLL_TEST_LARGE is set: takes up to 4 GiB a rank.
void check_large_counts(Rank& self);

// Wrong arguments on one rank throw there, and the others do not notice.
void check_invalid_arguments(Rank& self);
void check_unknown_backend(Rank& self);

}  // namespace conformance
