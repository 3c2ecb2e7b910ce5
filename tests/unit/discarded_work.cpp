// Calls that return a Work. check_discarded_work compiles this file and expects a warning about
// each line that ends with "// discards", and about no other line.
#include <cstdint>
#include <span>
#include <tuple>

#include "atoll/communicator.hpp"
#include "atoll/schedule.hpp"

using Counts = std::span<const std::uint64_t>;
using Messages = std::span<const atoll::Communicator::SendRecv>;

void call(atoll::Communicator& comm, atoll::View data, Counts counts, atoll::Stream& stream) {
  constexpr auto sum = atoll::ReduceOp::sum;
  comm.all_gather(data, data, stream);                     // discards
  comm.reduce_scatter(data, data, sum, stream);            // discards
  comm.all_reduce(data, data, sum, stream);                // discards
  comm.reduce(data, data, sum, 0, stream);                 // discards
  comm.broadcast(data, 0, stream);                         // discards
  comm.all_to_all(data, data, stream);                     // discards
  comm.gather(data, data, 0, stream);                      // discards
  comm.scatter(data, data, 0, stream);                     // discards
  comm.all_gather_v(data, data, counts, stream);           // discards
  comm.reduce_scatter_v(data, data, counts, sum, stream);  // discards
  comm.gather_v(data, data, counts, 0, stream);            // discards
  comm.all_to_all_v(data, counts, data, counts, stream);   // discards
  comm.send(data, 0, stream);                              // discards
  comm.recv(data, 0, stream);                              // discards
  comm.barrier(stream);                                    // discards
  comm.group(Messages(), stream);                          // discards
  const atoll::Work kept = comm.all_reduce(data, data, sum, stream);
  kept.wait(stream);
  comm.barrier(stream).synchronize();
  std::ignore = comm.broadcast(data, 0, stream);
}

void call(atoll::Scheduler& scheduler, atoll::View data, const atoll::Event& after) {
  scheduler.all_gather(data, data, after);            // discards
  scheduler.all_gather_secondary(data, data, after);  // discards
  scheduler.reduce_scatter(data, data, after);        // discards
  scheduler.all_reduce(data, after);                  // discards
  std::ignore = scheduler.all_reduce(data, after, "gradients");
}
