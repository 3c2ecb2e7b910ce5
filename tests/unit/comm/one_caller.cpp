// Two threads that call one communicator: the second call is an error, unless the operations of the
// first thread are complete. Streams of other devices are errors as well.
#include <doctest/doctest.h>

#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/mesh.hpp"
#include "atoll/planner.hpp"
#include "device/backend.hpp"
#include "unit/error_text.hpp"
#include "unit/rank_reports.hpp"

namespace {

// Holds the thread that enqueues an operation until the test lets it go.
struct Door {
  std::latch reached{1};
  std::latch opened{1};
};

class HeldStream final : public atoll::StreamBackend {
 public:
  HeldStream(std::unique_ptr<atoll::StreamBackend> inner, Door& door)
      : inner_(std::move(inner)), door_(door) {}
  void enqueue(std::function<void()> work) override { inner_->enqueue(std::move(work)); }
  void copy(void* dst, const void* src, std::size_t bytes) override {
    inner_->copy(dst, src, bytes);
  }
  void fill(void* dst, std::byte value, std::size_t bytes) override {
    inner_->fill(dst, value, bytes);
  }
  std::shared_ptr<atoll::EventBackend> record() override { return inner_->record(); }
  std::shared_ptr<atoll::EventBackend> enqueue_and_record(atoll::Task work) override {
    door_.reached.count_down();
    door_.opened.wait();
    return inner_->enqueue_and_record(std::move(work));
  }
  void wait(std::shared_ptr<atoll::EventBackend> event, atoll::WaitReason reason) override {
    inner_->wait(std::move(event), reason);
  }
  void synchronize() override { inner_->synchronize(); }
  std::chrono::nanoseconds exposed_communication() const override {
    return inner_->exposed_communication();
  }
  void* native() noexcept override { return nullptr; }

 private:
  std::unique_ptr<atoll::StreamBackend> inner_;
  Door& door_;
};

class HeldDevice final : public atoll::DeviceBackend {
 public:
  explicit HeldDevice(Door& door) : DeviceBackend({.name = "held"}), door_(door) {}
  void* allocate(std::size_t bytes) override { return host_.backend()->allocate(bytes); }
  void deallocate(void* data, std::size_t bytes) noexcept override {
    host_.backend()->deallocate(data, bytes);
  }
  std::unique_ptr<atoll::StreamBackend> make_stream(const atoll::StreamOptions& options) override {
    return std::make_unique<HeldStream>(host_.backend()->make_stream(options), door_);
  }
  atoll::DeviceOps& ops() noexcept override { return host_.ops(); }

 private:
  atoll::Device host_ = atoll::Device::cpu();
  Door& door_;
};

}  // namespace

TEST_CASE("two threads that call one communicator at the same time") {
  const auto reports = atoll_test::on_threads(2, [](atoll::World& world) {
    const auto mesh = atoll::Mesh::make(world, {1, 2});
    auto shard = atoll::Communicator::open(mesh.axis("shard"), {.backend = "host"});
    std::vector<float> first(4, 1.0f), second(4, 1.0f);
    std::string error = "no error";
    const auto add_up = [&](std::vector<float>& values, atoll::Stream& stream) {
      shard.all_reduce(values, values, atoll::ReduceOp::sum, stream).synchronize();
    };
    auto stream = atoll::Device::cpu().stream();
    if (world.rank() == 1) {
      add_up(first, stream);
    } else {
      Door door;
      auto held = atoll::Device(std::make_shared<HeldDevice>(door)).stream();
      std::jthread caller([&] { add_up(first, held); });
      door.reached.wait();
      try {
        add_up(second, stream);
      } catch (const atoll::Error& refused) {
        error = refused.what();
      }
      door.opened.count_down();
      caller.join();
    }
    CHECK(first == std::vector<float>(4, 2.0f));
    world.barrier();
    return error;
  });
  CHECK(reports[0] ==
        "all_reduce on communicator shard: another thread calls it at the same time, so ranks "
        "could see the operations in different orders: call it from one thread, wait for the "
        "operations of one thread before another calls, or open a communicator for each thread");
  CHECK(reports[1] == "no error");
}

TEST_CASE("a thread that calls a communicator while operations of another thread are in flight") {
  std::latch refused{1};
  const auto reports = atoll_test::on_threads(2, [&](atoll::World& world) {
    const auto mesh = atoll::Mesh::make(world, {1, 2});
    auto shard = atoll::Communicator::open(mesh.axis("shard"), {.backend = "host"});
    auto stream = atoll::Device::cpu().stream();
    std::vector<float> first(4, 1.0f), second(4, 1.0f);
    const auto add_up = [&](std::vector<float>& values) {
      return shard.all_reduce(values, values, atoll::ReduceOp::sum, stream);
    };
    std::string errors;
    if (world.rank() == 1) {
      refused.wait();
      add_up(first).synchronize();
    } else {
      atoll::Work work;
      std::jthread([&] { work = add_up(first); }).join();
      errors += atoll_test::error_of([&] { add_up(second).synchronize(); }) + "\n";
      errors += atoll_test::error_of([&] { shard.group({}, stream).synchronize(); }) + "\n";
      refused.count_down();
      work.synchronize();
    }
    errors += atoll_test::error_of([&] { add_up(second).synchronize(); });
    CHECK(first == std::vector<float>(4, 2.0f));
    CHECK(second == std::vector<float>(4, 2.0f));
    world.barrier();
    return errors;
  });
  const std::string end =
      " on communicator shard: operations of another thread are in flight, so ranks could see the "
      "operations in different orders: call it from one thread, wait for the operations of one "
      "thread before another calls, or open a communicator for each thread\n";
  CHECK(reports[0] ==
        "invalid argument: all_reduce" + end + "invalid argument: group" + end + "no error");
  CHECK(reports[1] == "no error");
}

TEST_CASE("a stream of another kind of device is refused before anything is enqueued") {
  const atoll::Device simulated = atoll::simulated::make_device({});
  const auto reports = atoll_test::on_threads(2, [&](atoll::World& world) {
    const auto mesh = atoll::Mesh::make(world, {1, 2});
    auto shard = atoll::Communicator::open(mesh.axis("shard"), {.backend = "host"});
    auto wrong = simulated.stream({.name = "clock"});
    auto stream = shard.device().stream();
    std::vector<float> values(4, 1.0f);
    const auto add_up = [&](atoll::Stream& on) {
      return atoll_test::error_of(
          [&] { shard.all_reduce(values, values, atoll::ReduceOp::sum, on).synchronize(); });
    };
    std::string errors = add_up(wrong) + "\n";
    errors += atoll_test::error_of([&] { shard.barrier(wrong).synchronize(); }) + "\n";
    errors += atoll_test::error_of([&] { shard.group({}, wrong).synchronize(); }) + "\n";
    errors += add_up(stream);
    CHECK(values == std::vector<float>(4, 2.0f));
    return errors;
  });
  for (int rank = 0; rank < 2; ++rank) {
    const std::string refused =
        "invalid argument: rank " + std::to_string(rank) +
        ": communicator shard: the stream clock is not a stream of the communicator's device host: "
        "take streams from Communicator::device()\n";
    CHECK(reports[static_cast<std::size_t>(rank)] == refused + refused + refused + "no error");
  }
}
