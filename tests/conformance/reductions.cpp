// Checks reduce_scatter and all_reduce: the values of the results, their rounding, and the order
// in which floating point numbers are summed.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "checks.hpp"

namespace conformance {
namespace {

void reduce_scatter(Rank& self, DType dtype, ReduceOp op, std::uint64_t count, Place place) {
  const auto own = [&](std::uint64_t i) { return contribution(dtype, op, self.rank(), i); };
  const std::uint64_t first = unsigned_of(self.rank()) * count;
  const auto expected = [&](std::uint64_t i) { return reduced(dtype, op, self.size(), first + i); };
  Elements src(dtype, count * unsigned_of(self.size()), self.source);
  Elements dst(dtype, count, self.target);
  src.fill(own);
  const atoll::View to = place == Place::in ? src.view().part(first, count) : dst.view();
  self.comm.reduce_scatter(src.view(), to, op, self.stream).synchronize();
  for (std::uint64_t i = 0; place == Place::in && i < count; ++i) dst.set(i, src.get(first + i));
  const std::string what = label("reduce_scatter", op, dtype, count, place) + ": ";
  const std::string wrong = dst.difference(expected, self.slack(dtype, op));
  self.report.expect(wrong.empty(), what + wrong);
  const std::string others = src.difference(
      [&](std::uint64_t i) {
        const bool result = place == Place::in && i >= first && i < first + count;
        return result ? expected(i - first) : own(i);
      },
      self.slack(dtype, op));
  self.report.expect(others.empty(), what + "src: " + others);
}

void all_reduce(Rank& self, DType dtype, ReduceOp op, std::uint64_t count, Place place) {
  const auto own = [&](std::uint64_t i) { return contribution(dtype, op, self.rank(), i); };
  Elements src(dtype, count, self.source);
  Elements dst(dtype, count, self.target);
  src.fill(own);
  dst.fill(own);
  const atoll::ConstView from = place == Place::in ? dst.view() : src.view();
  self.comm.all_reduce(from, dst.view(), op, self.stream).synchronize();
  const std::string wrong = dst.difference(
      [&](std::uint64_t i) { return reduced(dtype, op, self.size(), i); }, self.slack(dtype, op));
  const std::string what = label("all_reduce", op, dtype, count, place) + ": ";
  self.report.expect(wrong.empty(), what + wrong);
  self.report.expect(src.difference(own).empty(), what + "src changed");
}

// Returns values of very different magnitude, so that summing them in another order gives another
// result.
double uneven(DType dtype, int rank, std::uint64_t i) {
  std::uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u + unsigned_of(rank) * 0xd1b54a32d192ed03u;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 32;
  const double mantissa = static_cast<double>(x % 2001) / 1000 - 1;
  const int exponent = static_cast<int>((x >> 20) % 24) - 12;
  const double value = std::ldexp(mantissa, exponent);
  if (dtype == DType::f64) return value;
  // The smallest positive f16 is 2^-24. A multiple of 2^-20 that fits into the mantissa is an exact
  // f16.
  if (dtype == DType::f16) return std::nearbyint(rounded(dtype, value) * 0x1p20) * 0x1p-20;
  return rounded(dtype, static_cast<double>(static_cast<float>(value)));
}

// Adds neighbouring parts in pairs, ((0 + 1) + (2 + 3)) + ..., and carries an unpaired last part
// over to the next round. T is the type in which parts are added.
template <class T>
T tree_sum(std::vector<T> parts) {
  while (parts.size() > 1) {
    std::vector<T> next;
    for (std::size_t p = 0; p < parts.size(); p += 2) {
      next.push_back(p + 1 < parts.size() ? parts[p] + parts[p + 1] : parts[p]);
    }
    parts = std::move(next);
  }
  return parts.front();
}

// Sums the ranks of each block by a tree, then adds the sums of the blocks by a second tree.
template <class T>
double tree_of_blocks(DType dtype, const Rank& self, std::uint64_t i) {
  std::vector<T> sums;
  for (int first = 0; first < self.size(); first += self.block()) {
    std::vector<T> parts;
    for (int rank = first; rank < std::min(first + self.block(), self.size()); ++rank) {
      parts.push_back(static_cast<T>(uneven(dtype, rank, i)));
    }
    sums.push_back(tree_sum(std::move(parts)));
  }
  return static_cast<double>(tree_sum(std::move(sums)));
}

double ordered_sum(DType dtype, const Rank& self, std::uint64_t i) {
  if (dtype == DType::f64) return tree_of_blocks<double>(dtype, self, i);
  const double sum = tree_of_blocks<float>(dtype, self, i);
  if (dtype == DType::f32) return sum;
  // Elements rounds like the library. rounded() does not support the subnormal f16 sums that occur
  // here.
  Elements one(dtype, 1);
  one.set(0, sum);
  return one.get(0);
}

// Checks the order in which all_reduce and reduce sum `count` elements, and in which both forms of
// reduce_scatter sum about `count` elements in total.
void ordered(Rank& self, DType dtype, std::uint64_t count) {
  const auto own = [&](std::uint64_t i) { return uneven(dtype, self.rank(), i); };
  const auto sum = [&](std::uint64_t i) { return ordered_sum(dtype, self, i); };
  const auto expect = [&](std::string_view operation, const std::string& wrong) {
    self.report.expect(wrong.empty(),
                       "order of sums: " + label(operation, dtype, count) + ": " + wrong);
  };
  Elements whole(dtype, count);
  Elements rooted(dtype, count);
  whole.fill(own);
  self.comm.reduce(whole.view(), rooted.view(), ReduceOp::sum, 0, self.stream).synchronize();
  expect("reduce", self.rank() == 0 ? rooted.difference(sum) : std::string());
  self.comm.all_reduce(whole.view(), whole.view(), ReduceOp::sum, self.stream).synchronize();
  expect("all_reduce", whole.difference(sum));

  const std::uint64_t share = count / unsigned_of(self.size()) + 1;
  const std::uint64_t first = unsigned_of(self.rank()) * share;
  const auto mine = [&](std::uint64_t i) { return sum(first + i); };
  const std::vector<std::uint64_t> counts(unsigned_of(self.size()), share);
  Elements src(dtype, share * unsigned_of(self.size()));
  Elements dst(dtype, share);
  Elements apart(dtype, share);
  src.fill(own);
  self.comm.reduce_scatter(src.view(), dst.view(), ReduceOp::sum, self.stream).synchronize();
  expect("reduce_scatter", dst.difference(mine));
  self.comm.reduce_scatter_v(src.view(), apart.view(), counts, ReduceOp::sum, self.stream)
      .synchronize();
  expect("reduce_scatter_v", apart.difference(mine));
}

// The host backend guarantees the order of all sums. For other backends the library guarantees the
// order for 16-bit types, and in deterministic mode for every type.
bool promises_order(const Rank& self, DType dtype) {
  if (self.rounds_per_level(dtype)) return false;
  return self.sums_as_host() || is_16_bit(dtype) || self.world.config().deterministic != 0;
}

}  // namespace

void reduce(Rank& self, DType dtype, ReduceOp op, std::uint64_t count) {
  for (const Place place : {Place::out, Place::in}) {
    reduce_scatter(self, dtype, op, count, place);
    all_reduce(self, dtype, op, count, place);
  }
}

void check_reduce_scatter(Rank& self) {
  for (const DType dtype : reducible_dtypes) {
    for (const ReduceOp op : all_ops) {
      for (const std::uint64_t count : counts_around(self.size(), dtype, op)) {
        reduce_scatter(self, dtype, op, count, Place::out);
        reduce_scatter(self, dtype, op, count, Place::in);
      }
    }
  }
  const std::uint64_t share = large_count / unsigned_of(self.size());
  reduce_scatter(self, DType::f32, ReduceOp::sum, share, Place::out);
  reduce_scatter(self, DType::bf16, ReduceOp::sum, share, Place::in);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::uint64_t each = mebibyte_of(dtype) / unsigned_of(self.size());
    reduce_scatter(self, dtype, ReduceOp::sum, each, Place::in);
    reduce_scatter(self, dtype, ReduceOp::max, each, Place::out);
    reduce_scatter(self, dtype, ReduceOp::sum, each, place_by_rank(self.rank()));
  }
}

void check_all_reduce(Rank& self) {
  for (const DType dtype : reducible_dtypes) {
    for (const ReduceOp op : all_ops) {
      for (const std::uint64_t count : counts_around(self.size(), dtype, op)) {
        all_reduce(self, dtype, op, count, Place::out);
        all_reduce(self, dtype, op, count, Place::in);
      }
    }
  }
  all_reduce(self, DType::f32, ReduceOp::sum, large_count, Place::in);
  all_reduce(self, DType::bf16, ReduceOp::avg, large_count, Place::out);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    all_reduce(self, dtype, ReduceOp::sum, mebibyte_of(dtype), Place::out);
    all_reduce(self, dtype, ReduceOp::min, mebibyte_of(dtype), Place::in);
    all_reduce(self, dtype, ReduceOp::sum, mebibyte_of(dtype), place_by_rank(self.rank()));
    all_reduce(self, dtype, ReduceOp::sum, 127, place_by_rank(self.rank()));
  }
}

// Returns true if the order of summation is fixed for the hosts and ranks of this job. In
// deterministic mode and on a single host the order is always fixed. Otherwise sums are formed on
// each host and then between hosts, and the order is fixed only where this gives the same tree as a
// single tree over all ranks.
bool has_order_of_summation(const Rank& self) {
  const auto hosts = self.world.hosts().size();
  const auto ranks = unsigned_of(self.size());
  if (hosts == 1 || self.world.config().deterministic != 0) return true;
  const bool alone = ranks == hosts;
  return (std::has_single_bit(hosts) && std::has_single_bit(ranks / hosts)) ||
         (alone && hosts == 3);  // with three hosts of one rank, both trees compute (0 + 1) + 2
}

void check_order_of_summation(Rank& self) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    if (!promises_order(self, dtype)) continue;
    for (const std::uint64_t count :
         {std::uint64_t{1}, std::uint64_t{7}, std::uint64_t{5003}, std::uint64_t{70001}}) {
      ordered(self, dtype, count);
    }
  }
}

namespace {

// Returns block sizes (ranks of a shard group) for which a tree over blocks differs from one tree
// over all ranks. No backend sums over blocks, so the library must compute these sums itself.
std::vector<int> odd_blocks(int ranks) {
  std::vector<int> result;
  for (const int block : {3, 6}) {
    if (block < ranks && ranks % block == 0) result.push_back(block);
  }
  return result;
}

// Sums in two levels need a bounded amount of scratch memory; sums in one level need as much as the
// data. Checks that scratch_bytes() fits the number of levels that the communicator must use with
// this number of hosts and this block size.
void check_scratch(Rank& self, int block) {
  const auto ranks = unsigned_of(self.size());
  const auto of_host = ranks / self.world.hosts().size();
  const bool levels =
      self.world.hosts().size() > 1 && of_host > 1 &&
      (unsigned_of(block) == of_host ||
       (unsigned_of(block) % of_host == 0 && std::has_single_bit(of_host)) ||
       (of_host % unsigned_of(block) == 0 && std::has_single_bit(of_host / unsigned_of(block))));
  constexpr std::uint64_t large = std::uint64_t{1} << 24;
  const auto bytes =
      self.comm.scratch_bytes(atoll::Communicator::Sum::reduce_scatter, large / ranks, DType::f32);
  self.report.expect(levels ? bytes < large : bytes >= large * sizeof(float) - ranks * 4,
                     fmt::format("blocks of {}: {} bytes of scratch", block, bytes));
}

void check_blocks_of(Rank& self, int block) {
  const auto mesh =
      atoll::Mesh::make(self.world, {.replicate = self.size() / block, .shard = block});
  const atoll::Axis& axis = mesh.axis("world");
  auto comm = atoll::Communicator::open(
      axis, {.name = "", .backend = self.backend(), .device = self.comm.device()});
  Rank blocks{self.world, comm, self.stream, self.report};
  blocks.axis_block = axis.block;
  check_scratch(blocks, block);
  check_order_of_summation(blocks);
  const std::uint64_t count = 37;
  for (const DType dtype : reducible_dtypes) {
    for (const ReduceOp op : all_ops) {
      if (!exists(op, dtype)) continue;
      reduce(blocks, dtype, op, count);
      reduce_rooted(blocks, dtype, op, count, blocks.size() - 1);
      for (const auto& counts : uneven_counts(blocks.size(), count)) {
        reduce_uneven(blocks, dtype, op, counts);
      }
    }
  }
  check_factors(blocks);
  // A two-level sum processes data of this size in several pieces.
  reduce(blocks, DType::f32, ReduceOp::sum, 1'500'000 / unsigned_of(blocks.size()));
  reduce_uneven(blocks, DType::bf16, ReduceOp::sum,
                uneven_counts(blocks.size(), 1'500'000 / unsigned_of(blocks.size()))[2]);
}

}  // namespace

bool has_sums_in_blocks(const Rank& self) {
  return self.world.config().deterministic != 0 && !odd_blocks(self.size()).empty();
}

void check_sums_in_blocks(Rank& self) {
  for (const int block : odd_blocks(self.size())) check_blocks_of(self, block);
}

}  // namespace conformance
