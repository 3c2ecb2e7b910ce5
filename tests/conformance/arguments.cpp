// Checks wrong arguments: a call with a wrong argument throws on the rank that passes it, before
// that rank sends anything, so that the other ranks are not disturbed.
#include <functional>

#include "atoll/error.hpp"
#include "checks.hpp"

namespace conformance {
namespace {

// Checks that the text of an error names rank, operation and communicator, as in "rank 1:
// all_gather on communicator shard: ".
bool names_all(const Rank& self, std::string_view text) {
  const std::string rank = "rank " + std::to_string(self.world.rank()) + ": ";
  const std::string communicator = " on communicator " + std::string(self.comm.name()) + ": ";
  return text.starts_with(rank) && text.find(communicator) != std::string_view::npos;
}

void expect_error(Rank& self, const std::string& what, atoll::ErrorCode code,
                  const std::function<void()>& call) {
  try {
    call();
    self.report.expect(false, what + " was accepted");
  } catch (const atoll::Error& error) {
    self.report.expect(error.code() == code, what + ": " + error.what());
    const std::string_view text = error.what();
    self.report.expect(text.find('\n') == std::string_view::npos,
                       what + ": the message has several lines");
  }
}

using Refused = std::function<void(const std::string&, const std::function<void()>&)>;

void misuse_rooted(Rank& self, const Refused& refused) {
  auto& comm = self.comm;
  auto& stream = self.stream;
  const auto ranks = unsigned_of(self.size());
  Elements small(DType::f32, 8);
  Elements large(DType::f32, 8 * ranks);
  Elements longer(DType::f32, 8 * ranks + 1);
  Elements other(DType::i32, 8 * ranks);
  const int me = self.rank();
  refused("gather into too many elements",
          [&] { (void)comm.gather(small.view(), longer.view(), me, stream); });
  refused("gather into another type",
          [&] { (void)comm.gather(small.view(), other.view(), me, stream); });
  refused("gather into nothing", [&] { (void)comm.gather(small.view(), {}, me, stream); });
  refused("scatter of too many elements",
          [&] { (void)comm.scatter(longer.view(), small.view(), me, stream); });
  refused("scatter of another type",
          [&] { (void)comm.scatter(other.view(), small.view(), me, stream); });
  refused("scatter of nothing", [&] { (void)comm.scatter({}, small.view(), me, stream); });
  refused("reduce of unequal counts",
          [&] { (void)comm.reduce(longer.view(), large.view(), ReduceOp::sum, me, stream); });
  refused("reduce into another type",
          [&] { (void)comm.reduce(large.view(), other.view(), ReduceOp::sum, me, stream); });
  for (const int nobody : {-1, self.size()}) {
    const std::string whom = " rank " + std::to_string(nobody);
    refused("gather at" + whom,
            [&] { (void)comm.gather(small.view(), large.view(), nobody, stream); });
    refused("scatter from" + whom,
            [&] { (void)comm.scatter(large.view(), small.view(), nobody, stream); });
    refused("reduce at" + whom,
            [&] { (void)comm.reduce(large.view(), large.view(), ReduceOp::sum, nobody, stream); });
  }
}

void misuse_uneven(Rank& self, const Refused& refused) {
  auto& comm = self.comm;
  auto& stream = self.stream;
  const auto ranks = unsigned_of(self.size());
  Elements small(DType::f32, 8);
  Elements large(DType::f32, 8 * ranks);
  Elements longer(DType::f32, 8 * ranks + 1);
  Elements other(DType::f32, 8 * ranks);
  const std::vector<std::uint64_t> even(ranks, 8);
  const std::vector<std::uint64_t> too_many(ranks + 1, 8);
  std::vector<std::uint64_t> wrong_own = even;
  wrong_own[unsigned_of(self.rank())] = 7;
  // The sum of the counts in `huge` overflows 64 bits and wraps around to the true number of
  // elements.
  std::vector<std::uint64_t> huge = even;
  huge[0] = ~std::uint64_t{0} - 100;
  const auto refused_with = [&](const std::string& what, const std::vector<std::uint64_t>& counts,
                                atoll::View whole) {
    refused("all_gather_v with " + what,
            [&] { (void)comm.all_gather_v(small.view(), whole, counts, stream); });
    refused("reduce_scatter_v with " + what, [&] {
      (void)comm.reduce_scatter_v(whole, small.view(), counts, ReduceOp::sum, stream);
    });
    refused("gather_v with " + what,
            [&] { (void)comm.gather_v(small.view(), whole, counts, self.rank(), stream); });
    refused("all_to_all_v with " + what,
            [&] { (void)comm.all_to_all_v(whole, counts, other.view(), even, stream); });
  };
  refused_with("one count too many", too_many, large.view());
  refused_with("no counts", {}, large.view());
  refused_with("a count for this rank that differs from its buffer", wrong_own, large.view());
  refused_with("counts that do not add up", even, longer.view());
  refused_with("counts that overflow", huge, large.view());
}

void misuse_memory(Rank& self, const Refused& refused) {
  auto& comm = self.comm;
  auto& stream = self.stream;
  const auto ranks = unsigned_of(self.size());
  Elements small(DType::f32, 8);
  Elements large(DType::f32, 8 * ranks + 8);
  const atoll::View whole = large.view().part(0, 8 * ranks);
  const atoll::View mine = whole.part(8 * unsigned_of(self.rank()), 8);
  const atoll::View beside = large.view().part(8 * unsigned_of(self.rank()) + 1, 8);
  const atoll::View shifted = large.view().part(1, 8 * ranks);
  const atoll::View nowhere(nullptr, 8, DType::f32);
  const atoll::View nowhere_whole(nullptr, 8 * ranks, DType::f32);
  const std::vector<std::uint64_t> even(ranks, 8);
  const int me = self.rank();
  const auto sum = ReduceOp::sum;
  refused("all_gather with overlapping buffers",
          [&] { (void)comm.all_gather(beside, whole, stream); });
  refused("reduce_scatter with overlapping buffers",
          [&] { (void)comm.reduce_scatter(whole, beside, sum, stream); });
  refused("all_reduce with overlapping buffers",
          [&] { (void)comm.all_reduce(whole, shifted, sum, stream); });
  refused("reduce with overlapping buffers",
          [&] { (void)comm.reduce(whole, shifted, sum, me, stream); });
  refused("gather with overlapping buffers", [&] { (void)comm.gather(beside, whole, me, stream); });
  refused("scatter with overlapping buffers",
          [&] { (void)comm.scatter(whole, beside, me, stream); });
  refused("all_to_all in place", [&] { (void)comm.all_to_all(whole, whole, stream); });
  refused("gather_v with overlapping buffers",
          [&] { (void)comm.gather_v(beside, whole, even, me, stream); });
  refused("all_to_all_v in place",
          [&] { (void)comm.all_to_all_v(whole, even, whole, even, stream); });
  refused("all_gather_v with overlapping buffers",
          [&] { (void)comm.all_gather_v(beside, whole, even, stream); });
  refused("reduce_scatter_v with overlapping buffers",
          [&] { (void)comm.reduce_scatter_v(whole, beside, even, sum, stream); });
  refused("all_gather from NULL", [&] { (void)comm.all_gather(nowhere, whole, stream); });
  refused("all_gather into NULL", [&] { (void)comm.all_gather(mine, nowhere_whole, stream); });
  refused("all_reduce of NULL", [&] { (void)comm.all_reduce(nowhere, small.view(), sum, stream); });
  refused("reduce_scatter into NULL",
          [&] { (void)comm.reduce_scatter(whole, nowhere, sum, stream); });
  refused("broadcast of NULL", [&] { (void)comm.broadcast(nowhere, me, stream); });
  refused("send of NULL", [&] { (void)comm.send(nowhere, me, stream); });
  refused("recv into NULL", [&] { (void)comm.recv(nowhere, me, stream); });
  // The sizes of these views in bytes do not fit into 64 bits. One size wraps around to the size of
  // the real buffer.
  const std::uint64_t most = ~std::uint64_t{0} / 2;
  const atoll::View endless(small.view().data, most, DType::f32);
  refused("a size beyond 64 bits", [&] { (void)comm.broadcast(endless, me, stream); });
  if (ranks == 1) return;
  refused("all_gather of a count that overflows", [&] {
    const atoll::ConstView wraps(small.view().data, ~std::uint64_t{0} / ranks + 1, DType::u8);
    (void)comm.all_gather(wraps, atoll::View(large.view().data, 0, DType::u8), stream);
  });
}

void misuse_ops(Rank& self, const Refused& refused) {
  auto& comm = self.comm;
  auto& stream = self.stream;
  Elements data(DType::f32, 8), whole(DType::i32, 8), flags(DType::boolean, 8);
  refused("bits of floating-point numbers",
          [&] { (void)comm.all_reduce(data.view(), data.view(), ReduceOp::bxor, stream); });
  refused("an average of truth values",
          [&] { (void)comm.all_reduce(flags.view(), flags.view(), ReduceOp::avg, stream); });
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    refused("a factor with " + std::string(atoll::name(op)), [&] {
      (void)comm.all_reduce(data.view(), data.view(), {op, 0.5}, stream);
    });
  }
  refused("a factor of integers", [&] {
    (void)comm.all_reduce(whole.view(), whole.view(), {ReduceOp::sum, 2.0}, stream);
  });
  refused("a factor of integers in reduce", [&] {
    (void)comm.reduce(whole.view(), whole.view(), {ReduceOp::sum, 2.0}, self.rank(), stream);
  });
}

void misuse(Rank& self) {
  auto& comm = self.comm;
  auto& stream = self.stream;
  const auto ranks = static_cast<std::uint64_t>(self.size());
  Elements small(DType::f32, 8);
  Elements large(DType::f32, 8 * ranks);
  Elements longer(DType::f32, 8 * ranks + 1);
  Elements other(DType::i32, 8 * ranks);
  const Refused refused = [&](const std::string& what, const std::function<void()>& call) {
    expect_error(self, what, atoll::ErrorCode::invalid_argument, [&] {
      try {
        call();
      } catch (const atoll::Error& error) {
        self.report.expect(
            names_all(self, error.what()),
            what + ": rank, operation or communicator is not named: " + error.what());
        throw;
      }
    });
  };
  refused("all_gather into too many elements",
          [&] { (void)comm.all_gather(small.view(), longer.view(), stream); });
  refused("all_gather into another type",
          [&] { (void)comm.all_gather(small.view(), other.view(), stream); });
  refused("reduce_scatter of too many elements",
          [&] { (void)comm.reduce_scatter(longer.view(), small.view(), ReduceOp::sum, stream); });
  refused("reduce_scatter of another type",
          [&] { (void)comm.reduce_scatter(other.view(), small.view(), ReduceOp::sum, stream); });
  refused("all_reduce of unequal counts",
          [&] { (void)comm.all_reduce(longer.view(), large.view(), ReduceOp::sum, stream); });
  refused("all_reduce into another type",
          [&] { (void)comm.all_reduce(large.view(), other.view(), ReduceOp::sum, stream); });
  refused("all_to_all of unequal counts",
          [&] { (void)comm.all_to_all(large.view(), longer.view(), stream); });
  if (self.size() > 1) {
    Elements odd(DType::f32, 8 * ranks + 1);
    refused("all_to_all of a count that the ranks do not divide",
            [&] { (void)comm.all_to_all(longer.view(), odd.view(), stream); });
  }
  for (const int nobody : {-1, self.size()}) {
    const std::string whom = " rank " + std::to_string(nobody);
    refused("broadcast from" + whom, [&] { (void)comm.broadcast(small.view(), nobody, stream); });
    refused("send to" + whom, [&] { (void)comm.send(small.view(), nobody, stream); });
    refused("recv from" + whom, [&] { (void)comm.recv(small.view(), nobody, stream); });
    const atoll::Communicator::SendRecv operations[] = {
        {atoll::Communicator::SendRecv::Kind::send, small.view(), 0},
        {atoll::Communicator::SendRecv::Kind::recv, small.view(), nobody}};
    refused("group with" + whom, [&] { (void)comm.group(operations, stream); });
  }
  misuse_rooted(self, refused);
  misuse_uneven(self, refused);
  misuse_memory(self, refused);
  misuse_ops(self, refused);
}

void expect_unharmed(Rank& self, const std::string& after) {
  Elements data(DType::i32, 100);
  data.fill(
      [&](std::uint64_t i) { return contribution(DType::i32, ReduceOp::sum, self.rank(), i); });
  self.comm.barrier(self.stream).synchronize();
  self.comm.all_reduce(data.view(), data.view(), ReduceOp::sum, self.stream).synchronize();
  const std::string wrong = data.difference(
      [&](std::uint64_t i) { return reduced(DType::i32, ReduceOp::sum, self.size(), i); });
  self.report.expect(wrong.empty(), "all_reduce after " + after + ": " + wrong);
  self.report.expect(!self.world.failure(), "the World failed after " + after);
}

}  // namespace

void check_invalid_arguments(Rank& self) {
  for (int who = 0; who < self.size(); ++who) {
    if (self.rank() == who) misuse(self);
    expect_unharmed(self, "misuse on rank " + std::to_string(who));
  }
}

void check_unknown_backend(Rank& self) {
  const auto mesh = atoll::Mesh::make(self.world, {.replicate = 1, .shard = self.size()});
  expect_error(self, "a backend that does not exist", atoll::ErrorCode::unsupported, [&] {
    (void)atoll::Communicator::open(mesh.axis("shard"), {.name = "nowhere", .backend = "nosuch"});
  });
  expect_error(self, "an axis that does not exist", atoll::ErrorCode::invalid_argument,
               [&] { (void)mesh.axis("nosuch"); });
  expect_unharmed(self, "a backend that does not exist");
}

}  // namespace conformance
