// Checks the _v forms, with a different count on each rank; some counts are zero.
#include <numeric>

#include "checks.hpp"

namespace conformance {
namespace {

using Counts = std::span<const std::uint64_t>;

std::uint64_t sum_of(Counts counts) {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

std::string named(std::string_view operation, DType dtype, Counts counts, Place place) {
  std::string text(operation);
  text += " " + std::string(atoll::name(dtype)) + " x";
  for (const std::uint64_t count : counts) text += " " + std::to_string(count);
  return text + std::string(name(place)) + ": ";
}

// The element at index i of blocks that are packed in rank order: the rank of its block, and its
// index in the block.
struct Element {
  std::uint64_t rank, index;
};
Element element_of(Counts counts, std::uint64_t i) {
  std::uint64_t rank = 0;
  for (; i >= counts[rank]; ++rank) i -= counts[rank];
  return {rank, i};
}

// The buffers of a gather. `src` holds tokens of this rank. `dst` holds 3, except that the part of
// this rank holds its tokens if the gather is in place.
struct Gather {
  Gather(Rank& self, DType dtype_, Counts counts_, Place place)
      : dtype(dtype_),
        rank(self.rank()),
        counts(counts_),
        first(sum_of(counts.first(unsigned_of(rank)))),
        src(dtype, counts[unsigned_of(rank)], self.source),
        dst(dtype, sum_of(counts), self.target),
        in_place(place == Place::in) {
    src.fill([&](std::uint64_t i) { return own(i); });
    dst.fill([](std::uint64_t) { return 3; });
    for (std::uint64_t i = 0; in_place && i < src.count(); ++i) dst.set(first + i, own(i));
  }

  double own(std::uint64_t i) const { return token(dtype, rank, i); }
  double gathered(std::uint64_t i) const {
    const Element at = element_of(counts, i);
    return token(dtype, static_cast<int>(at.rank), at.index);
  }
  atoll::ConstView from() {
    return in_place ? atoll::ConstView(dst.view().part(first, src.count())) : src.view();
  }
  bool src_unchanged() const {
    return src.difference([&](std::uint64_t i) { return own(i); }).empty();
  }

  DType dtype;
  int rank;
  Counts counts;
  std::uint64_t first;  // index in dst of the first element of this rank
  Elements src, dst;
  bool in_place;
};

void all_gather_v(Rank& self, DType dtype, Counts counts, Place place) {
  Gather buffers(self, dtype, counts, place);
  self.comm.all_gather_v(buffers.from(), buffers.dst.view(), counts, self.stream).synchronize();
  const std::string wrong =
      buffers.dst.difference([&](std::uint64_t i) { return buffers.gathered(i); });
  const std::string what = named("all_gather_v", dtype, counts, place);
  self.report.expect(wrong.empty(), what + wrong);
  self.report.expect(buffers.src_unchanged(), what + "src changed");
}

void reduce_scatter_v(Rank& self, DType dtype, ReduceOp op, Counts counts, Place place) {
  const auto own = [&](std::uint64_t i) { return contribution(dtype, op, self.rank(), i); };
  const std::uint64_t count = counts[unsigned_of(self.rank())];
  const std::uint64_t first = sum_of(counts.first(unsigned_of(self.rank())));
  const auto expected = [&](std::uint64_t i) { return reduced(dtype, op, self.size(), first + i); };
  Elements src(dtype, sum_of(counts), self.source);
  Elements dst(dtype, count, self.target);
  src.fill(own);
  const atoll::View to = place == Place::in ? src.view().part(first, count) : dst.view();
  self.comm.reduce_scatter_v(src.view(), to, counts, op, self.stream).synchronize();
  for (std::uint64_t i = 0; place == Place::in && i < count; ++i) dst.set(i, src.get(first + i));
  const std::string what =
      named("reduce_scatter_v", dtype, counts, place) + std::string(atoll::name(op)) + ": ";
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

// Gathers to `root`. Other ranks pass no dst, and their gather is not in place.
void gather_v(Rank& self, DType dtype, Counts counts, int root, Place place) {
  const bool is_root = self.rank() == root;
  Gather buffers(self, dtype, counts, is_root ? place : Place::out);
  const atoll::View to = is_root ? buffers.dst.view() : atoll::View();
  self.comm.gather_v(buffers.from(), to, counts, root, self.stream).synchronize();
  const std::string wrong =
      buffers.dst.difference([&](std::uint64_t i) { return is_root ? buffers.gathered(i) : 3.0; });
  const std::string what = named("gather_v", dtype, counts, place);
  self.report.expect(wrong.empty(), what + "root " + std::to_string(root) + ": " + wrong);
  self.report.expect(buffers.src_unchanged(), what + "src changed");
}

// Returns how many elements rank `from` sends to rank `to` in an all_to_all_v of about `count`
// elements per pair. Some pairs exchange nothing, or data in one direction only.
std::uint64_t pair_count(std::uint64_t count, std::uint64_t from, std::uint64_t to) {
  return count == 0 || (from + 2 * to) % 3 == 1 ? 0 : count + from + 3 * to;
}

void all_to_all_v(Rank& self, DType dtype, std::uint64_t count) {
  constexpr std::uint64_t apart = 1009;  // distance of the tokens of two blocks
  const std::uint64_t me = unsigned_of(self.rank());
  std::vector<std::uint64_t> sent, received;
  for (std::uint64_t r = 0; r < unsigned_of(self.size()); ++r) {
    sent.push_back(pair_count(count, me, r));
    received.push_back(pair_count(count, r, me));
  }
  const auto own = [&](std::uint64_t i) {
    const Element at = element_of(sent, i);
    return token(dtype, self.rank(), at.rank * apart + at.index);
  };
  Elements src(dtype, sum_of(sent), self.source);
  Elements dst(dtype, sum_of(received), self.target);
  src.fill(own);
  self.comm.all_to_all_v(src.view(), sent, dst.view(), received, self.stream).synchronize();
  const std::string wrong = dst.difference([&](std::uint64_t i) {
    const Element at = element_of(received, i);
    return token(dtype, static_cast<int>(at.rank), me * apart + at.index);
  });
  const std::string what = label("all_to_all_v", dtype, count) + ": ";
  self.report.expect(wrong.empty(), what + wrong);
  self.report.expect(src.difference(own).empty(), what + "src changed");
}

std::vector<std::uint64_t> some_counts(DType dtype, ReduceOp op = ReduceOp::sum) {
  if (is_rare(dtype, op)) return {7};
  return {0, 1, 7, 127};
}

}  // namespace

std::vector<std::vector<std::uint64_t>> uneven_counts(int ranks, std::uint64_t count) {
  std::vector<std::vector<std::uint64_t>> ways(5, std::vector<std::uint64_t>(unsigned_of(ranks)));
  for (std::size_t r = 0; r < ways[0].size(); ++r) {
    ways[0][r] = count;
    ways[1][r] = count + 3 * r;
    ways[2][r] = r % 2 == 0 ? 0 : 2 * count + r;
  }
  ways[3].front() = count + 1;  // in the fourth distribution, only the first rank has elements
  ways[4].back() = 3 * count;
  return ways;
}

void move_uneven(Rank& self, DType dtype, Counts counts) {
  for (const Place place : {Place::out, Place::in}) {
    all_gather_v(self, dtype, counts, place);
    gather_v(self, dtype, counts, self.size() / 2, place);
  }
  all_to_all_v(self, dtype, counts.front());
}

void reduce_uneven(Rank& self, DType dtype, ReduceOp op, Counts counts) {
  reduce_scatter_v(self, dtype, op, counts, Place::out);
  reduce_scatter_v(self, dtype, op, counts, Place::in);
}

void check_all_gather_v(Rank& self) {
  for (const DType dtype : all_dtypes) {
    for (const std::uint64_t count : some_counts(dtype)) {
      for (const auto& counts : uneven_counts(self.size(), count)) {
        all_gather_v(self, dtype, counts, Place::out);
        all_gather_v(self, dtype, counts, Place::in);
      }
    }
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::uint64_t share = mebibyte_of(dtype) / unsigned_of(self.size());
    for (const std::uint64_t count : {std::uint64_t{127}, share}) {
      for (const auto& counts : uneven_counts(self.size(), count)) {
        all_gather_v(self, dtype, counts, Place::out);
        all_gather_v(self, dtype, counts, Place::in);
        all_gather_v(self, dtype, counts, place_by_rank(self.rank()));
        all_gather_v(self, dtype, counts, place_by_rank(self.rank() + 1));
        all_gather_v(self, dtype, counts, self.rank() == 0 ? Place::out : Place::in);
      }
    }
  }
}

void check_gather_v(Rank& self) {
  for (const DType dtype : all_dtypes) {
    for (const std::uint64_t count : some_counts(dtype)) {
      for (const auto& counts : uneven_counts(self.size(), count)) {
        for (const int root : {0, self.size() - 1}) {
          gather_v(self, dtype, counts, root, Place::out);
          gather_v(self, dtype, counts, root, Place::in);
        }
      }
    }
  }
  gather_v(self, DType::f32, uneven_counts(self.size(), mebibyte_of(DType::f32))[2], 0, Place::out);
}

void check_all_to_all_v(Rank& self) {
  for (const DType dtype : all_dtypes) {
    for (const std::uint64_t count : counts_around(self.size(), dtype)) {
      all_to_all_v(self, dtype, count);
    }
  }
  all_to_all_v(self, DType::bf16, mebibyte_of(DType::bf16) / unsigned_of(self.size()));
}

void check_reduce_scatter_v(Rank& self) {
  for (const DType dtype : reducible_dtypes) {
    for (const ReduceOp op : all_ops) {
      if (!exists(op, dtype)) continue;
      for (const std::uint64_t count : some_counts(dtype, op)) {
        for (const auto& counts : uneven_counts(self.size(), count)) {
          reduce_uneven(self, dtype, op, counts);
        }
      }
    }
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::uint64_t share = mebibyte_of(dtype) / unsigned_of(self.size());
    for (const auto& counts : uneven_counts(self.size(), share)) {
      reduce_scatter_v(self, dtype, ReduceOp::sum, counts, Place::in);
      reduce_scatter_v(self, dtype, ReduceOp::sum, counts, place_by_rank(self.rank()));
    }
  }
}

}  // namespace conformance
