// RankSet: some ranks of a World exchange values and compare facts, and others need not call.
#include "world/rank_set.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "thread_ranks.hpp"
#include "unit/rank_reports.hpp"
#include "world/agreement.hpp"

using atoll::RankSet;
using atoll::World;

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
  try {
    atoll::agree(half_of(world), "call", declare);
    return "agreed";
  } catch (const atoll::Error& error) {
    return error.what();
  }
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

TEST_CASE("rank group: all ranks, and one rank alone") {
  const auto results = atoll_test::on_threads(2, [](World& world) {
    const RankSet all(world), alone(world, {world.rank()});
    std::string text;
    for (const auto& value : all.exchange(all.key("k"), std::to_string(world.rank())))
      text += value;
    for (const auto& value : alone.exchange(alone.key("k"), "x")) text += value;
    return text;
  });
  CHECK(results == Texts{"01x", "01x"});
}

TEST_CASE("rank group: facts are compared inside the group only") {
  const auto results = atoll_test::on_threads(4, [](World& world) {
    return agreed(world, [&] {
      // Even and odd ranks declare other facts; rank 3 differs from rank 1.
      const std::string value = world.rank() == 3 ? "other" : std::to_string(world.rank() % 2);
      return std::vector<atoll::Declaration>{{"the fact", value}};
    });
  });
  const std::string differs =
      "call: ranks disagree about the fact: 1 on rank 1, other on rank 3; all ranks must pass the "
      "same";
  CHECK(results == Texts{"agreed", differs, "agreed", differs});
}

TEST_CASE("rank group: the error of one rank is the error of its group") {
  const auto results = atoll_test::on_threads(4, [](World& world) {
    return agreed(world, [&]() -> std::vector<atoll::Declaration> {
      if (world.rank() == 2) throw atoll::Error(atoll::ErrorCode::not_found, "no unit \"x\"");
      return {};
    });
  });
  CHECK(results == Texts{"rank 2: no unit \"x\"", "agreed", "no unit \"x\"", "agreed"});
}

TEST_CASE("rank group: an absent rank is named on every rank of the group") {
  Texts results(4);
  const auto report = [&](World& world) {
    const RankSet group(world, {0, 1, 2});
    try {
      if (world.rank() == 1) {  // waits until the others have given up
        for (const char* key : {"0 gave up", "2 gave up"})
          (void)world.get(key, std::chrono::seconds(30));
        return std::string("late");
      }
      if (world.rank() != 3) (void)group.exchange(group.key("values"), "x");
    } catch (const atoll::Error& error) {
      world.put(std::to_string(world.rank()) + " gave up", "");
      return std::string(error.what());
    }
    return std::string("outside");
  };
  atoll_test::run_thread_ranks(
      4, [&](World& world) { results[static_cast<std::size_t>(world.rank())] = report(world); },
      [](atoll::Config& config) { config.timeout = std::chrono::seconds(2); });
  for (const std::size_t rank : {0, 2}) {
    CAPTURE(results[rank]);
    CHECK(results[rank].starts_with("rank " + std::to_string(rank) + ": values: rank 1 (host "));
    CHECK(results[rank].ends_with(") did not arrive within 2 s"));
  }
  CHECK(results[1] == "late");
  CHECK(results[3] == "outside");
}

TEST_CASE("rank group: a rank that has left the job ends the exchanges of its groups only") {
  Texts results(3);
  atoll_test::run_thread_ranks(3, [&](World& world) {
    if (world.rank() == 2) return;  // leaves the job
    try {
      (void)RankSet(world, {0, 1}).exchange("of two", "x");
      if (world.rank() == 0) (void)RankSet(world, {0, 2}).exchange("with the third", "x");
      results[static_cast<std::size_t>(world.rank())] = "done";
    } catch (const atoll::Error& error) {
      results[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  CHECK(results[0].starts_with("rank 0: exchange \"with the third\": rank 2 (host "));
  CHECK(results[0].ends_with(") has left the job"));
  CHECK(results[1] == "done");
}
