// Checks gather, scatter and reduce: the root sends or receives all data, and the buffers of the
// other ranks stay unchanged.
#include "checks.hpp"

namespace conformance {
namespace {

std::string from_root(std::string text, int root) {
  return text + " at root " + std::to_string(root) + ": ";
}

// Gathers to `root`. Each other rank passes either no dst, or a dst that must stay unchanged.
void gather(Rank& self, DType dtype, std::uint64_t count, int root, Place place) {
  const auto own = [&](std::uint64_t i) { return token(dtype, self.rank(), i); };
  const std::uint64_t first = unsigned_of(self.rank()) * count;
  const bool is_root = self.rank() == root;
  Elements src(dtype, count, self.source);
  Elements dst(dtype, count * unsigned_of(self.size()), self.target);
  src.fill(own);
  dst.fill([](std::uint64_t) { return 3; });
  for (std::uint64_t i = 0; place == Place::in && i < count; ++i) dst.set(first + i, own(i));
  const bool from_dst = is_root && place == Place::in;
  const atoll::ConstView from = from_dst ? dst.view().part(first, count) : src.view();
  const atoll::View to = is_root || place == Place::out ? dst.view() : atoll::View();
  self.comm.gather(from, to, root, self.stream).synchronize();
  const std::string what =
      from_root(label("gather", dtype, count) + std::string(name(place)), root);
  const std::string wrong = dst.difference([&](std::uint64_t i) {
    if (is_root) return token(dtype, static_cast<int>(i / count), i % count);
    const bool kept = place == Place::in && i >= first && i < first + count;
    return kept ? own(i - first) : 3.0;
  });
  self.report.expect(wrong.empty(), what + wrong);
  self.report.expect(src.difference(own).empty(), what + "src changed");
}

void scatter(Rank& self, DType dtype, std::uint64_t count, int root, Place place) {
  const auto given = [&](std::uint64_t i) { return token(dtype, root, i); };
  const std::uint64_t first = unsigned_of(self.rank()) * count;
  const bool is_root = self.rank() == root;
  Elements src(dtype, count * unsigned_of(self.size()), self.source);
  Elements dst(dtype, count, self.target);
  src.fill(given);
  const bool into_src = is_root && place == Place::in;
  const atoll::View to = into_src ? src.view().part(first, count) : dst.view();
  const atoll::ConstView from =
      is_root || place == Place::out ? atoll::ConstView(src.view()) : atoll::ConstView();
  self.comm.scatter(from, to, root, self.stream).synchronize();
  for (std::uint64_t i = 0; into_src && i < count; ++i) dst.set(i, src.get(first + i));
  const std::string what =
      from_root(label("scatter", dtype, count) + std::string(name(place)), root);
  const std::string wrong = dst.difference([&](std::uint64_t i) { return given(first + i); });
  self.report.expect(wrong.empty(), what + wrong);
  self.report.expect(src.difference(given).empty(), what + "src changed");
}

void reduce_to(Rank& self, DType dtype, ReduceOp op, std::uint64_t count, int root, Place place) {
  const auto own = [&](std::uint64_t i) { return contribution(dtype, op, self.rank(), i); };
  const bool is_root = self.rank() == root;
  Elements src(dtype, count, self.source);
  Elements dst(dtype, count, self.target);
  src.fill(own);
  dst.fill(own);
  const atoll::ConstView from = is_root && place == Place::in ? dst.view() : src.view();
  const atoll::View to = is_root || place == Place::out ? dst.view() : atoll::View();
  self.comm.reduce(from, to, op, root, self.stream).synchronize();
  const std::string what = from_root(label("reduce", op, dtype, count, place), root);
  const std::string wrong = dst.difference(
      [&](std::uint64_t i) { return is_root ? reduced(dtype, op, self.size(), i) : own(i); },
      is_root ? self.slack(dtype, op) : 0);
  self.report.expect(wrong.empty(), what + wrong);
  self.report.expect(src.difference(own).empty(), what + "src changed");
}

template <class Body>
void for_roots(const Rank& self, const Body& body) {
  body(0);
  if (self.size() > 1) body(self.size() - 1);
}

}  // namespace

void move_rooted(Rank& self, DType dtype, std::uint64_t count, int root) {
  for (const Place place : {Place::out, Place::in}) {
    gather(self, dtype, count, root, place);
    scatter(self, dtype, count, root, place);
  }
}

void reduce_rooted(Rank& self, DType dtype, ReduceOp op, std::uint64_t count, int root) {
  reduce_to(self, dtype, op, count, root, Place::out);
  reduce_to(self, dtype, op, count, root, Place::in);
}

void check_gather(Rank& self) {
  for (const DType dtype : all_dtypes) {
    for (const std::uint64_t count : counts_around(self.size(), dtype)) {
      for_roots(self, [&](int root) {
        gather(self, dtype, count, root, Place::out);
        gather(self, dtype, count, root, Place::in);
      });
    }
  }
  for (int root = 0; root < self.size(); ++root) gather(self, DType::f32, 31, root, Place::out);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    gather(self, dtype, mebibyte_of(dtype), self.size() - 1, Place::in);
  }
}

void check_scatter(Rank& self) {
  for (const DType dtype : all_dtypes) {
    for (const std::uint64_t count : counts_around(self.size(), dtype)) {
      for_roots(self, [&](int root) {
        scatter(self, dtype, count, root, Place::out);
        scatter(self, dtype, count, root, Place::in);
      });
    }
  }
  for (int root = 0; root < self.size(); ++root) scatter(self, DType::f32, 31, root, Place::out);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    scatter(self, dtype, mebibyte_of(dtype), self.size() - 1, Place::in);
  }
}

void check_reduce(Rank& self) {
  for (const DType dtype : reducible_dtypes) {
    for (const ReduceOp op : all_ops) {
      for (const std::uint64_t count : counts_around(self.size(), dtype, op)) {
        for_roots(self, [&](int root) { reduce_rooted(self, dtype, op, count, root); });
      }
    }
  }
  for (int root = 0; root < self.size(); ++root) {
    reduce_rooted(self, DType::f32, ReduceOp::sum, 31, root);
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    reduce_rooted(self, dtype, ReduceOp::sum, mebibyte_of(dtype), 0);
  }
  reduce_to(self, DType::f32, ReduceOp::max, large_count, self.size() - 1, Place::out);
}

}  // namespace conformance
