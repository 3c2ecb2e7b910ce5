// One call of a collective on all ranks, out of place and in place, against its closed form.
#pragma once

#include <cstdint>

#include "plugin_ranks.hpp"

namespace plugin_ranks {

// One assertion per operation: millions of CHECKs would take their time.
void expect_ok(const Result& result);

void check_all_gather(Rank& rank, std::int32_t dtype, std::uint64_t count);
void check_reduce_scatter(Rank& rank, std::int32_t dtype, std::int32_t op, std::uint64_t count);
void check_all_reduce(Rank& rank, std::int32_t dtype, std::int32_t op, std::uint64_t count);
void check_reduce(Rank& rank, std::int32_t dtype, std::int32_t op, std::uint64_t count, int root);
void check_broadcast(Rank& rank, std::int32_t dtype, std::uint64_t count, int root);
void check_all_to_all(Rank& rank, std::int32_t dtype, std::uint64_t count);

// To or from `peer`: all of `data`.
atoll_operation message(const Rank& rank, std::int32_t kind, int peer, Bytes& data);
// Everybody, oneself included, exchanges two messages with everybody in one group.
void check_messages(Rank& rank, std::uint64_t count);

}  // namespace plugin_ranks
