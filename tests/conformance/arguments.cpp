// Misuse: it throws where it happens, before anything is sent, so nobody else is disturbed.
#include <functional>

#include "atoll/error.hpp"
#include "checks.hpp"

namespace conformance {
namespace {

void expect_error(Rank& self, const std::string& what, atoll::ErrorCode code,
                  const std::function<void()>& call) {
  try {
    call();
    self.report.expect(false, what + " was accepted");
  } catch (const atoll::Error& error) {
    self.report.expect(error.code() == code, what + ": " + error.what());
    self.report.expect(std::string_view(error.what()).find('\n') == std::string_view::npos,
                       what + ": the message has several lines");
  }
}

void misuse(Rank& self) {
  auto& comm = self.comm;
  auto& stream = self.stream;
  const auto ranks = static_cast<std::uint64_t>(self.size());
  Elements small(DType::f32, 8);
  Elements large(DType::f32, 8 * ranks);
  Elements longer(DType::f32, 8 * ranks + 1);
  Elements other(DType::i32, 8 * ranks);
  const auto refused = [&](const std::string& what, const std::function<void()>& call) {
    expect_error(self, what, atoll::ErrorCode::invalid_argument, call);
  };
  refused("all_gather into too much",
          [&] { (void)comm.all_gather(small.view(), longer.view(), stream); });
  refused("all_gather into another type",
          [&] { (void)comm.all_gather(small.view(), other.view(), stream); });
  refused("reduce_scatter of too much",
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
    refused("all_to_all of a count that ranks cannot share",
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
