// The collectives on host memory, one file each, over any Transport.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "atoll/plugin.h"
#include "collectives/block.hpp"
#include "collectives/exchange.hpp"
#include "collectives/group.hpp"

namespace atoll_collectives {

// True for the operations that submit() performs: every kind, dtype and op on host memory.
std::int32_t capability(std::int32_t kind, std::int32_t dtype, std::int32_t op,
                        std::int32_t memory) noexcept;

// Checks and performs `operations`. Consecutive sends and receives progress together; collectives
// run in order. After an exception other than a refused argument the group must not be used again.
void check(const Group& group, std::span<atoll_operation* const> operations);
void submit(Group& group, std::span<atoll_operation* const> operations);

// The functions below require arguments that check() has accepted.
void all_gather(Group& group, const atoll_operation& operation);      // also all_gather_v
void reduce_scatter(Group& group, const atoll_operation& operation);  // also reduce_scatter_v
void all_reduce(Group& group, const atoll_operation& operation);
void reduce(Group& group, const atoll_operation& operation);
void broadcast(Group& group, const atoll_operation& operation);
void gather(Group& group, const atoll_operation& operation);
void scatter(Group& group, const atoll_operation& operation);
void all_to_all(Group& group, const atoll_operation& operation);
void barrier(Group& group, const atoll_operation& operation);
void send_recv(Group& group, std::span<atoll_operation* const> messages);

// The receiving half of a flat reduce_scatter, shared with all_reduce and reduce: receives the
// bytes that match `own` from every peer, chunk by chunk, and reduces them with `own` in rank order
// into `dst`. dst may be `own`.
void receive_and_reduce(Group& group, Exchange& exchange, std::span<const std::byte> own,
                        std::byte* dst, const atoll_operation& operation);

// Ring algorithms. Before ring_all_gather() `dst` holds this rank's block at its place.
void ring_all_gather(Group& group, const std::vector<Block>& blocks, std::byte* dst,
                     Exchange& exchange);
// Writes the sum of this rank's block to `out`.
void ring_reduce_scatter(Group& group, const std::vector<Block>& blocks, std::byte* out,
                         const atoll_operation& operation, Exchange& exchange);

// Compares signatures with the ranks of other hosts that two-level algorithms exchange data with.
inline void compare_with_counterparts(Group& group, Exchange& exchange) {
  for (const int rank : group.layout.counterparts(group.rank())) exchange.compare_with(rank);
}

inline const std::byte* source(const atoll_operation& operation) {
  return static_cast<const std::byte*>(operation.src);
}
inline std::byte* destination(const atoll_operation& operation) {
  return static_cast<std::byte*>(operation.dst);
}
// `operation.count` in bytes.
inline std::size_t bytes(const atoll_operation& operation) {
  return operation.count * dtype_size(operation.dtype);
}
// Offset of a rank's block in a buffer with one block of equal size per rank.
inline std::size_t block(int rank, std::size_t block_bytes) {
  return static_cast<std::size_t>(rank) * block_bytes;
}
inline void copy(std::byte* dst, const std::byte* src, std::size_t size) {
  if (size > 0 && dst != src) std::memcpy(dst, src, size);
}

// Calls body(rank, Block) for each rank of an all_gather or reduce_scatter, even or _v.
template <class Body>
void for_each_block(const Group& group, const atoll_operation& operation, const Body& body) {
  const std::size_t element = dtype_size(operation.dtype);
  const bool uneven = is_uneven(operation.kind);
  std::size_t offset = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::size_t size = (uneven ? operation.counts[rank] : operation.count) * element;
    body(rank, Block{offset, size});
    offset += size;
  }
}

// The whole tensor of an all_gather or reduce_scatter, cut into one block per rank.
struct Partition {
  Partition(const Group& group, const atoll_operation& operation) {
    for_each_block(group, operation, [&](int, const Block& one) { blocks.push_back(one); });
    own = blocks[static_cast<std::size_t>(group.rank())];
    whole = blocks.back().offset + blocks.back().bytes;
  }
  std::vector<Block> blocks;
  Block own{};
  std::size_t whole = 0;
};

}  // namespace atoll_collectives
