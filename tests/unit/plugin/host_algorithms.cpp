// Tests every algorithm between hosts on placements with different numbers of ranks per host, in
// place and out of place, with sizes just below and above those at which data is split into pieces.
// host_tuning.cpp tests the choice of the algorithm, host_windows.cpp registered memory.
#include <doctest/doctest.h>

#include <algorithm>

#include "unit/plugin/host.hpp"

namespace {

using namespace plugin_ranks;

// Sums fractions that are scaled with factors, checks that all ranks have the same result, and
// returns the result.
Bytes noisy_sums(const Layout& layout, const GroupOptions& options) {
  std::vector<Bytes> results(layout.size());
  run_ranks(
      backend(), layout,
      [&](Rank& rank) {
        for (const std::uint64_t count : {1u, 33u, 270'001u}) {
          const Bytes mine = noisy_input(rank.rank(), count);
          Bytes out(mine.size());
          auto o = rank.operation(ATOLL_ALL_REDUCE, ATOLL_F32, mine.data(), out.data(), count);
          o.op = ATOLL_AVG;
          o.factor = 0.75 + rank.rank();
          CHECK(rank.submit(o).status == ATOLL_OK);
          auto& result = results[static_cast<std::size_t>(rank.rank())];
          result.insert(result.end(), out.begin(), out.end());
        }
      },
      options);
  for (const auto& result : results) CHECK(result == results.front());
  return results.front();
}

std::string forced(const std::string& kind, const std::string& algorithm) {
  return kind + " 0 " + algorithm + "\n";
}

std::string forced(const std::string& algorithm) {
  std::string text;
  for (const auto* kind :
       {"all_gather", "all_gather_v", "reduce_scatter", "reduce_scatter_v", "all_reduce"}) {
    text += std::string(kind) + " 0 " + algorithm + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("every algorithm gathers and scatters correctly on uneven placements") {
  for (const auto* algorithm : {"flat", "ring", "two_level"}) {
    for (const Layout& layout :
         some_of({Layout{0, 0, 1, 1}, Layout{0, 0, 1}, Layout{0, 1, 1, 1, 0}, Layout{0, 1, 2},
                  Layout{0, 0, 0, 1, 1, 2}, Layout{0, 1, 0, 1}})) {
      CAPTURE(algorithm);
      CAPTURE(text(layout));
      run_ranks(
          backend(), layout,
          [](Rank& rank) {
            for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{5},
                                              std::uint64_t{3000}, 200'003 / fewer}) {
              check_all_gather(rank, ATOLL_F32, count);
              check_reduce_scatter(rank, ATOLL_F32, ATOLL_SUM, count);
              std::vector<std::uint64_t> counts(static_cast<std::size_t>(rank.size()), count);
              counts.front() = count / 3;
              counts.back() = 0;
              check_blocks(rank, counts);
            }
          },
          {.tuning = forced(algorithm)});
    }
  }
}

TEST_CASE("all_reduce is correct with every algorithm, number of hosts, dtype and op") {
  for (const auto* algorithm : {"flat", "ring", "doubling", "halving", "two_level"}) {
    for (const Layout& layout :
         some_of({Layout{0, 1}, Layout{0, 0, 1, 1}, Layout{0, 1, 2}, Layout{2, 0, 0, 1, 3, 3, 4},
                  Layout{0, 1, 2, 3, 4, 5}, Layout{0, 1, 0, 1, 2},
                  Layout{0, 0, 0, 1, 1, 2, 2, 3, 3}})) {
      CAPTURE(algorithm);
      CAPTURE(text(layout));
      run_ranks(backend(), layout,
                [](Rank& rank) {
                  for (const std::uint64_t count :
                       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{5}, std::uint64_t{17},
                        std::uint64_t{3000}, 200'003 / fewer})
                    check_all_reduce(rank, ATOLL_F32, ATOLL_SUM, count);
                  for (const auto dtype : {ATOLL_F32, ATOLL_BF16, ATOLL_F16, ATOLL_F64, ATOLL_I32,
                                           ATOLL_I64, ATOLL_U8}) {
                    for (const auto op : {ATOLL_SUM, ATOLL_AVG, ATOLL_MIN, ATOLL_MAX})
                      check_all_reduce(rank, dtype, op, 1031);
                  }
                },
                {.tuning = forced("all_reduce", algorithm)});
    }
  }
  run_ranks(backend(), {0, 0, 1, 1},  // many pieces in flight
            [](Rank& rank) { check_all_reduce(rank, ATOLL_F32, ATOLL_SUM, 6'000'001 / fewer); },
            {.tuning = forced("two_level")});
}

// All algorithms but ring sum in the same tree if the number of hosts is a power of two, and if
// every host has the same power of two of consecutive ranks.
TEST_CASE("sums have the bits of flat in deterministic mode, and wherever the order is the same") {
  const std::vector<Layout> alike = some_of(
      {Layout{0, 1}, Layout{0, 0, 1, 1}, Layout{0, 1, 2, 3}, Layout{0, 0, 1, 1, 2, 2, 3, 3}});
  std::vector<Layout> layouts =
      some_of({Layout{0, 1, 2}, Layout{0, 1, 2, 3, 4}, Layout{0, 1, 0, 1, 2}});
  layouts.insert(layouts.end(), alike.begin(), alike.end());
  for (const Layout& layout : layouts) {
    CAPTURE(text(layout));
    const auto flat = noisy_sums(layout, {.tuning = forced("all_reduce", "flat")});
    for (const std::string algorithm : {"ring", "two_level", "doubling", "halving"}) {
      CAPTURE(algorithm);
      const std::string tuning = forced("all_reduce", algorithm);
      CHECK(noisy_sums(layout, {.tuning = tuning, .deterministic = 1}) == flat);
      if (algorithm != "ring" && std::ranges::count(alike, layout) > 0)
        CHECK(noisy_sums(layout, {.tuning = tuning}) == flat);
    }
  }
}

TEST_CASE("unknown and unsupported algorithms are refused") {
  for (const auto* tuning : {"all_reduce 0 tree\n", "barrier 0 two_level\n", "all_reduce x flat\n",
                             "all_gather 0 halving\n", "broadcast 0 ring\n", "reduce 0 doubling\n",
                             "nothing 0 flat\n", "all_reduce\n"}) {
    CAPTURE(tuning);
    FakeCore core;
    const Group group({0}, 0, {.tuning = tuning});
    atoll_comm* comm = nullptr;
    CHECK(backend().open(&core.services(), &group.get(), &comm) == ATOLL_INVALID_ARGUMENT);
    CHECK(std::string(backend().last_error(nullptr)).find("two_level") != std::string::npos);
  }
}
