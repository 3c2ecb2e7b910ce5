// The algorithms between hosts: every one of them on odd placements, with sizes around their pieces,
// in place and not. Registered memory is the conformance suite's.
#include <doctest/doctest.h>

#include <numeric>

#include "plugin_ranks.hpp"

namespace {

using namespace plugin_ranks;

const atoll_backend& backend() { return load(ATOLL_PLUGIN_HOST); }

// Small whole numbers: their sums are exact in every order.
std::vector<float> numbers(int rank, std::uint64_t count) {
  std::vector<float> values(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((i * 7 + static_cast<std::uint64_t>(rank) * 13) % 101) - 50.0f;
  }
  return values;
}

float sum_at(int ranks, std::uint64_t i) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) {
    sum += static_cast<float>((i * 7 + static_cast<std::uint64_t>(r) * 13) % 101) - 50.0f;
  }
  return sum;
}

std::uint64_t wrong_sums(const std::vector<float>& got, int ranks, std::uint64_t first) {
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < got.size(); ++i)
    wrong += got[i] != sum_at(ranks, first + i) ? 1 : 0;
  return wrong;
}

void check_all_reduce(Rank& rank, std::uint64_t count) {
  const auto src = numbers(rank.rank(), count);
  std::vector<float> dst(count);
  auto o = rank.operation(ATOLL_ALL_REDUCE, ATOLL_F32, src.data(), dst.data(), count);
  auto result = rank.submit(o);
  CHECK_MESSAGE(result.status == ATOLL_OK, result.text);
  CHECK(wrong_sums(dst, rank.size(), 0) == 0);
  dst = src;
  o.src = dst.data();
  result = rank.submit(o);
  CHECK_MESSAGE(result.status == ATOLL_OK, result.text);
  CHECK(wrong_sums(dst, rank.size(), 0) == 0);
}

// counts[r] elements of rank r; even counts take the even forms.
void check_blocks(Rank& rank, const std::vector<std::uint64_t>& counts) {
  const auto self = static_cast<std::size_t>(rank.rank());
  const bool even =
      std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
  const auto whole = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  const auto first =
      std::accumulate(counts.begin(), counts.begin() + rank.rank(), std::uint64_t{0});

  const auto src = numbers(rank.rank(), whole);
  std::vector<float> slice(counts[self]);
  auto o = rank.operation(even ? ATOLL_REDUCE_SCATTER : ATOLL_REDUCE_SCATTER_V, ATOLL_F32,
                          src.data(), slice.data(), even ? counts[self] : whole);
  o.counts = counts.data();
  auto result = rank.submit(o);
  CHECK_MESSAGE(result.status == ATOLL_OK, result.text);
  CHECK(wrong_sums(slice, rank.size(), first) == 0);

  std::vector<float> all(whole);
  o = rank.operation(even ? ATOLL_ALL_GATHER : ATOLL_ALL_GATHER_V, ATOLL_F32, slice.data(),
                     all.data(), even ? counts[self] : whole);
  o.counts = counts.data();
  result = rank.submit(o);
  CHECK_MESSAGE(result.status == ATOLL_OK, result.text);
  CHECK(wrong_sums(all, rank.size(), 0) == 0);

  std::fill(all.begin(), all.end(), 0.0f);
  std::copy(slice.begin(), slice.end(), all.begin() + static_cast<std::ptrdiff_t>(first));
  o.src = all.data() + first;
  result = rank.submit(o);
  CHECK_MESSAGE(result.status == ATOLL_OK, result.text);
  CHECK(wrong_sums(all, rank.size(), 0) == 0);
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

TEST_CASE("every algorithm, on odd placements") {
  for (const auto* algorithm : {"flat", "ring", "two_level"}) {
    for (const Layout& layout : {Layout{0, 0, 1, 1}, Layout{0, 0, 1}, Layout{0, 1, 1, 1, 0},
                                 Layout{0, 1, 2}, Layout{0, 0, 0, 1, 1, 2}, Layout{0, 1, 0, 1}}) {
      CAPTURE(algorithm);
      CAPTURE(text(layout));
      run_ranks(backend(), layout,
                [](Rank& rank) {
                  for (const std::uint64_t count : {0, 1, 5, 3000, 200'003}) {
                    check_all_reduce(rank, count);
                    const auto ranks = static_cast<std::size_t>(rank.size());
                    check_blocks(rank, std::vector<std::uint64_t>(ranks, count));
                    std::vector<std::uint64_t> counts(ranks, count);
                    counts[0] = count / 3;
                    counts[ranks - 1] = 0;
                    check_blocks(rank, counts);
                  }
                },
                {.tuning = forced(algorithm)});
    }
  }
}

TEST_CASE("doubling, with any number of hosts") {
  for (const Layout& layout :
       {Layout{0, 1}, Layout{0, 0, 1, 1}, Layout{0, 1, 2}, Layout{2, 0, 0, 1, 3, 3, 4},
        Layout{0, 1, 2, 3, 4, 5}, Layout{0, 1, 0, 1, 2}}) {
    CAPTURE(text(layout));
    run_ranks(backend(), layout,
              [](Rank& rank) {
                for (const std::uint64_t count : {0, 1, 5, 3000, 100'003})
                  check_all_reduce(rank, count);
                std::int32_t mine = 6 * rank.size() * (rank.rank() + 1), all = 0;
                auto o = rank.operation(ATOLL_ALL_REDUCE, ATOLL_I32, &mine, &all, 1);
                o.op = ATOLL_AVG;
                CHECK(rank.submit(o).status == ATOLL_OK);
                CHECK(all == 3 * rank.size() * (rank.size() + 1));
              },
              {.tuning = "all_reduce 0 doubling\n"});
  }
}

TEST_CASE("many pieces under way") {
  run_ranks(backend(), {0, 0, 1, 1}, [](Rank& rank) { check_all_reduce(rank, 6'000'001); },
            {.tuning = forced("two_level")});
}

TEST_CASE("algorithms that the backend does not have are refused") {
  for (const auto* tuning : {"all_reduce 0 tree\n", "barrier 0 two_level\n", "all_reduce x flat\n",
                             "nothing 0 flat\n", "all_reduce\n"}) {
    CAPTURE(tuning);
    FakeCore core;
    const Group group({0}, 0, {.tuning = tuning});
    atoll_comm* comm = nullptr;
    CHECK(backend().open(&core.host(), &group.get(), &comm) == ATOLL_INVALID_ARGUMENT);
    CHECK(std::string(backend().last_error(nullptr)).find("two_level") != std::string::npos);
  }
}
