// The algorithms, one file each. A caller has checked the operation (atoll_sdk::check_operation).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "atoll/plugin.h"
#include "host/comm.hpp"
#include "sdk/describe.hpp"
#include "sdk/exchange.hpp"

namespace atoll_sdk::host {

void all_gather(Comm& comm, const atoll_operation& operation);
void reduce_scatter(Comm& comm, const atoll_operation& operation);
void all_reduce(Comm& comm, const atoll_operation& operation);
void broadcast(Comm& comm, const atoll_operation& operation);
void all_to_all(Comm& comm, const atoll_operation& operation);
void barrier(Comm& comm, const atoll_operation& operation);
// A group of messages.
void send_recv(Comm& comm, std::span<atoll_operation* const> messages);

// The receiving half of reduce_scatter, which all_reduce shares: takes `count` elements from every
// peer, chunk by chunk, and reduces them with `own` in rank order into `dst` (which may be `own`).
void receive_and_reduce(Comm& comm, atoll_sdk::Exchange& exchange, std::span<const std::byte> own,
                        std::byte* dst, const atoll_operation& operation);

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
// Nothing to do in place.
inline void copy(std::byte* dst, const std::byte* src, std::size_t size) {
  if (size > 0 && dst != src) std::memcpy(dst, src, size);
}

}  // namespace atoll_sdk::host
