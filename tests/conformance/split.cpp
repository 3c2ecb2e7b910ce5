// Checks communicators that were created by splitting another communicator.
#include <algorithm>

#include "atoll/error.hpp"
#include "checks.hpp"

namespace conformance {
namespace {

// Runs the operations that every communicator must support, whichever ranks it contains.
void exercise(Rank& self, atoll::Communicator& comm) {
  Rank member{self.world, comm, self.stream, self.report};
  move(member, DType::bf16, 31);
  reduce(member, DType::f32, ReduceOp::sum, 127);
  move_rooted(member, DType::i32, 7, member.size() - 1);
  reduce_uneven(member, DType::f32, ReduceOp::avg, uneven_counts(member.size(), 5)[2]);
  comm.barrier(self.stream).synchronize();
}

// Checks that the communicator contains exactly the ranks `ranks`, in this order.
void expect_members(Rank& self, atoll::Communicator& comm, const std::vector<std::int32_t>& ranks,
                    const std::string& what) {
  self.report.expect(comm.size() == static_cast<int>(ranks.size()), what + ": size");
  self.report.expect(comm.backend() == self.backend(), what + ": another backend");
  const auto members = all_say(self, comm, self.rank());
  self.report.expect(std::ranges::equal(members, ranks),
                     what + ": other members, or in another order");
  self.report.expect(ranks[unsigned_of(comm.rank())] == self.rank(), what + ": rank");
}

void even_and_odd(Rank& self) {
  const int color = self.rank() % 2;
  auto part = self.comm.split(color);
  self.report.expect(part.has_value(), "split by parity gave nothing");
  std::vector<std::int32_t> ranks;
  for (int r = color; r < self.size(); r += 2) ranks.push_back(r);
  expect_members(self, *part, ranks, "split by parity");
  self.report.expect(part->name() == std::string(self.comm.name()) + "." + std::to_string(color),
                     "the name of a part is " + std::string(part->name()));
  exercise(self, *part);
  // A communicator made by split() can be split again by its own ranks.
  auto again = part->split(0, -part->rank(), "reversed");
  self.report.expect(again.has_value() && again->name() == "reversed", "the name that was given");
  expect_members(self, *again, {ranks.rbegin(), ranks.rend()}, "a part in reverse");
  exercise(self, *again);
}

// Splits the communicator twice: first only one rank passes a color, then all ranks except one do.
// The ranks without a color take part in the split, but get no communicator.
void with_and_without(Rank& self) {
  const int chosen = self.size() / 2;
  auto alone = self.comm.split(self.rank() == chosen ? std::optional(5) : std::nullopt);
  self.report.expect(alone.has_value() == (self.rank() == chosen), "split of one rank");
  if (alone) {
    expect_members(self, *alone, {chosen}, "split of one rank");
    exercise(self, *alone);
  }
  auto rest = self.comm.split(self.rank() == chosen ? std::nullopt : std::optional(-1));
  self.report.expect(rest.has_value() == (self.rank() != chosen), "split of the rest");
  std::vector<std::int32_t> others;
  for (int r = 0; r < self.size(); ++r) {
    if (r != chosen) others.push_back(r);
  }
  if (rest) expect_members(self, *rest, others, "split of the rest");
  const auto none = self.comm.split(std::nullopt);
  self.report.expect(!none.has_value(), "split without colors");
}

// Checks that split() orders ranks by key, and that ranks with equal keys keep their old order.
void by_key(Rank& self) {
  auto sorted = self.comm.split(7, self.rank() % 2 == 0 ? 1 : 0);
  std::vector<std::int32_t> ranks;
  for (const int parity : {1, 0}) {
    for (int r = parity; r < self.size(); r += 2) ranks.push_back(r);
  }
  expect_members(self, *sorted, ranks, "split by key");
}

}  // namespace

void check_split(Rank& self) {
  even_and_odd(self);
  with_and_without(self);
  by_key(self);
  for (int round = 0; round < 5; ++round) {
    auto whole = self.comm.split(round, 0);
    Rank member{self.world, *whole, self.stream, self.report};
    reduce(member, DType::f32, ReduceOp::sum, 100);
  }
  // The communicator that was split still works afterwards.
  reduce(self, DType::f32, ReduceOp::max, 100);
}

}  // namespace conformance
