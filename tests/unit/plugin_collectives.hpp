// Runs a collective on all ranks, out of place and in place, and compares it with its closed form.
#pragma once

#include <cstdint>

#include "plugin_ranks.hpp"

namespace plugin_ranks {

// Makes one assertion per operation, because millions of CHECKs are slow.
void expect_ok(const Result& result);

void check_all_gather(Rank& rank, std::int32_t dtype, std::uint64_t count);
void check_reduce_scatter(Rank& rank, std::int32_t dtype, std::int32_t op, std::uint64_t count);
void check_all_reduce(Rank& rank, std::int32_t dtype, std::int32_t op, std::uint64_t count);
void check_reduce(Rank& rank, std::int32_t dtype, std::int32_t op, std::uint64_t count, int root);
void check_broadcast(Rank& rank, std::int32_t dtype, std::uint64_t count, int root);
void check_all_to_all(Rank& rank, std::int32_t dtype, std::uint64_t count);

// A message with all of `data` to or from `peer`.
atoll_operation message(const Rank& rank, std::int32_t kind, int peer, Bytes& data);
// Every rank exchanges two messages with every rank, including itself, in one group.
void check_messages(Rank& rank, std::uint64_t count);

}  // namespace plugin_ranks
