// Checks counts and sizes that do not fit into 32 bits. They need 2 to 4 GiB per rank, so the
// suite runs them only when ATOLL_TEST_LARGE is set.
#include <algorithm>
#include <numeric>

#include "checks.hpp"

namespace conformance {
namespace {

// Gathers more than 2^31 elements in place and verifies every 101st element.
void large_moves(Rank& self) {
  const std::uint64_t ranks = unsigned_of(self.size());
  const std::uint64_t count = (std::uint64_t{1} << 31) / ranks + 13;
  const std::uint64_t first = count * unsigned_of(self.rank());
  const auto value = [](std::uint64_t i) { return static_cast<std::uint8_t>(i / 977 * 31 + 7); };
  std::vector<std::uint8_t> data(count * ranks);
  const std::vector<std::uint64_t> counts(ranks, count);
  for (const std::string_view operation : {"all_gather", "all_gather_v"}) {
    std::ranges::fill(data, std::uint8_t{0});
    for (std::uint64_t i = first; i < first + count; ++i) data[i] = value(i);
    const atoll::View whole(data);
    const atoll::View mine = whole.part(first, count);
    if (operation == "all_gather") {
      self.comm.all_gather(mine, whole, self.stream).synchronize();
    } else {
      self.comm.all_gather_v(mine, whole, counts, self.stream).synchronize();
    }
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 0; i < data.size(); i += 101) wrong += data[i] != value(i) ? 1 : 0;
    self.report.expect(wrong == 0 && data.back() == value(data.size() - 1),
                       label(operation, DType::u8, data.size()));
  }
}

// Sums more than 1 GiB with reduce_scatter_v, unequal counts and a factor, and then with
// all_reduce.
void large_sums(Rank& self) {
  const std::uint64_t ranks = unsigned_of(self.size());
  std::vector<std::uint64_t> counts(ranks, (std::uint64_t{1} << 28) / ranks + 1001);
  counts.front() += 5;
  const std::uint64_t total = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  const std::uint64_t count = counts[unsigned_of(self.rank())];
  const std::uint64_t first = self.rank() == 0 ? 0 : unsigned_of(self.rank()) * counts.back() + 5;
  std::vector<float> src(total);
  std::vector<float> dst(count);
  const auto own = [&](std::uint64_t i) {
    return static_cast<float>(i % 1000 + unsigned_of(self.rank()));
  };
  const auto sum = [&](std::uint64_t i) {
    return static_cast<float>(ranks * (i % 1000) + ranks * (ranks - 1) / 2);
  };
  for (std::uint64_t i = 0; i < total; ++i) src[i] = own(i);
  const atoll::Reduction half{ReduceOp::sum, 0.5};
  self.comm.reduce_scatter_v(src, dst, counts, half, self.stream).synchronize();
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < count; ++i) wrong += dst[i] != sum(first + i) / 2 ? 1 : 0;
  self.report.expect(wrong == 0, label("reduce_scatter_v", DType::f32, total));
  self.comm.all_reduce(src, src, ReduceOp::sum, self.stream).synchronize();
  wrong = 0;
  for (std::uint64_t i = 0; i < total; ++i) wrong += src[i] != sum(i) ? 1 : 0;
  self.report.expect(wrong == 0, label("all_reduce", DType::f32, total));
}

// Runs one operation on more than 2^31 elements of registered memory.
void large_registered(Rank& self) {
  const std::uint64_t count = (std::uint64_t{1} << 31) + 77;
  const auto value = [&](std::uint64_t i) {
    return static_cast<std::uint8_t>((i / 977 * 31 + 7) % 64 + unsigned_of(self.rank()));
  };
  const atoll::Buffer memory = atoll::allocate(self.comm.device(), count, {self.comm});
  const atoll::View data = memory.view(DType::u8);
  auto* elements = data.as<std::uint8_t>();
  const auto check = [&](const char* operation, const auto& expected) {
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 0; i < count; i += 101) wrong += elements[i] != expected(i) ? 1 : 0;
    wrong += elements[count - 1] != expected(count - 1) ? 1 : 0;
    self.report.expect(wrong == 0, label(operation, DType::u8, count));
  };
  const auto fill = [&] {
    for (std::uint64_t i = 0; i < count; ++i) elements[i] = value(i);
  };
  fill();
  self.comm.all_reduce(data, data, ReduceOp::max, self.stream).synchronize();
  const std::uint64_t last = unsigned_of(self.size()) - 1, mine = unsigned_of(self.rank());
  check("all_reduce", [&](std::uint64_t i) { return value(i) - mine + last; });
  fill();
  self.comm.broadcast(data, self.size() - 1, self.stream).synchronize();
  check("broadcast", [&](std::uint64_t i) { return value(i) - mine + last; });
}

}  // namespace

void check_large_counts(Rank& self) {
  large_registered(self);
  large_moves(self);
  large_sums(self);
}

}  // namespace conformance
