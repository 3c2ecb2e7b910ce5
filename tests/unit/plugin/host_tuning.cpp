// Tests the built-in rules that choose algorithms, rule by rule, with sizes below and above each
// threshold. plugin_host_algorithms.cpp tests the algorithms themselves.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/tuning.hpp"

namespace {

using atoll_collectives::Algorithm;
using atoll_collectives::Tuning;

constexpr std::uint64_t KiB = 1024;

// Describes hosts that have equal numbers of consecutive ranks.
struct Job {
  int hosts = 2;
  int ranks_per_host = 1;
  std::string tuning{};
  std::int32_t deterministic = 0;
};

Algorithm choice(const Job& job, std::int32_t kind, std::uint64_t bytes,
                 std::int32_t dtype = ATOLL_F32) {
  const int ranks = job.hosts * job.ranks_per_host;
  std::vector<atoll_placement> places(static_cast<std::size_t>(ranks));
  std::vector<const atoll_placement*> pointers;
  for (int rank = 0; rank < ranks; ++rank) {
    auto& place = places[static_cast<std::size_t>(rank)];
    place.size = sizeof(place);
    place.host = rank / job.ranks_per_host;
    pointers.push_back(&place);
  }
  atoll_group group{};
  group.size = sizeof(group);
  group.nranks = ranks;
  group.placements = pointers.data();
  group.tuning = job.tuning.c_str();
  group.deterministic = job.deterministic;
  atoll_operation operation{};
  operation.size = sizeof(operation);
  operation.kind = kind;
  operation.dtype = dtype;
  return Tuning(group, atoll_collectives::layout_of(group)).choose(operation, bytes);
}

}  // namespace

TEST_CASE("built-in rules of all_gather and reduce_scatter") {
  for (const auto kind :
       {ATOLL_ALL_GATHER, ATOLL_REDUCE_SCATTER, ATOLL_ALL_GATHER_V, ATOLL_REDUCE_SCATTER_V}) {
    CAPTURE(kind);
    CHECK(choice({4, 1}, kind, 32 * KiB - 1) == Algorithm::flat);
    CHECK(choice({4, 1}, kind, 32 * KiB) == Algorithm::two_level);
    CHECK(choice({4, 1}, kind, 1024 * KiB - 1) == Algorithm::two_level);
    CHECK(choice({4, 1}, kind, 1024 * KiB) == Algorithm::ring);
    CHECK(choice({8, 1}, kind, 1024 * KiB) == Algorithm::two_level);
    CHECK(choice({8, 1}, kind, 2048 * KiB) == Algorithm::ring);
    CHECK(choice({3, 1}, kind, 64 * 1024 * KiB) == Algorithm::two_level);
    CHECK(choice({2, 2}, kind, 8) == Algorithm::two_level);
    CHECK(choice({4, 2}, kind, 64 * 1024 * KiB) == Algorithm::two_level);
  }
}

TEST_CASE("built-in rules never round 16-bit sums more often than flat") {
  CHECK(choice({2, 2}, ATOLL_REDUCE_SCATTER, 32 * KiB - 1, ATOLL_BF16) == Algorithm::flat);
  CHECK(choice({2, 2}, ATOLL_REDUCE_SCATTER, 32 * KiB, ATOLL_F16) == Algorithm::two_level);
  CHECK(choice({4, 1}, ATOLL_REDUCE_SCATTER, 1024 * KiB, ATOLL_BF16) == Algorithm::two_level);
  CHECK(choice({4, 1}, ATOLL_ALL_GATHER, 1024 * KiB, ATOLL_BF16) == Algorithm::ring);
  CHECK(choice({4, 1}, ATOLL_ALL_REDUCE, 8, ATOLL_BF16) == Algorithm::flat);
  CHECK(choice({4, 1}, ATOLL_ALL_REDUCE, 64 * KiB, ATOLL_BF16) == Algorithm::two_level);
  CHECK(choice({4, 1}, ATOLL_ALL_REDUCE, 4096 * KiB, ATOLL_F16) == Algorithm::two_level);
}

TEST_CASE("built-in rules of all_reduce") {
  const auto all_reduce = [](const Job& job, std::uint64_t kib) {
    return choice(job, ATOLL_ALL_REDUCE, kib * KiB);
  };
  for (const Job& job : {Job{2, 1}, Job{2, 2}, Job{3, 1}, Job{4, 1}, Job{4, 2}, Job{8, 1}}) {
    CAPTURE(job.hosts);
    CAPTURE(job.ranks_per_host);
    CHECK(all_reduce(job, 0) == Algorithm::doubling);
    CHECK(choice(job, ATOLL_ALL_REDUCE, 32 * KiB - 1) == Algorithm::doubling);
    CHECK(all_reduce(job, 32) == Algorithm::two_level);
    const bool halves = job.hosts >= 4;
    CHECK(all_reduce(job, 64) == (halves ? Algorithm::halving : Algorithm::two_level));
    CHECK(all_reduce(job, 1023) == (halves ? Algorithm::halving : Algorithm::two_level));
  }
  CHECK(all_reduce({4, 2}, 1024) == Algorithm::two_level);
  CHECK(all_reduce({4, 1}, 1024) == Algorithm::ring);
  CHECK(all_reduce({8, 1}, 2047) == Algorithm::halving);
  CHECK(all_reduce({8, 1}, 2048) == Algorithm::ring);
  CHECK(all_reduce({6, 1}, 64) == Algorithm::two_level);
  CHECK(all_reduce({3, 1}, 65536) == Algorithm::two_level);
}

TEST_CASE("built-in rules of collectives with a root and of all others") {
  CHECK(choice({4, 1}, ATOLL_REDUCE, 16 * KiB - 1) == Algorithm::flat);
  CHECK(choice({4, 1}, ATOLL_REDUCE, 16 * KiB) == Algorithm::two_level);
  CHECK(choice({2, 4}, ATOLL_BROADCAST, 64 * 1024 * KiB) == Algorithm::flat);
  CHECK(choice({3, 1}, ATOLL_BROADCAST, 64 * KiB - 1) == Algorithm::flat);
  CHECK(choice({3, 1}, ATOLL_BROADCAST, 64 * KiB) == Algorithm::chain);
  for (const auto kind : {ATOLL_GATHER, ATOLL_SCATTER, ATOLL_ALL_TO_ALL, ATOLL_BARRIER})
    CHECK(choice({4, 2}, kind, 1024 * KiB) == Algorithm::flat);
}

TEST_CASE("the user's rule overrides built-in rules, and determinism overrides both") {
  const std::string rules = "all_reduce 0 ring\nall_reduce 65536 halving";
  CHECK(choice({2, 1, rules}, ATOLL_ALL_REDUCE, 8) == Algorithm::ring);
  CHECK(choice({2, 1, rules}, ATOLL_ALL_REDUCE, 65536) == Algorithm::halving);
  CHECK(choice({2, 1, rules}, ATOLL_ALL_GATHER, 65536) == Algorithm::two_level);
  CHECK(choice({2, 1, rules, 1}, ATOLL_ALL_REDUCE, 8) == Algorithm::flat);
  CHECK(choice({2, 1, rules, 1}, ATOLL_ALL_REDUCE, 65536) == Algorithm::halving);
  // With three hosts, exchanges at distance 1 and 2 do not sum in an adjacent-pair tree, so flat is
  // chosen.
  CHECK(choice({3, 1, rules, 1}, ATOLL_ALL_REDUCE, 65536) == Algorithm::flat);
  // If the user sets no rule, the algorithm is that of the last built-in rule that matches and keeps
  // the order of the sum.
  CHECK(choice({4, 1, "", 1}, ATOLL_ALL_REDUCE, 4096 * KiB) == Algorithm::two_level);
  CHECK(choice({3, 2, "", 1}, ATOLL_REDUCE_SCATTER, 4096 * KiB) == Algorithm::two_level);
  CHECK(choice({2, 3, "", 1}, ATOLL_REDUCE_SCATTER, 4096 * KiB) == Algorithm::flat);
  CHECK(choice({4, 1, "", 1}, ATOLL_ALL_GATHER, 4096 * KiB) == Algorithm::ring);
}
