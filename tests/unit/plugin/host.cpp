// Compares the results of every collective of the host backend with closed forms: over shared
// memory alone, over TCP alone, and over both.
#include <doctest/doctest.h>

#include <algorithm>

#include "unit/plugin/host.hpp"

using namespace plugin_ranks;

namespace {

const std::vector<Layout> layouts = some_of({{0, 0, 0},
                                             {0, 1, 2},
                                             {0, 0, 1},
                                             {0, 1, 0, 1},
                                             {0, 0},
                                             {0},
                                             {0, 0, 0, 0, 0},
                                             {0, 1},
                                             {0, 0, 1, 1, 2}});
// The counts are smaller under the thread sanitizer, with which large counts would take minutes.
// The synchronization that it checks does not depend on sizes.
#ifdef ATOLL_SANITIZE_THREAD
const std::vector<std::int32_t> dtypes = {ATOLL_F32, ATOLL_BF16};
const std::vector<std::int32_t> ops = {ATOLL_SUM, ATOLL_MAX};
#else
const std::vector<std::int32_t> dtypes = {ATOLL_F32, ATOLL_BF16, ATOLL_F16, ATOLL_F64, ATOLL_I32,
                                          ATOLL_I64, ATOLL_U8,   ATOLL_I8,  ATOLL_U16};
const std::vector<std::int32_t> ops = {ATOLL_SUM, ATOLL_AVG, ATOLL_MIN, ATOLL_MAX};
#endif

std::vector<std::uint64_t> counts(int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  return {0, 1, n - 1, n, n + 1, 61, 1031, 20'011};
}

}  // namespace

TEST_CASE("the table has the version, size and functions that plugin.h requires") {
  const auto& table = backend();
  CHECK(table.size == sizeof(atoll_backend));
  CHECK(table.abi_major == ATOLL_ABI_MAJOR);
  CHECK(std::string(table.name) == "host");
  const atoll_group world{};
  CHECK(table.probe(nullptr, &world) == 100);
  CHECK(table.probe(nullptr, nullptr) == 0);
  for (std::int32_t kind = ATOLL_BARRIER; kind <= ATOLL_RECV; ++kind) {
    for (const auto dtype : dtypes) {
      CHECK(table.capability(kind, dtype, ATOLL_SUM, ATOLL_MEMORY_CPU) == 1);
      CHECK(table.capability(kind, dtype, ATOLL_SUM, ATOLL_MEMORY_CUDA) == 0);
    }
  }
  CHECK(table.capability(ATOLL_ALL_REDUCE, ATOLL_F8E4M3, ATOLL_SUM, ATOLL_MEMORY_CPU) == 0);
  CHECK(table.capability(ATOLL_ALL_GATHER, ATOLL_F8E5M2, ATOLL_SUM, ATOLL_MEMORY_CPU) == 1);
  CHECK(table.capability(ATOLL_ALL_TO_ALL_V, ATOLL_U64, ATOLL_SUM, ATOLL_MEMORY_CPU) == 1);
  CHECK(table.capability(ATOLL_ALL_REDUCE, ATOLL_F32, 17, ATOLL_MEMORY_CPU) == 0);
  CHECK(table.capability(ATOLL_ALL_REDUCE, 17, ATOLL_SUM, ATOLL_MEMORY_CPU) == 0);
  CHECK(table.capability(17, ATOLL_F32, ATOLL_SUM, ATOLL_MEMORY_CPU) == 0);
  CHECK(table.last_error(nullptr) != nullptr);
  table.abort(nullptr);
  table.close(nullptr);
  table.shutdown(0);
}

TEST_CASE("moving collectives") {
  for (const auto& layout : layouts) {
    CAPTURE(text(layout));
    run_ranks(backend(), layout, [&](Rank& rank) {
      for (const auto count : counts(rank.size())) {
        check_all_gather(rank, ATOLL_F32, count);
        check_all_to_all(rank, ATOLL_BF16, count);
        for (int root = 0; root < rank.size(); ++root) {
          check_broadcast(rank, ATOLL_I32, count, root);
        }
        check_messages(rank, count);
        expect_ok(rank.submit(rank.operation(ATOLL_BARRIER, 0, nullptr, nullptr, 0)));
      }
      for (const auto dtype : dtypes) check_all_gather(rank, dtype, 1031);
    });
  }
}

TEST_CASE("reducing collectives") {
  for (const auto& layout : layouts) {
    CAPTURE(text(layout));
    run_ranks(backend(), layout, [&](Rank& rank) {
      for (const auto count : counts(rank.size())) {
        check_reduce_scatter(rank, ATOLL_F32, ATOLL_SUM, count);
        check_all_reduce(rank, ATOLL_F32, ATOLL_SUM, count);
      }
      for (const auto dtype : dtypes) {
        for (const auto op : ops) {
          // One count is below and one is above the limit up to which all_reduce sends all data in
          // one message.
          for (const std::uint64_t count : {67, 2503}) {
            check_reduce_scatter(rank, dtype, op, count);
            check_all_reduce(rank, dtype, op, count);
          }
        }
      }
    });
  }
}

TEST_CASE("closed forms that no reference computes") {
  run_ranks(backend(), {0, 0, 1}, [](Rank& rank) {
    std::vector<std::int64_t> src(10'007, rank.rank() + 1);
    std::vector<std::int64_t> dst(src.size());
    auto o = rank.operation(ATOLL_ALL_REDUCE, ATOLL_I64, src.data(), dst.data(), src.size());
    expect_ok(rank.submit(o));
    CHECK(std::all_of(dst.begin(), dst.end(), [](auto v) { return v == 6; }));
    o.op = ATOLL_AVG;
    expect_ok(rank.submit(o));
    CHECK(std::all_of(dst.begin(), dst.end(), [](auto v) { return v == 2; }));
    o.op = ATOLL_MAX;
    expect_ok(rank.submit(o));
    CHECK(std::all_of(dst.begin(), dst.end(), [](auto v) { return v == 3; }));
  });
}

TEST_CASE("deterministic sums have the same bits whatever count, chunk and placement") {
  constexpr std::uint64_t count = 300'007;
  std::vector<Bytes> all;
  for (int r = 0; r < 3; ++r) all.push_back(noisy_input(r, count));
  const auto expected = reference_reduce(all, ATOLL_F32, ATOLL_SUM);
  for (const Layout& layout : {Layout{0, 0, 0}, Layout{0, 1, 0}, Layout{0, 1, 2}}) {
    CAPTURE(text(layout));
    run_ranks(backend(), layout,
              [&](Rank& rank) {
                const auto& mine = all[static_cast<std::size_t>(rank.rank())];
                for (const std::uint64_t n : {std::uint64_t{100}, std::uint64_t{5000}, count}) {
                  Bytes out(n * sizeof(float));
                  expect_ok(rank.submit(
                      rank.operation(ATOLL_ALL_REDUCE, ATOLL_F32, mine.data(), out.data(), n)));
                  CHECK(std::equal(out.begin(), out.end(), expected.begin()));
                }
              },
              {.deterministic = 1});
  }
}

TEST_CASE("large counts") {
  for (const Layout& layout : {Layout{0, 0}, Layout{0, 1}}) {
    CAPTURE(text(layout));
    run_ranks(backend(), layout, [](Rank& rank) {
      check_all_gather(rank, ATOLL_F32, 1'000'003);
      check_reduce_scatter(rank, ATOLL_F32, ATOLL_SUM, 200'003);
    });
  }
}

TEST_CASE("messages outside a group") {
  for (const Layout& layout : {Layout{0, 0}, Layout{0, 1}}) {
    run_ranks(backend(), layout, [](Rank& rank) {
      for (const std::uint64_t count : {0, 1, 1'000'003}) {
        Bytes data = rank.rank() == 0 ? input(ATOLL_U8, 0, count) : Bytes(count);
        const auto kind = rank.rank() == 0 ? ATOLL_SEND : ATOLL_RECV;
        expect_ok(rank.submit(message(rank, kind, 1 - rank.rank(), data)));
        CHECK(data == input(ATOLL_U8, 0, count));
      }
      // Collectives and messages alternate, so they share the byte streams between the ranks.
      check_all_gather(rank, ATOLL_F32, 11);
    });
  }
}

TEST_CASE("two communicators at the same time") {
  for (const Layout& layout : {Layout{0, 0}, Layout{0, 1}}) {
    FakeCore core;
    auto first = open_ranks(backend(), core, layout, {.id = "one"});
    auto second = open_ranks(backend(), core, layout, {.id = "two"});
    in_threads(4, [&](int i) {
      auto& rank = (i < 2 ? first : second)[static_cast<std::size_t>(i % 2)];
      for (int round = 0; round < 20; ++round) {
        check_all_reduce(rank, ATOLL_F32, ATOLL_SUM, 4000);
        check_all_gather(rank, ATOLL_F32, 4000);
      }
    });
  }
}
