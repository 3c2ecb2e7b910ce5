// The algorithms, one file each. A caller has checked the operation (atoll_sdk::check_operation).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "atoll/plugin.h"
#include "host/comm.hpp"
#include "sdk/describe.hpp"
#include "collectives/exchange.hpp"
#include "collectives/two_level.hpp"

namespace atoll_sdk::host {

void all_gather(Comm& comm, const atoll_operation& operation);      // and all_gather_v
void reduce_scatter(Comm& comm, const atoll_operation& operation);  // and reduce_scatter_v
void all_reduce(Comm& comm, const atoll_operation& operation);
void reduce(Comm& comm, const atoll_operation& operation);
void broadcast(Comm& comm, const atoll_operation& operation);
void gather(Comm& comm, const atoll_operation& operation);
void scatter(Comm& comm, const atoll_operation& operation);
void all_to_all(Comm& comm, const atoll_operation& operation);
void barrier(Comm& comm, const atoll_operation& operation);
// A group of messages.
void send_recv(Comm& comm, std::span<atoll_operation* const> messages);

// The receiving half of a flat reduce_scatter, which all_reduce and reduce share: takes the bytes
// of `own` from every peer, chunk by chunk, and reduces them with `own` in rank order into `dst`
// (which may be `own`).
void receive_and_reduce(Comm& comm, atoll_sdk::Exchange& exchange, std::span<const std::byte> own,
                        std::byte* dst, const atoll_operation& operation);

// Rings. `dst` holds the own block in its place.
void ring_all_gather(Comm& comm, const std::vector<atoll_sdk::Block>& blocks, std::byte* dst,
                     atoll_sdk::Exchange& exchange);
// Leaves the own block's sum at `out`.
void ring_reduce_scatter(Comm& comm, const std::vector<atoll_sdk::Block>& blocks, std::byte* out,
                         const atoll_operation& operation, atoll_sdk::Exchange& exchange);

// Signatures with the ranks of other hosts that the algorithm exchanges data with.
inline void greet_twins(Comm& comm, atoll_sdk::Exchange& exchange) {
  for (const int rank : atoll_sdk::twins(comm.group().layout, comm.rank())) exchange.greet(rank);
}

inline const std::byte* source(const atoll_operation& operation) {
  return static_cast<const std::byte*>(operation.src);
}
inline std::byte* destination(const atoll_operation& operation) {
  return static_cast<std::byte*>(operation.dst);
}
// Bytes of `count` elements.
inline std::size_t bytes(const atoll_operation& operation) {
  return operation.count * atoll_sdk::dtype_size(operation.dtype);
}
// The block of rank `rank` in a buffer of one block per rank.
inline std::size_t block(int rank, std::size_t block_bytes) {
  return static_cast<std::size_t>(rank) * block_bytes;
}
// The blocks of all ranks in the whole tensor, of the even forms and of the _v forms.
std::vector<atoll_sdk::Block> blocks_of(const Comm& comm, const atoll_operation& operation);
// Nothing to do in place.
inline void copy(std::byte* dst, const std::byte* src, std::size_t size) {
  if (size > 0 && dst != src) std::memcpy(dst, src, size);
}

}  // namespace atoll_sdk::host
