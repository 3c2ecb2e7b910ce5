// Rings: every rank passes on to the next one what it got from the one before, N - 1 times.
//
// Bytes on the wire. (N - 1) / N S out of and into each rank, and, where the ranks of a host stand in
// a row, each way per host: less than flat, more than two_level. Here to be compared with, and for
// networks that take one neighbour at a time best.
#include "host/collectives.hpp"

namespace atoll_sdk::host {
namespace {

const atoll_sdk::Block& block_at(const std::vector<atoll_sdk::Block>& blocks, int rank) {
  const int n = static_cast<int>(blocks.size());
  return blocks[static_cast<std::size_t>((rank % n + n) % n)];
}

}  // namespace

void ring_all_gather(Comm& comm, const std::vector<atoll_sdk::Block>& blocks, std::byte* dst,
                     atoll_sdk::Exchange& exchange) {
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  for (int step = 0; step + 1 < comm.size(); ++step) {
    const auto& out = block_at(blocks, comm.rank() - step);
    const auto& in = block_at(blocks, comm.rank() - step - 1);
    exchange.send(next, {dst + out.offset, out.bytes});
    const auto ticket = exchange.recv(previous, {dst + in.offset, in.bytes});
    exchange.run_until_received(previous, ticket);
  }
}

void ring_reduce_scatter(Comm& comm, const std::vector<atoll_sdk::Block>& blocks, std::byte* out,
                         const atoll_operation& operation, atoll_sdk::Exchange& exchange) {
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  const std::size_t element = atoll_sdk::dtype_size(operation.dtype);
  std::size_t largest = 0;
  for (const auto& block : blocks) largest = std::max(largest, block.bytes);
  // The sum that arrives and the one that leaves.
  const auto scratch = comm.group().scratch(2 * largest);
  const double factor = atoll_sdk::factor_of(operation);
  auto part = operation;
  if (operation.op == ATOLL_AVG) part.op = ATOLL_SUM;
  // Block b starts at rank b + 1, so that it ends at rank b.
  const auto& first = block_at(blocks, comm.rank() - 1);
  const void* own = source(operation) + first.offset;
  comm.reduce(scratch.data(), {&own, 1}, factor == 1.0 ? nullptr : &factor, first.bytes / element,
              part);
  std::size_t leaving = 0;
  for (int step = 1; step < comm.size(); ++step) {
    const auto& sent = block_at(blocks, comm.rank() - step);
    const auto& got = block_at(blocks, comm.rank() - step - 1);
    const bool last = step + 1 == comm.size();
    std::byte* to = scratch.data() + (largest - leaving);
    const auto out_ticket = exchange.send(next, {scratch.data() + leaving, sent.bytes});
    exchange.run_until_received(previous, exchange.recv(previous, {to, got.bytes}));
    const void* parts[] = {to, source(operation) + got.offset};
    const double factors[] = {1.0, factor};
    void* result = last ? out : to;
    comm.group().reduce({sizeof(atoll_reduction), &result, parts, factor == 1.0 ? nullptr : factors,
                         1, 2, got.bytes / element, operation.dtype, last ? operation.op : part.op,
                         comm.size(), 0});
    exchange.run_until_sent(next, out_ticket);
    leaving = largest - leaving;
  }
}

}  // namespace atoll_sdk::host
