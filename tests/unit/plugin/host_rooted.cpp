// Tests reduce and broadcast between hosts, with every algorithm, placement and root, in place and
// out of place.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "unit/plugin/host.hpp"

namespace {

using namespace plugin_ranks;

const std::vector<Layout> rooted_layouts = {
    {0, 1},          {0, 0, 1, 1}, {0, 1, 1, 1, 0},    {0, 1, 2},
    {0, 1, 0, 1, 2}, {0, 1, 2, 3}, {2, 0, 0, 1, 3, 4}, {0, 1, 2, 3, 4, 5, 5}};

// Reduces fractions with each rank as the root in turn and returns the results.
Bytes noisy_reduce(const Layout& layout, std::int32_t kind, const GroupOptions& options) {
  std::vector<Bytes> results(layout.size());
  constexpr std::uint64_t count = 10'007;
  run_ranks(
      backend(), layout,
      [&](Rank& rank) {
        const Bytes mine = noisy_input(rank.rank(), count);
        auto& out = results[static_cast<std::size_t>(rank.rank())];
        out.resize(mine.size());
        for (int root = 0; root < rank.size(); ++root) {
          const bool gets = kind == ATOLL_ALL_REDUCE || root == rank.rank();
          auto o = rank.operation(kind, ATOLL_F32, mine.data(), gets ? out.data() : nullptr, count);
          o.peer = kind == ATOLL_ALL_REDUCE ? 0 : root;
          o.factor = 0.75 + rank.rank();
          expect_ok(rank.submit(o));
        }
      },
      options);
  for (const auto& result : results) CHECK(result == results.front());
  return results.front();
}

// Tunings with every algorithm of reduce and broadcast.
const std::vector<std::string> tunings{"reduce 0 flat\nbroadcast 0 flat\n",
                                       "reduce 0 two_level\nbroadcast 0 chain\n"};

// Expects at least one rank to report `status`, with a text that contains `word`, and no rank to
// time out.
void expect_told(const std::vector<Result>& results, atoll_status status, const std::string& word) {
  int told = 0;
  for (const auto& result : results) {
    CHECK_MESSAGE(result.status != ATOLL_TIMEOUT, result.text);
    if (result.status != status) continue;
    ++told;
    CHECK_MESSAGE(contains(result.text, word), result.text);
  }
  CHECK(told >= 1);
}

}  // namespace

TEST_CASE("reduce is correct for every root") {
  for (const auto* algorithm : {"flat", "two_level"}) {
    for (const auto& layout : rooted_layouts) {
      CAPTURE(algorithm);
      CAPTURE(text(layout));
      run_ranks(backend(), layout,
                [](Rank& rank) {
                  for (int root = 0; root < rank.size(); ++root) {
                    for (const std::uint64_t count :
                         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{5}, std::uint64_t{3000},
                          200'003 / fewer})
                      check_reduce(rank, ATOLL_F32, ATOLL_SUM, count, root);
                  }
                  for (const auto dtype : {ATOLL_BF16, ATOLL_F16, ATOLL_F64, ATOLL_I32, ATOLL_U8}) {
                    for (const auto op : {ATOLL_SUM, ATOLL_AVG, ATOLL_MIN, ATOLL_MAX})
                      check_reduce(rank, dtype, op, 1031, rank.size() / 2);
                  }
                  check_reduce(rank, ATOLL_I32, ATOLL_SUM, 2'000'003 / fewer, rank.size() - 1);
                },
                {.tuning = "reduce 0 " + std::string(algorithm) + "\n"});
    }
  }
}

TEST_CASE("reduce has the bits of all_reduce, and of flat if both sum in the same order") {
  for (const auto& layout : rooted_layouts) {
    CAPTURE(text(layout));
    const GroupOptions levels{.tuning = "reduce 0 two_level\nall_reduce 0 two_level\n"};
    const GroupOptions flat{.tuning = "reduce 0 flat\n"};
    const auto sums = noisy_reduce(layout, ATOLL_REDUCE, levels);
    CHECK(sums == noisy_reduce(layout, ATOLL_ALL_REDUCE, levels));
    auto ordered = levels;
    ordered.deterministic = 1;
    const auto in_order = noisy_reduce(layout, ATOLL_REDUCE, flat);
    CHECK(noisy_reduce(layout, ATOLL_REDUCE, ordered) == in_order);
    if (layout == Layout{0, 0, 1, 1} || layout == Layout{0, 1, 2, 3}) CHECK(sums == in_order);
  }
}

TEST_CASE("broadcast is correct for every root") {
  for (const auto* algorithm : {"flat", "chain"}) {
    for (const auto& layout : rooted_layouts) {
      CAPTURE(algorithm);
      CAPTURE(text(layout));
      run_ranks(backend(), layout,
                [](Rank& rank) {
                  for (int root = 0; root < rank.size(); ++root) {
                    for (const std::uint64_t count : {0u, 1u, 9000u, 200'003u})
                      check_broadcast(rank, ATOLL_U8, count, root);
                  }
                  check_broadcast(rank, ATOLL_U8, 3'000'017 / fewer, rank.size() - 1);
                },
                {.tuning = "broadcast 0 " + std::string(algorithm) + "\n"});
    }
  }
}

TEST_CASE("with any different roots, a rank reports a mismatch and no rank times out") {
  for (const std::string& tuning : tunings) {
    for (const std::int32_t kind : {ATOLL_GATHER, ATOLL_SCATTER, ATOLL_REDUCE, ATOLL_BROADCAST}) {
      for (const std::vector<int>& roots :
           {std::vector{0, 0, 0, 1}, std::vector{0, 2, 0, 2}, std::vector{0, 0, 2, 2}}) {
        for (const std::uint64_t count : {16U, 100'000U}) {
          CAPTURE(tuning);
          CAPTURE(kind);
          CAPTURE(roots[1]);
          CAPTURE(roots[3]);
          CAPTURE(count);
          FakeCore core;
          auto ranks = open_ranks(backend(), core, {0, 0, 1, 1}, {.tuning = tuning});
          const auto results = until_one_fails(ranks, [&](Rank& rank) {
            Bytes src(4 * count * 4), dst(4 * count * 4);
            auto o = rank.operation(kind, ATOLL_F32, src.data(), dst.data(), count);
            o.peer = roots[static_cast<std::size_t>(rank.rank())];
            return rank.submit(o);
          });
          expect_told(results, ATOLL_MISMATCH, "root");
        }
      }
    }
  }
}

TEST_CASE("a rank that closes is named in every algorithm, and no rank times out") {
  const auto close_one = [](std::int32_t kind, const std::string& tuning, const Layout& layout,
                            int gone) {
    FakeCore core;
    auto ranks = open_ranks(backend(), core, layout, {.tuning = tuning});
    // Buffers outlive all ranks. Otherwise a rank that fails would free its buffer, and a rank that
    // reads this buffer would name it instead of the rank that closed.
    std::vector<Bytes> buffers(ranks.size(), Bytes(4'000'000));
    const auto survive = [&](Rank& rank) {
      if (rank.rank() == gone) {
        rank.close();
        return Result{};
      }
      Bytes& data = buffers[static_cast<std::size_t>(rank.rank())];
      auto o = rank.operation(kind, ATOLL_F32, data.data(), data.data(), 1'000'000);
      o.peer = (gone + 1) % rank.size();
      return rank.submit(o);
    };
    expect_told(until_one_fails(ranks, survive, gone), ATOLL_PEER_LOST,
                "lost rank " + std::to_string(gone));
  };
  for (const auto kind : {ATOLL_REDUCE, ATOLL_BROADCAST}) {
    for (const std::string& tuning : tunings) {
      for (const Layout& layout :
           {Layout{0, 1}, Layout{0, 1, 2}, Layout{0, 0, 1, 1}, Layout{0, 0, 1, 1, 2, 2}}) {
        CAPTURE(kind);
        CAPTURE(tuning);
        CAPTURE(text(layout));
        for (int gone = 0; gone < static_cast<int>(layout.size()); ++gone) {
          CAPTURE(gone);
          close_one(kind, tuning, layout, gone);
        }
      }
    }
  }
}
