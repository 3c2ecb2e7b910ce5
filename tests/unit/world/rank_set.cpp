// RankSet: some ranks of a World exchange values, and others need not call.
#include "atoll/rank_set.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "thread_ranks.hpp"
#include "unit/error_text.hpp"
#include "unit/rank_reports.hpp"

using atoll::RankSet;
using atoll::World;
using atoll_test::error_of;
using atoll_test::has;

namespace {

using Texts = std::vector<std::string>;

// Returns all even ranks or all odd ranks. They descend here, because the constructor sorts them.
RankSet half_of(World& world) {
  std::vector<int> ranks;
  for (int rank = world.size() - 1; rank >= 0; --rank) {
    if (rank % 2 == world.rank() % 2) ranks.push_back(rank);
  }
  return {world, ranks};
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
