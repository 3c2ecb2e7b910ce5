#include "unit/plugin/collectives.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace plugin_ranks {
namespace {

std::vector<Bytes> inputs(const Rank& rank, std::int32_t dtype, std::uint64_t count) {
  std::vector<Bytes> all;
  for (int r = 0; r < rank.size(); ++r) all.push_back(input(dtype, r, count));
  return all;
}

Bytes joined(const std::vector<Bytes>& parts) {
  Bytes all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Bytes block(const Bytes& all, int index, std::size_t size) {
  const auto begin =
      all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(index) * size);
  return {begin, begin + static_cast<std::ptrdiff_t>(size)};
}

}  // namespace

void expect_ok(const Result& result) { CHECK_MESSAGE(result.status == ATOLL_OK, result.text); }

void check_all_gather(Rank& rank, std::int32_t dtype, std::uint64_t count) {
  const auto all = inputs(rank, dtype, count);
  const auto expected = joined(all);
  const auto& mine = all[static_cast<std::size_t>(rank.rank())];
  Bytes out(expected.size());
  expect_ok(rank.submit(rank.operation(ATOLL_ALL_GATHER, dtype, mine.data(), out.data(), count)));
  CHECK(out == expected);
  Bytes in_place(expected.size());
  auto* own = in_place.data() + static_cast<std::size_t>(rank.rank()) * mine.size();
  if (!mine.empty()) std::memcpy(own, mine.data(), mine.size());
  expect_ok(rank.submit(rank.operation(ATOLL_ALL_GATHER, dtype, own, in_place.data(), count)));
  CHECK(in_place == expected);
}

void check_reduce_scatter(Rank& rank, std::int32_t dtype, std::int32_t op, std::uint64_t count) {
  const auto all = inputs(rank, dtype, count * static_cast<std::uint64_t>(rank.size()));
  const std::size_t size = count * size_of(dtype);
  const auto expected = block(reference_reduce(all, dtype, op), rank.rank(), size);
  Bytes mine = all[static_cast<std::size_t>(rank.rank())];
  Bytes out(size);
  auto o = rank.operation(ATOLL_REDUCE_SCATTER, dtype, mine.data(), out.data(), count);
  o.op = op;
  expect_ok(rank.submit(o));
  CHECK(out == expected);
  CHECK(mine == all[static_cast<std::size_t>(rank.rank())]);
  o.dst = mine.data() + static_cast<std::size_t>(rank.rank()) * size;
  expect_ok(rank.submit(o));
  CHECK(block(mine, rank.rank(), size) == expected);
}

void check_all_reduce(Rank& rank, std::int32_t dtype, std::int32_t op, std::uint64_t count) {
  const auto all = inputs(rank, dtype, count);
  const auto expected = reference_reduce(all, dtype, op);
  Bytes mine = all[static_cast<std::size_t>(rank.rank())];
  Bytes out(mine.size());
  auto o = rank.operation(ATOLL_ALL_REDUCE, dtype, mine.data(), out.data(), count);
  o.op = op;
  expect_ok(rank.submit(o));
  CHECK(out == expected);
  o.dst = mine.data();
  expect_ok(rank.submit(o));
  CHECK(mine == expected);
}

void check_broadcast(Rank& rank, std::int32_t dtype, std::uint64_t count, int root) {
  const auto expected = input(dtype, root, count, 1);
  Bytes out(expected.size());
  auto o = rank.operation(ATOLL_BROADCAST, dtype, expected.data(), out.data(), count);
  o.peer = root;
  if (rank.rank() != root) o.src = nullptr;
  expect_ok(rank.submit(o));
  CHECK(out == expected);
  Bytes in_place = rank.rank() == root ? expected : Bytes(expected.size());
  o.src = o.dst = in_place.data();
  expect_ok(rank.submit(o));
  CHECK(in_place == expected);
}

void check_all_to_all(Rank& rank, std::int32_t dtype, std::uint64_t count) {
  const auto all = inputs(rank, dtype, count * static_cast<std::uint64_t>(rank.size()));
  const std::size_t size = count * size_of(dtype);
  Bytes expected;
  for (const auto& part : all) {
    const auto piece = block(part, rank.rank(), size);
    expected.insert(expected.end(), piece.begin(), piece.end());
  }
  Bytes out(expected.size());
  const auto& mine = all[static_cast<std::size_t>(rank.rank())];
  expect_ok(rank.submit(rank.operation(ATOLL_ALL_TO_ALL, dtype, mine.data(), out.data(), count)));
  CHECK(out == expected);
}

void check_blocks(Rank& rank, const std::vector<std::uint64_t>& counts) {
  const auto whole = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  const auto own = counts.begin() + rank.rank();
  const auto first = static_cast<std::ptrdiff_t>(
      sizeof(float) * std::accumulate(counts.begin(), own, std::uint64_t{0}));
  const auto all = inputs(rank, ATOLL_F32, whole);
  const auto expected = reference_reduce(all, ATOLL_F32, ATOLL_SUM);
  Bytes slice(*own * sizeof(float)), gathered(expected.size()), in_place(expected.size());
  auto o = rank.operation(ATOLL_REDUCE_SCATTER_V, ATOLL_F32,
                          all[static_cast<std::size_t>(rank.rank())].data(), slice.data(), whole);
  o.counts = counts.data();
  expect_ok(rank.submit(o));
  CHECK(std::equal(slice.begin(), slice.end(), expected.begin() + first));
  std::copy(slice.begin(), slice.end(), in_place.begin() + first);
  o.kind = ATOLL_ALL_GATHER_V;
  o.src = slice.data();
  for (Bytes* const out : {&gathered, &in_place}) {
    o.dst = out->data();
    expect_ok(rank.submit(o));
    CHECK(*out == expected);
    o.src = in_place.data() + first;
  }
}

atoll_operation message(const Rank& rank, std::int32_t kind, int peer, Bytes& data) {
  auto o = rank.operation(kind, ATOLL_U8, data.data(), data.data(), data.size());
  o.peer = peer;
  return o;
}

void check_messages(Rank& rank, std::uint64_t count) {
  std::vector<Bytes> sent;
  std::vector<Bytes> got;
  for (int i = 0; i < 2 * rank.size(); ++i) {
    sent.push_back(input(ATOLL_U8, rank.rank(), count, i));
    got.emplace_back(count);
  }
  std::vector<atoll_operation> group;
  for (int i = 0; i < 2 * rank.size(); ++i) {
    group.push_back(message(rank, ATOLL_SEND, i / 2, sent[static_cast<std::size_t>(i)]));
  }
  for (int i = 0; i < 2 * rank.size(); ++i) {
    group.push_back(message(rank, ATOLL_RECV, i / 2, got[static_cast<std::size_t>(i)]));
  }
  expect_ok(rank.submit(group));
  for (int i = 0; i < 2 * rank.size(); ++i) {
    const auto expected = input(ATOLL_U8, i / 2, count, 2 * rank.rank() + i % 2);
    CHECK(got[static_cast<std::size_t>(i)] == expected);
  }
}

void check_reduce(Rank& rank, std::int32_t dtype, std::int32_t op, std::uint64_t count, int root) {
  const auto all = inputs(rank, dtype, count);
  const auto expected = reference_reduce(all, dtype, op);
  const bool is_root = rank.rank() == root;
  Bytes mine = all[static_cast<std::size_t>(rank.rank())];
  Bytes out(is_root ? mine.size() : 0);
  auto o = rank.operation(ATOLL_REDUCE, dtype, mine.data(), is_root ? out.data() : nullptr, count);
  o.op = op;
  o.peer = root;
  expect_ok(rank.submit(o));
  if (is_root) CHECK(out == expected);
  CHECK(mine == all[static_cast<std::size_t>(rank.rank())]);
  if (is_root) o.dst = mine.data();
  expect_ok(rank.submit(o));
  CHECK(mine == (is_root ? expected : all[static_cast<std::size_t>(rank.rank())]));
}

}  // namespace plugin_ranks
