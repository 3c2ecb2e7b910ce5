// Tests the streams, events, time stamps and failures of the cuda device.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "atoll/device.hpp"
#include "atoll/error.hpp"

using atoll::Device;
using namespace std::chrono_literals;

TEST_CASE("work runs in order, and enqueue() returns at once") {
  const Device device = Device::cuda();
  auto stream = device.stream();
  std::vector<int> order;
  const auto start = std::chrono::steady_clock::now();
  stream.enqueue([&] {
    std::this_thread::sleep_for(50ms);
    order.push_back(1);
  });
  stream.enqueue([&] { order.push_back(2); });
  CHECK(std::chrono::steady_clock::now() - start < 40ms);
  stream.synchronize();
  CHECK(order == std::vector<int>{1, 2});
}

TEST_CASE("memory is counted, copied, and filled with zeros") {
  const Device device = Device::cuda();
  auto stream = device.stream();
  std::vector<int> values{1, 2, 3, 4}, back(4);
  {
    const auto buffer = device.allocate(16);
    CHECK(device.allocated_bytes() == 16);
    stream.copy(buffer.data(), values.data(), 16);
    stream.zero(buffer.data(), 8);
    stream.copy(back.data(), buffer.data(), 16);
    stream.synchronize();
  }
  CHECK(back == std::vector<int>{0, 0, 3, 4});
  CHECK(device.allocated_bytes() == 0);
  CHECK(device.peak_allocated_bytes() == 16);
  CHECK_THROWS_AS(device.allocate(std::size_t{1} << 50), atoll::Error);
  // The failed allocation before this one must not be reported again.
  CHECK_NOTHROW(device.allocate(16));
}

TEST_CASE(
    "a stream waits for an event of another stream, and only communication waits count as "
    "exposed") {
  const Device device = Device::cuda();
  auto first = device.stream(), second = device.stream();
  std::atomic<bool> done{false};
  bool seen = false;
  first.enqueue([&] {
    std::this_thread::sleep_for(50ms);
    done = true;
  });
  const auto event = first.record();
  second.wait(event, atoll::WaitReason::communication);
  second.enqueue([&] { seen = done; });
  CHECK_FALSE(event.happened());
  second.synchronize();
  CHECK(event.happened());
  CHECK(seen);
  CHECK(second.exposed_communication() > 40ms);
  CHECK(second.exposed_communication() < 90ms);
  CHECK(first.exposed_communication() == 0ns);
}

TEST_CASE("stamps are times on the steady clock") {
  const Device device = Device::cuda();
  auto stream = device.stream();
  const auto now = [] {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  };
  const auto before = now();
  const auto begin = stream.stamp();
  stream.enqueue([] { std::this_thread::sleep_for(20ms); });
  const auto end = stream.stamp();
  stream.synchronize();
  REQUIRE(begin.ns());
  REQUIRE(end.ns());
  // Tolerance in ns for delays of the host on a busy machine.
  constexpr std::int64_t late = 10'000'000;
  CHECK(*begin.ns() > before - late);
  CHECK(*end.ns() < now() + late);
  CHECK(*end.ns() - *begin.ns() > 19'000'000);
}

TEST_CASE("after a failure nothing runs, on this stream and on streams that wait for it") {
  const Device device = Device::cuda();
  auto first = device.stream(), second = device.stream();
  const auto fine = first.record();
  first.enqueue([] { throw std::runtime_error("planted"); });
  std::atomic<int> ran{0};
  first.enqueue([&] { ++ran; });
  const auto event = first.record();
  second.wait(event);
  second.enqueue([&] { ++ran; });
  CHECK_NOTHROW(fine.synchronize());
  CHECK_THROWS_WITH(event.synchronize(), "planted");
  CHECK_THROWS_WITH(first.synchronize(), "planted");
  CHECK_THROWS_WITH(second.synchronize(), "planted");
  CHECK(ran == 0);
}
