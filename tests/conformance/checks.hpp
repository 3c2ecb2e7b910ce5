// The checks of the suite. Every rank calls all of them in one order.
#pragma once

#include "atoll/communicator.hpp"
#include "check.hpp"

namespace conformance {

// A communicator over all ranks, a stream for it, and where results go.
struct Rank {
  atoll::World& world;
  atoll::Communicator& comm;
  atoll::Stream& stream;
  Report& report;

  int rank() const { return comm.rank(); }
  int size() const { return comm.size(); }
  std::string backend() const { return std::string(comm.backend()); }
};

void check_all_gather(Rank& self);
void check_broadcast(Rank& self);
void check_all_to_all(Rank& self);

void check_reduce_scatter(Rank& self);
void check_all_reduce(Rank& self);
// Floating point sums in the order of an adjacent-pair tree, where the backend promises it.
void check_order_of_summation(Rank& self);

void check_send_recv(Rank& self);
void check_group(Rank& self);
void check_barrier(Rank& self);

void check_wait_orders_streams(Rank& self);
void check_calls_return_at_once(Rank& self);
void check_order_across_streams(Rank& self);
void check_many_in_flight(Rank& self);
void check_two_communicators(Rank& self);
void check_mesh_axes(Rank& self);

// Wrong arguments on one rank throw there, and the others do not notice.
void check_invalid_arguments(Rank& self);
void check_unknown_backend(Rank& self);

}  // namespace conformance
