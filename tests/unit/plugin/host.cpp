// Tests the function table of the host backend, and the bits of deterministic sums. The conformance
// suite tests every collective, dtype and size.
#include <doctest/doctest.h>

#include <algorithm>

#include "unit/plugin/host.hpp"

using namespace plugin_ranks;

namespace {

const std::vector<std::int32_t> dtypes = {ATOLL_F32, ATOLL_BF16, ATOLL_F16, ATOLL_F64, ATOLL_I32,
                                          ATOLL_I64, ATOLL_U8,   ATOLL_I8,  ATOLL_U16};

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
