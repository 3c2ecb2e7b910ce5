// Checks that all_gather, broadcast and all_to_all deliver every element unchanged.
#include "checks.hpp"

namespace conformance {
namespace {

void all_gather(Rank& self, DType dtype, std::uint64_t count, Place place) {
  const auto own = [&](std::uint64_t i) { return token(dtype, self.rank(), i); };
  const std::uint64_t first = unsigned_of(self.rank()) * count;
  Elements src(dtype, count, self.source);
  Elements dst(dtype, count * unsigned_of(self.size()), self.target);
  src.fill(own);
  for (std::uint64_t i = 0; place == Place::in && i < count; ++i) dst.set(first + i, own(i));
  const atoll::ConstView from = place == Place::in ? dst.view().part(first, count) : src.view();
  self.comm.all_gather(from, dst.view(), self.stream).synchronize();
  const std::string wrong = dst.difference(
      [&](std::uint64_t i) { return token(dtype, static_cast<int>(i / count), i % count); });
  const std::string what = label("all_gather", dtype, count) + std::string(name(place)) + ": ";
  self.report.expect(wrong.empty(), what + wrong);
  self.report.expect(src.difference(own).empty(), what + "src changed");
}

void broadcast(Rank& self, DType dtype, std::uint64_t count, int root) {
  Elements data(dtype, count, self.target);
  data.fill([&](std::uint64_t i) { return token(dtype, self.rank(), i); });
  self.comm.broadcast(data.view(), root, self.stream).synchronize();
  const std::string wrong = data.difference([&](std::uint64_t i) { return token(dtype, root, i); });
  self.report.expect(wrong.empty(), label("broadcast", dtype, count) + " from rank " +
                                        std::to_string(root) + ": " + wrong);
}

void all_to_all(Rank& self, DType dtype, std::uint64_t count) {
  const auto own = [&](std::uint64_t i) { return token(dtype, self.rank(), i); };
  Elements src(dtype, count * unsigned_of(self.size()), self.source);
  Elements dst(dtype, src.count(), self.target);
  src.fill(own);
  self.comm.all_to_all(src.view(), dst.view(), self.stream).synchronize();
  const std::string wrong = dst.difference([&](std::uint64_t i) {
    return token(dtype, static_cast<int>(i / count), unsigned_of(self.rank()) * count + i % count);
  });
  const std::string what = label("all_to_all", dtype, count) + ": ";
  self.report.expect(wrong.empty(), what + wrong);
  self.report.expect(src.difference(own).empty(), what + "src changed");
}

}  // namespace

std::vector<std::int64_t> all_say(const Rank& self, atoll::Communicator& comm, std::int64_t mine) {
  Elements one(DType::i64, 1), all(DType::i64, unsigned_of(comm.size()));
  one.set(0, static_cast<double>(mine));
  comm.all_gather(one.view(), all.view(), self.stream).synchronize();
  std::vector<std::int64_t> said;
  for (std::uint64_t i = 0; i < all.count(); ++i)
    said.push_back(static_cast<std::int64_t>(all.get(i)));
  return said;
}

void move(Rank& self, DType dtype, std::uint64_t count) {
  all_gather(self, dtype, count, Place::out);
  all_gather(self, dtype, count, Place::in);
  all_to_all(self, dtype, count);
  for (const int root : {0, self.size() - 1}) broadcast(self, dtype, count, root);
}

void check_all_gather(Rank& self) {
  for (const DType dtype : all_dtypes) {
    for (const std::uint64_t count : counts_around(self.size(), dtype)) {
      all_gather(self, dtype, count, Place::out);
      all_gather(self, dtype, count, Place::in);
    }
  }
  const std::uint64_t share = 2 * large_count / unsigned_of(self.size());
  all_gather(self, DType::bf16, share, Place::out);
  all_gather(self, DType::f32, share, Place::in);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    all_gather(self, dtype, mebibyte_of(dtype), Place::out);
    all_gather(self, dtype, mebibyte_of(dtype), Place::in);
    for (const std::uint64_t count : {std::uint64_t{127}, mebibyte_of(dtype)}) {
      all_gather(self, dtype, count, place_by_rank(self.rank()));
      all_gather(self, dtype, count, place_by_rank(self.rank() + 1));
      all_gather(self, dtype, count, self.rank() == 0 ? Place::out : Place::in);
    }
  }
}

void check_broadcast(Rank& self) {
  for (const DType dtype : all_dtypes) {
    for (const std::uint64_t count : counts_around(self.size(), dtype)) {
      for (int root = 0; root < self.size(); ++root) broadcast(self, dtype, count, root);
    }
  }
  broadcast(self, DType::f32, large_count, self.size() - 1);
  broadcast(self, DType::bf16, mebibyte_of(DType::bf16), 0);
}

void check_all_to_all(Rank& self) {
  for (const DType dtype : all_dtypes) {
    for (const std::uint64_t count : counts_around(self.size(), dtype))
      all_to_all(self, dtype, count);
  }
  all_to_all(self, DType::f32, large_count / unsigned_of(self.size()));
}

}  // namespace conformance
