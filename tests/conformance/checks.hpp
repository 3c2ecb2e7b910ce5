// Declares all checks of the conformance suite. Every rank calls the checks in the same order.
#pragma once

#include <span>
#include <vector>

#include "atoll/communicator.hpp"
#include "check.hpp"

namespace conformance {

// The context of the checks on one rank: a communicator over all ranks, a stream for its
// operations, and a report of the results.
struct Rank {
  atoll::World& world;
  atoll::Communicator& comm;
  atoll::Stream& stream;
  Report& report;
  // Registered memory from which src and dst of each operation are taken; null means that plain
  // memory is allocated.
  Arena* source = nullptr;
  Arena* target = nullptr;
  // Number of neighbouring ranks that a sum adds first (Axis::block). 0: one tree over all ranks.
  int axis_block = 0;

  int rank() const { return comm.rank(); }
  int size() const { return comm.size(); }
  int block() const { return axis_block > 0 ? axis_block : size(); }
  std::string backend() const { return std::string(comm.backend()); }
  // True for the host backend and for test backends that sum like the host backend.
  bool sums_as_host() const;
  // True if sums of 16-bit types are rounded once per host and once more between hosts.
  bool rounds_per_level(DType dtype) const;
  // Largest error that rounding once per host may add to the result of a reduction of
  // contribution() values.
  double slack(DType dtype, ReduceOp op) const;
};

// Gathers one number from each rank of `comm` and returns the numbers in rank order.
std::vector<std::int64_t> all_say(const Rank& self, atoll::Communicator& comm, std::int64_t mine);

// The functions move*() run every operation that only moves data, and reduce*() every reduction,
// out of place and in place. The checks of registered memory and of split communicators also call
// them, with a different memory or communicator in `self`.
void move(Rank& self, DType dtype, std::uint64_t count);
void reduce(Rank& self, DType dtype, ReduceOp op, std::uint64_t count);
void move_rooted(Rank& self, DType dtype, std::uint64_t count, int root);
void reduce_rooted(Rank& self, DType dtype, ReduceOp op, std::uint64_t count, int root);
void move_uneven(Rank& self, DType dtype, std::span<const std::uint64_t> counts);
void reduce_uneven(Rank& self, DType dtype, ReduceOp op, std::span<const std::uint64_t> counts);
// Returns several uneven distributions of about `count` elements per rank. Some ranks get no
// elements.
std::vector<std::vector<std::uint64_t>> uneven_counts(int ranks, std::uint64_t count);

void check_all_gather(Rank& self);
void check_broadcast(Rank& self);
void check_all_to_all(Rank& self);

void check_reduce_scatter(Rank& self);
void check_all_reduce(Rank& self);
// Checks that floating point sums follow a tree of adjacent pairs, if the backend guarantees this
// order.
void check_order_of_summation(Rank& self);
// True if the order of sums is fixed for the number of hosts and ranks of this job.
bool has_order_of_summation(const Rank& self);
// Runs all reductions on a mesh with a shard count that is not a power of two. The library computes
// these sums itself.
void check_sums_in_blocks(Rank& self);
bool has_sums_in_blocks(const Rank& self);

void check_gather(Rank& self);
void check_scatter(Rank& self);
void check_reduce(Rank& self);
void check_all_gather_v(Rank& self);
void check_reduce_scatter_v(Rank& self);
void check_gather_v(Rank& self);
void check_all_to_all_v(Rank& self);
// Checks every reduction with factors that differ between ranks.
void check_factors(Rank& self);

void check_send_recv(Rank& self);
void check_group(Rank& self);
void check_tags(Rank& self);
void check_barrier(Rank& self);

void check_wait_orders_streams(Rank& self);
void check_calls_return_at_once(Rank& self);
void check_order_across_streams(Rank& self);
void check_many_in_flight(Rank& self);
void check_two_communicators(Rank& self);
void check_mesh_axes(Rank& self);
// Checks that enqueued operations finish while the calling thread computes and makes no calls.
void check_progress_beside_compute(Rank& self);

void check_split(Rank& self);
// Check the settings of a communicator, and that abort() ends one communicator only.
void check_settings(Rank& self);
void check_abort(Rank& self);

// Check memory from atoll::allocate: operations in it, mixtures of it and plain memory, and
// allocations and frees in any order.
void check_registered_memory(Rank& self);
void check_mixed_memory(Rank& self);
void check_allocation(Rank& self);
// Checks memory that the caller allocated and registered with atoll::register_memory.
void check_caller_memory(Rank& self);
// Checks counts beyond 2^31. The suite runs this check only when ATOLL_TEST_LARGE is set, because
// it needs up to 4 GiB per rank.
void check_large_counts(Rank& self);

// Checks that a wrong argument throws on the rank that passes it and does not affect other ranks.
void check_invalid_arguments(Rank& self);
void check_unknown_backend(Rank& self);

}  // namespace conformance
