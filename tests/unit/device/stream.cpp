#include <doctest/doctest.h>

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/cuda.hpp"
#include "atoll/device.hpp"
#include "unit/error_text.hpp"
#include "unit/jitter_device.hpp"

using namespace std::chrono_literals;
using atoll_test::error_of;
using atoll_test::has;

TEST_CASE("requesting a GPU that does not exist is an error") {
  const int count = atoll::Device::cuda_count();
  CHECK(count >= 0);
  CHECK_THROWS_AS(atoll::Device::cuda(count), atoll::Error);
  CHECK_THROWS_AS(atoll::Device::cuda(-1), atoll::Error);
}

TEST_CASE("streams, events and devices without a GPU are refused by name") {
  const auto device = atoll::Device::cpu();
  auto stream = device.stream({.name = "compute"});
  const atoll::Event event = stream.record();
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"the stream compute is", [&] { static_cast<void>(atoll::cuda::native(stream)); }},
      {"the stream is", [&] { atoll::cuda::launch(stream, [](CUstream_st*) {}); }},
      {"the stream is", [&] { atoll::cuda::record(stream, nullptr); }},
      {"the stream is", [&] { atoll::cuda::wait(stream, nullptr); }},
      {"the event is", [&] { atoll::cuda::wait(nullptr, event); }},
      {"the device CPU is", [&] { atoll::cuda::wrap_stream(device, nullptr); }}};
  for (const auto& [what, call] : calls) {
    CHECK(has(error_of(call), std::string(what) + " not on a GPU: atoll/cuda.hpp needs Device::"));
  }
}

TEST_CASE("a stream runs its work in order") {
  const auto device = atoll::Device::cpu();
  auto stream = device.stream();
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) stream.enqueue([&order, i] { order.push_back(i); });
  stream.synchronize();
  REQUIRE(order.size() == 1000);
  for (int i = 0; i < 1000; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("an event orders two streams") {
  const auto device = atoll::Device::cpu();
  auto first = device.stream(), second = device.stream();
  std::atomic<int> value{0};
  first.enqueue([&] {
    std::this_thread::sleep_for(20ms);
    value = 1;
  });
  const auto event = first.record();
  second.wait(event);
  int seen = 0;
  second.enqueue([&] { seen = value; });
  second.synchronize();
  CHECK(seen == 1);
  CHECK(event.happened());
  CHECK(atoll::Event().happened());
}

TEST_CASE("enqueue returns at once, and the destructor waits for the work") {
  const auto device = atoll::Device::cpu();
  std::atomic<bool> done{false};
  {
    auto stream = device.stream();
    const auto start = std::chrono::steady_clock::now();
    stream.enqueue([&] {
      std::this_thread::sleep_for(100ms);
      done = true;
    });
    CHECK(std::chrono::steady_clock::now() - start < 90ms);
  }
  CHECK(done);
}

TEST_CASE("after a failure nothing else runs, and waiting calls throw") {
  const auto device = atoll::Device::cpu();
  auto first = device.stream(), second = device.stream();
  bool ran = false, ran_behind = false;
  first.enqueue([] { throw std::runtime_error("planted"); });
  first.enqueue([&] { ran = true; });
  const auto event = first.record();
  const auto stamp = first.stamp();
  second.wait(event);
  second.enqueue([&] { ran_behind = true; });
  CHECK_THROWS_WITH(first.synchronize(), "planted");
  CHECK_THROWS_WITH(second.synchronize(), "planted");
  CHECK_THROWS_WITH(event.synchronize(), "planted");
  CHECK_FALSE(ran);
  CHECK_FALSE(ran_behind);
  CHECK(stamp.ns());  // stamps are taken even after a failure
}

TEST_CASE("time spent waiting for communication is counted, other waits are not") {
  const auto device = atoll::Device::cpu();
  auto lane = device.stream(), compute = device.stream();
  const auto slow = [&] {
    lane.enqueue([] { std::this_thread::sleep_for(50ms); });
    return lane.record();
  };
  compute.wait(slow(), atoll::WaitReason::order);
  compute.synchronize();
  CHECK(compute.exposed_communication() == 0ns);
  const auto happened = slow();
  lane.synchronize();
  compute.wait(happened, atoll::WaitReason::communication);
  compute.synchronize();
  CHECK(compute.exposed_communication() == 0ns);
  compute.wait(slow(), atoll::WaitReason::communication);
  compute.synchronize();
  CHECK(compute.exposed_communication() > 40ms);
}

TEST_CASE("a stamp is the time at which the stream reaches it") {
  const auto now = [] {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  };
  CHECK_FALSE(atoll::Stamp().ns());
  // Streams of the CPU device take the time stamps of CPU streams. Streams of JitterDevice take
  // the default stamps of StreamBackend.
  const atoll::Device devices[] = {atoll::Device::cpu(),
                                   atoll::Device(std::make_shared<atoll_test::JitterDevice>(1))};
  for (const auto& device : devices) {
    auto stream = device.stream({.name = "of a name"});
    CHECK(stream.name() == "of a name");
    std::mutex gate;
    gate.lock();
    const auto start = now();
    const auto before = stream.stamp();
    stream.enqueue([&] { const std::lock_guard lock(gate); });
    const auto after = stream.stamp();
    const auto copy = after;
    std::this_thread::sleep_for(20ms);
    CHECK_FALSE(after.ns());
    gate.unlock();
    stream.synchronize();
    REQUIRE(before.ns());
    REQUIRE(copy.ns());
    CHECK(*before.ns() >= start);
    CHECK(*copy.ns() - start >= 20'000'000);
    CHECK(*copy.ns() <= now());
  }
}

TEST_CASE("copy and zero") {
  const auto device = atoll::Device::cpu();
  auto stream = device.stream();
  std::vector<float> source(1000, 2.5f), target(1000, 1.0f);
  stream.copy(target.data(), source.data(), 500 * sizeof(float));
  stream.zero(source.data(), source.size() * sizeof(float));
  stream.synchronize();
  CHECK(target[499] == 2.5f);
  CHECK(target[500] == 1.0f);
  CHECK(source[999] == 0.0f);
}

TEST_CASE("allocations are counted, and empty buffers are fine") {
  const auto device = atoll::Device::cpu();
  {
    const auto a = device.allocate(10'000), b = device.allocate(0);
    CHECK(device.allocated_bytes() == 10'000);
    CHECK(b.data() == nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(a.data()) % 4096 == 0);
  }
  CHECK(device.allocated_bytes() == 0);
  CHECK(device.peak_allocated_bytes() == 10'000);
}

TEST_CASE("many threads may synchronize with one event") {
  const auto device = atoll::Device::cpu();
  auto stream = device.stream();
  std::atomic<int> runs{0};
  for (int round = 0; round < 200; ++round) {
    stream.enqueue([&] { ++runs; });
    const auto event = stream.record();
    std::vector<std::jthread> waiters;
    for (int t = 0; t < 3; ++t) waiters.emplace_back([&] { event.synchronize(); });
  }
  stream.synchronize();
  CHECK(runs == 200);
}

TEST_CASE("captures of a skipped task are destroyed without the queue's lock") {
  const auto device = atoll::Device::cpu();
  auto stream = device.stream();
  stream.enqueue([] { throw std::runtime_error("planted"); });
  bool touched = false;
  // A skipped task is the last owner of a Held, and the destructor of Held uses the stream.
  struct Held {
    atoll::Stream& stream;
    bool& touched;
    ~Held() {
      stream.enqueue([] {});
      touched = true;
    }
  };
  stream.enqueue([held = std::make_shared<Held>(stream, touched)] {});
  CHECK_THROWS_WITH(stream.synchronize(), "planted");
  CHECK(touched);
}

TEST_CASE("the library works in threads with small stacks") {
  // The library's static thread-local memory is taken from the stack of every thread of the
  // process.
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 * 1024);
  pthread_t thread{};
  const int status = pthread_create(
      &thread, &attributes, [](void*) -> void* { return nullptr; }, nullptr);
  pthread_attr_destroy(&attributes);
  REQUIRE(status == 0);
  pthread_join(thread, nullptr);
}
