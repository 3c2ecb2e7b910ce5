// Tests the built-in rules that choose algorithms, with sizes below and above the thresholds.
// host_algorithms.cpp tests the algorithms themselves.
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

TEST_CASE("the built-in rules choose by size and by number of hosts") {
  struct {
    std::int32_t kind;
    Job job;
    std::uint64_t kib;  // size from which `from` is chosen
    Algorithm below, from;
  } const rules[] = {
      {ATOLL_ALL_GATHER, {4, 1}, 32, Algorithm::flat, Algorithm::two_level},
      {ATOLL_ALL_GATHER, {4, 1}, 1024, Algorithm::two_level, Algorithm::ring},
      {ATOLL_REDUCE_SCATTER, {8, 1}, 2048, Algorithm::two_level, Algorithm::ring},
      {ATOLL_REDUCE_SCATTER_V, {4, 2}, 1024, Algorithm::two_level, Algorithm::two_level},
      {ATOLL_ALL_REDUCE, {2, 2}, 32, Algorithm::doubling, Algorithm::two_level},
      {ATOLL_ALL_REDUCE, {3, 1}, 64, Algorithm::two_level, Algorithm::two_level},
      {ATOLL_ALL_REDUCE, {4, 2}, 64, Algorithm::two_level, Algorithm::halving},
      {ATOLL_ALL_REDUCE, {4, 2}, 1024, Algorithm::halving, Algorithm::two_level},
      {ATOLL_ALL_REDUCE, {8, 1}, 2048, Algorithm::halving, Algorithm::ring},
      {ATOLL_REDUCE, {4, 1}, 16, Algorithm::flat, Algorithm::two_level},
      {ATOLL_BROADCAST, {3, 1}, 64, Algorithm::flat, Algorithm::chain},
      {ATOLL_BROADCAST, {2, 4}, 64, Algorithm::flat, Algorithm::flat},
      {ATOLL_ALL_TO_ALL, {4, 2}, 1024, Algorithm::flat, Algorithm::flat}};
  for (const auto& [kind, job, kib, below, from] : rules) {
    CAPTURE(kind);
    CAPTURE(kib);
    CHECK(choice(job, kind, kib * KiB - 1) == below);
    CHECK(choice(job, kind, kib * KiB) == from);
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
  // Without a rule of the user, the last built-in rule decides that matches and that keeps the
  // order of the sum.
  CHECK(choice({4, 1, "", 1}, ATOLL_ALL_REDUCE, 4096 * KiB) == Algorithm::two_level);
  CHECK(choice({3, 2, "", 1}, ATOLL_REDUCE_SCATTER, 4096 * KiB) == Algorithm::two_level);
  CHECK(choice({2, 3, "", 1}, ATOLL_REDUCE_SCATTER, 4096 * KiB) == Algorithm::flat);
  CHECK(choice({4, 1, "", 1}, ATOLL_ALL_GATHER, 4096 * KiB) == Algorithm::ring);
}
