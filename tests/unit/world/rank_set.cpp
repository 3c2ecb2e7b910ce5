// RankSet: some ranks of a World exchange values and compare facts, and others need not call.
#include "world/rank_set.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "thread_ranks.hpp"
#include "unit/error_text.hpp"
#include "unit/rank_reports.hpp"
#include "world/agreement.hpp"

using atoll::RankSet;
using atoll::World;
using atoll_test::error_of;
using atoll_test::has;

namespace {

using Texts = std::vector<std::string>;

// Ranks 0, 2, ... and ranks 1, 3, ...; the constructor sorts.
RankSet half_of(World& world) {
  std::vector<int> ranks;
  for (int rank = world.size() - 1; rank >= 0; --rank) {
    if (rank % 2 == world.rank() % 2) ranks.push_back(rank);
  }
  return {world, ranks};
}

// Compares declarations inside half_of(world) and returns the error. A rank must not leave the job
// with an error, because that would end the other group too.
std::string agreed(World& world, const std::function<std::vector<atoll::Declaration>()>& declare) {
  const std::string error = error_of([&] { atoll::agree(half_of(world), "call", declare); });
  return error == "no error" ? "agreed" : error;
}

}  // namespace

TEST_CASE("rank group: groups of other ranks exchange values at the same time") {
  const auto results = atoll_test::on_threads(5, [](World& world) {
    const RankSet group = half_of(world);
    std::string text = group.is_first() ? "first" : "";
    // The odd ranks exchange more often than the even ranks.
    for (int round = 0; round < (world.rank() % 2 == 0 ? 1 : 3); ++round) {
      const std::string mine = std::to_string(world.rank() * 10 + round);
      for (const auto& value : group.exchange(group.key("values"), mine)) text += " " + value;
    }
    return text;
  });
  CHECK(results == Texts{"first 0 20 40", "first 10 30 11 31 12 32", " 0 20 40",
                         " 10 30 11 31 12 32", " 0 20 40"});
}

TEST_CASE("rank group: facts are compared inside the group only") {
  const auto results = atoll_test::on_threads(4, [](World& world) {
    return agreed(world, [&] {
      // Even and odd ranks declare other facts; rank 3 differs from rank 1.
      const std::string value = world.rank() == 3 ? "other" : std::to_string(world.rank() % 2);
      return std::vector<atoll::Declaration>{{"the fact", value}};
    });
  });
  for (const std::size_t odd : {1U, 3U}) {
    CHECK(results[odd - 1] == "agreed");
    CHECK(has(results[odd], "disagree about the fact: 1 on rank 1, other on rank 3"));
  }
}

TEST_CASE("rank group: a rank that has left the job ends the exchanges of its groups only") {
  Texts results(3);
  atoll_test::run_thread_ranks(3, [&](World& world) {
    if (world.rank() == 2) return;  // leaves the job
    results[static_cast<std::size_t>(world.rank())] = error_of([&] {
      (void)RankSet(world, {0, 1}).exchange("of two", "x");
      if (world.rank() == 0) (void)RankSet(world, {0, 2}).exchange("with the third", "x");
    });
  });
  CHECK(has(results[0], {"exchange \"with the third\": rank 2 (host ", ") has left the job"}));
  CHECK(results[1] == "no error");
}
