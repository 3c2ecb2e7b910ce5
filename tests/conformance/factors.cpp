// Checks reductions with factors: each rank multiplies its elements by a different factor
// before the sum. Products are computed in the accumulation type, or in the element type in GPU
// memory. The factors keep all sums exact, so the checks detect a factor that is applied too late
// or twice, and a product that is rounded too rarely or too often.
#include "checks.hpp"

namespace conformance {
namespace {

using Factors = std::vector<double>;

struct Case {
  DType dtype;
  ReduceOp op;
  std::uint64_t count;
  const Factors& factors;  // the factor of each rank
};

std::string named(std::string_view operation, const Case& c, Place place) {
  return "factors: " + label(operation, c.op, c.dtype, c.count, place) + ": ";
}

atoll::Reduction own_reduction(const Rank& self, const Case& c) {
  return {c.op, c.factors[unsigned_of(self.rank())]};
}

double expected(const Rank& self, const Case& c, std::uint64_t i) {
  const bool rounds = self.comm.device().kind() == atoll::DeviceKind::cuda;
  return reduced(c.dtype, c.op, c.factors, rounds ? Products::rounded : Products::exact, i);
}

// Factors are at most 3, so they amplify the rounding error between levels at most by 3.
double allowed(const Rank& self, const Case& c) { return 3 * self.slack(c.dtype, c.op); }

double own(const Rank& self, const Case& c, std::uint64_t i) {
  return contribution(c.dtype, c.op, self.rank(), i);
}

void all_reduce(Rank& self, const Case& c, Place place) {
  Elements src(c.dtype, c.count, self.source);
  Elements dst(c.dtype, c.count, self.target);
  src.fill([&](std::uint64_t i) { return own(self, c, i); });
  dst.fill([&](std::uint64_t i) { return own(self, c, i); });
  const atoll::ConstView from = place == Place::in ? dst.view() : src.view();
  self.comm.all_reduce(from, dst.view(), own_reduction(self, c), self.stream).synchronize();
  const std::string wrong =
      dst.difference([&](std::uint64_t i) { return expected(self, c, i); }, allowed(self, c));
  self.report.expect(wrong.empty(), named("all_reduce", c, place) + wrong);
  const std::string changed = src.difference([&](std::uint64_t i) { return own(self, c, i); });
  self.report.expect(changed.empty(), named("all_reduce", c, place) + "src: " + changed);
}

void reduce_to(Rank& self, const Case& c, int root) {
  Elements src(c.dtype, c.count, self.source);
  Elements dst(c.dtype, c.count, self.target);
  src.fill([&](std::uint64_t i) { return own(self, c, i); });
  self.comm.reduce(src.view(), dst.view(), own_reduction(self, c), root, self.stream).synchronize();
  const auto sum = [&](std::uint64_t i) { return expected(self, c, i); };
  const double slack = allowed(self, c);
  const std::string wrong = self.rank() != root ? "" : dst.difference(sum, slack);
  self.report.expect(wrong.empty(), named("reduce", c, Place::out) + wrong);
  const std::string changed = src.difference([&](std::uint64_t i) { return own(self, c, i); });
  self.report.expect(changed.empty(), named("reduce", c, Place::out) + "src: " + changed);
}

// Runs reduce_scatter with c.count elements per rank, and reduce_scatter_v with slightly larger,
// unequal counts.
void scatter(Rank& self, const Case& c, Place place) {
  std::vector<std::uint64_t> counts;
  for (int r = 0; r < self.size(); ++r) counts.push_back(c.count + unsigned_of(r % 3));
  std::uint64_t sum = 0;
  std::uint64_t uneven_first = 0;
  for (int r = 0; r < self.size(); ++r) {
    if (r == self.rank()) uneven_first = sum;
    sum += counts[unsigned_of(r)];
  }
  for (const bool uneven : {false, true}) {
    const std::uint64_t n = uneven ? counts[unsigned_of(self.rank())] : c.count;
    const std::uint64_t first = uneven ? uneven_first : unsigned_of(self.rank()) * n;
    Elements src(c.dtype, uneven ? sum : n * unsigned_of(self.size()), self.source);
    Elements dst(c.dtype, n, self.target);
    src.fill([&](std::uint64_t i) { return own(self, c, i); });
    const atoll::View to = place == Place::in ? src.view().part(first, n) : dst.view();
    const auto reduction = own_reduction(self, c);
    if (uneven) {
      self.comm.reduce_scatter_v(src.view(), to, counts, reduction, self.stream).synchronize();
    } else {
      self.comm.reduce_scatter(src.view(), to, reduction, self.stream).synchronize();
    }
    for (std::uint64_t i = 0; place == Place::in && i < n; ++i) dst.set(i, src.get(first + i));
    const std::string wrong = dst.difference(
        [&](std::uint64_t i) { return expected(self, c, first + i); }, allowed(self, c));
    self.report.expect(wrong.empty(),
                       named(uneven ? "reduce_scatter_v" : "reduce_scatter", c, place) + wrong);
  }
}

void all(Rank& self, const Case& c) {
  for (const Place place : {Place::out, Place::in}) {
    all_reduce(self, c, place);
    scatter(self, c, place);
  }
  for (const int root : {0, self.size() - 1}) reduce_to(self, c, root);
}

// Returns three sets with one factor per rank: all factors different, all 1 except the last, and
// all equal. In the first set, the factors 3 and 1.5 make bf16 products inexact, and 65 / 64 makes
// f16 products inexact, so these products must be rounded.
std::vector<Factors> factors_of(int ranks) {
  constexpr double some[] = {3, 1.5, 65.0 / 64, -2, 0.25, 1, -1, 0.125};
  std::vector<Factors> all(3, Factors(unsigned_of(ranks), 1.0));
  for (std::size_t r = 0; r < all[0].size(); ++r) all[0][r] = some[r % std::size(some)];
  all[1].back() = -0.5;
  all[2].assign(unsigned_of(ranks), 0.125);
  return all;
}

}  // namespace

void check_factors(Rank& self) {
  for (const Factors& factors : factors_of(self.size())) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
        for (const std::uint64_t count : {0u, 1u, 13u, 1009u})
          all(self, {dtype, op, count, factors});
      }
    }
    for (const DType dtype : {DType::f32, DType::bf16}) {
      all_reduce(self, {dtype, ReduceOp::sum, mebibyte_of(dtype), factors}, Place::out);
      scatter(self, {dtype, ReduceOp::sum, mebibyte_of(dtype) / unsigned_of(self.size()), factors},
              Place::in);
    }
  }
}

}  // namespace conformance
