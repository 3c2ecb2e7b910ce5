// Functions that run a collective on one rank, out of place and in place, and compare the result
// with its closed form.
#pragma once

#include <cstdint>
#include <vector>

#include "unit/plugin/ranks.hpp"

namespace plugin_ranks {

// Compares all elements but makes only one assertion per operation, because millions of CHECKs are
// slow.
void expect_ok(const Result& result);

void check_all_gather(Rank& rank, std::int32_t dtype, std::uint64_t count);
void check_reduce_scatter(Rank& rank, std::int32_t dtype, std::int32_t op, std::uint64_t count);
void check_all_reduce(Rank& rank, std::int32_t dtype, std::int32_t op, std::uint64_t count);
void check_reduce(Rank& rank, std::int32_t dtype, std::int32_t op, std::uint64_t count, int root);
void check_broadcast(Rank& rank, std::int32_t dtype, std::uint64_t count, int root);
void check_all_to_all(Rank& rank, std::int32_t dtype, std::uint64_t count);

// Returns a send or recv of all of `data` to or from `peer`.
atoll_operation message(const Rank& rank, std::int32_t kind, int peer, Bytes& data);
// Exchanges two messages with every rank, including this rank itself, in one group, and checks the
// received data.
void check_messages(Rank& rank, std::uint64_t count);
// Sums and gathers f32 blocks by reduce_scatter_v and all_gather_v; rank r has counts[r] elements.
void check_blocks(Rank& rank, const std::vector<std::uint64_t>& counts);

}  // namespace plugin_ranks
