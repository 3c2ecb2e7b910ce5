// Checks the order of operations on several streams, within one communicator, between two
// communicators, and over the axes of a mesh.
#include <algorithm>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "checks.hpp"

namespace conformance {
namespace {

constexpr std::uint64_t count = 1000;

// Blocks a stream until open() is called. Work enqueued after the gate cannot run before that, so
// work that completes while the gate is closed did not wait for the blocked stream.
class Gate {
 public:
  // Allocates the device memory of `used` first, because an allocation may wait for all streams of
  // the device.
  explicit Gate(atoll::Stream& stream, std::initializer_list<Elements*> used = {}) {
    for (Elements* const elements : used) elements->view();
    stream.enqueue([opened = opened_.get_future().share()] { opened.wait(); });
  }
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void open() {
    if (!std::exchange(is_open_, true)) opened_.set_value();
  }

 private:
  std::promise<void> opened_;
  bool is_open_ = false;
};

double own(const Rank& self, std::uint64_t i) {
  return contribution(DType::f32, ReduceOp::sum, self.rank(), i);
}

double sum(const Rank& self, std::uint64_t i) {
  return reduced(DType::f32, ReduceOp::sum, self.size(), i);
}

Elements filled(const Rank& self) {
  Elements data(DType::f32, count);
  return data.fill([&](std::uint64_t i) { return own(self, i); });
}

atoll::Stream new_stream(const Rank& self, std::string name) {
  return self.comm.device().stream({.name = std::move(name)});
}

}  // namespace

// Checks that Work::wait alone orders a producer, a collective and a consumer that run on two
// streams.
void check_wait_orders_streams(Rank& self) {
  atoll::Stream consumer = new_stream(self, "consumer");
  // On a GPU, a copy is ordered by the stream only if the host side is staging memory.
  const atoll::Buffer staging = self.comm.device().allocate_staging(count * sizeof(float));
  auto* const produced = static_cast<float*>(staging.data());
  Elements src(DType::f32, count);
  Elements dst(DType::f32, count);
  Elements seen(DType::f32, count);
  Gate gate(self.stream, {&src, &dst, &seen});
  self.stream.enqueue([&] {
    for (std::uint64_t i = 0; i < count; ++i) produced[i] = static_cast<float>(own(self, i));
  });
  self.stream.copy(src.view().data, produced, src.view().bytes());
  const auto work = self.comm.all_reduce(src.view(), dst.view(), ReduceOp::sum, self.stream);
  self.report.expect(!work.done(), "Work::done before the operation could start");
  work.wait(consumer);
  consumer.copy(seen.view().data, dst.view().data, dst.view().bytes());
  gate.open();
  consumer.synchronize();
  const std::string wrong = seen.difference([&](std::uint64_t i) { return sum(self, i); });
  self.report.expect(wrong.empty(), "Work::wait orders streams: " + wrong);
  self.report.expect(work.done(), "Work::done after a stream that waited for it");
  const atoll::Work nothing;
  nothing.wait(consumer);
  nothing.synchronize();
  self.report.expect(nothing.done(), "a default Work is complete");
}

// Checks that every call returns while the stream is blocked. A call that blocks is ended by the
// watchdog of the test.
void check_calls_return_at_once(Rank& self) {
  const auto ranks = static_cast<std::uint64_t>(self.size());
  Elements part = filled(self);
  Elements whole(DType::f32, count * ranks);
  Elements other(DType::f32, count * ranks);
  Gate gate(self.stream, {&part, &whole, &other});
  std::vector<atoll::Work> works;
  works.push_back(self.comm.all_gather(part.view(), whole.view(), self.stream));
  works.push_back(self.comm.all_to_all(whole.view(), other.view(), self.stream));
  works.push_back(self.comm.reduce_scatter(whole.view(), part.view(), ReduceOp::max, self.stream));
  works.push_back(self.comm.broadcast(part.view(), 0, self.stream));
  works.push_back(self.comm.barrier(self.stream));
  for (const auto& work : works) {
    self.report.expect(!work.done(), "a call returned with its operation complete");
  }
  gate.open();
  for (const auto& work : works) work.synchronize();
  // Every rank gathered the same data, so the maximum of each block over all ranks is the block
  // itself. Rank 0 then broadcasts its block, which holds the contribution of rank 0.
  const std::string wrong = part.difference(
      [&](std::uint64_t i) { return contribution(DType::f32, ReduceOp::sum, 0, i); });
  self.report.expect(wrong.empty(), "five collectives in a row: " + wrong);
}

// Checks that the second call, on a free stream, waits for the first call of the same communicator,
// which is on a blocked stream.
void check_order_across_streams(Rank& self) {
  atoll::Stream free_stream = new_stream(self, "free");
  Elements x = filled(self);
  Elements y(DType::f32, count);
  Elements z(DType::f32, count);
  Gate gate(self.stream, {&x, &y, &z});
  const auto first = self.comm.all_reduce(x.view(), y.view(), ReduceOp::sum, self.stream);
  const auto second = self.comm.all_reduce(y.view(), z.view(), ReduceOp::max, free_stream);
  // Delays even ranks, so that ranks arrive at the operations at different times.
  std::this_thread::sleep_for(std::chrono::milliseconds(self.rank() % 2 == 0 ? 5 : 0));
  self.report.expect(!second.done(), "the second operation overtook the first");
  gate.open();
  second.synchronize();
  self.report.expect(first.done(), "the second operation was complete before the first");
  const std::string wrong = z.difference([&](std::uint64_t i) { return sum(self, i); });
  self.report.expect(wrong.empty(), "two streams of one communicator: " + wrong);
}

void check_many_in_flight(Rank& self) {
  constexpr int operations = 100;
  std::vector<Elements> data(operations, filled(self));
  std::vector<atoll::Work> works;
  for (Elements& one : data) {
    works.push_back(self.comm.all_reduce(one.view(), one.view(), ReduceOp::sum, self.stream));
  }
  works.back().synchronize();
  for (std::size_t k = 0; k < data.size(); ++k) {
    self.report.expect(works[k].done(), "operations complete in order");
    const std::string wrong = data[k].difference([&](std::uint64_t i) { return sum(self, i); });
    self.report.expect(wrong.empty(), "operation " + std::to_string(k) + " of many: " + wrong);
  }
}

// Checks that ranks may call two communicators on separate streams in different orders, once both
// communicators are connected.
void check_two_communicators(Rank& self) {
  constexpr int rounds = 40;
  const auto mesh = atoll::Mesh::make(self.world, {.replicate = 1, .shard = self.size()});
  auto other = atoll::Communicator::open(
      mesh.axis("shard"),
      {.name = "second", .backend = self.backend(), .device = self.comm.device()});
  atoll::Stream other_stream = new_stream(self, "second");
  std::vector<Elements> mine(rounds, filled(self));
  std::vector<Elements> theirs = mine;
  const auto reduce = [](atoll::Communicator& comm, Elements& data, atoll::Stream& stream) {
    return comm.all_reduce(data.view(), data.view(), ReduceOp::sum, stream);
  };
  Elements first = filled(self);
  for (atoll::Communicator* comm : {&self.comm, &other}) {
    reduce(*comm, first, self.stream).synchronize();
  }
  std::vector<atoll::Work> works;
  const bool odd = self.rank() % 2 == 1;
  for (std::size_t k = 0; k < rounds; ++k) {
    if (odd) works.push_back(reduce(other, theirs[k], other_stream));
    works.push_back(reduce(self.comm, mine[k], self.stream));
    if (!odd) works.push_back(reduce(other, theirs[k], other_stream));
  }
  for (const auto& work : works) work.synchronize();
  for (std::size_t k = 0; k < rounds; ++k) {
    const auto expected = [&](std::uint64_t i) { return sum(self, i); };
    const std::string wrong = mine[k].difference(expected) + theirs[k].difference(expected);
    self.report.expect(wrong.empty(), "two communicators at once: " + wrong);
  }
}

namespace {

void check_axis(Rank& self, const atoll::Axis& axis) {
  auto comm = atoll::Communicator::open(
      axis, {.name = "", .backend = self.backend(), .device = self.comm.device()});
  const std::string what = "axis " + axis.name + " of " + std::to_string(axis.size());
  self.report.expect(comm.rank() == axis.index && comm.size() == axis.size(), what + ": place");
  self.report.expect(comm.name() == axis.name, what + ": name");
  const auto members = all_say(self, comm, self.world.rank());
  self.report.expect(std::ranges::equal(members, axis.ranks),
                     what + ": other members than planned");
  Elements me(DType::i32, 1), total(DType::i32, 1);
  me.set(0, self.world.rank());
  comm.all_reduce(me.view(), total.view(), ReduceOp::sum, self.stream).synchronize();
  double expected = 0;
  for (const int rank : axis.ranks) expected += rank;
  self.report.expect(total.get(0) == expected, what + ": sum of its ranks");
}

}  // namespace

void check_mesh_axes(Rank& self) {
  for (int shard = 1; shard <= self.size(); ++shard) {
    if (self.size() % shard != 0) continue;
    const atoll::MeshShape shape{.replicate = self.size() / shard, .shard = shard};
    const auto mesh = atoll::Mesh::make(self.world, shape);
    const atoll::Axis& inner = mesh.axis("shard");
    const atoll::Axis& outer = mesh.axis("replicate");
    self.report.expect(inner.size() == shape.shard && outer.size() == shape.replicate,
                       "shape of mesh " + mesh.to_string());
    self.report.expect(
        inner.index == self.world.rank() % shard && outer.index == self.world.rank() / shard,
        "the shard axis of mesh " + mesh.to_string() + " is the inner one");
    check_axis(self, inner);
    check_axis(self, outer);
    check_axis(self, mesh.axis("world"));
  }
}

}  // namespace conformance
