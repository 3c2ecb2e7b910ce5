// Tests the streams, events, time stamps and failures of the cuda device.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "atoll/cuda.hpp"
#include "atoll/cuda/runtime.hpp"
#include "atoll/device.hpp"
#include "atoll/error.hpp"
#include "atoll/world.hpp"
#include "device/backend.hpp"

using atoll::Device;
using namespace std::chrono_literals;

TEST_CASE("each stream of a GPU gets a hardware queue") {
  REQUIRE(Device::cuda_count() > 0);
  const char* const queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  REQUIRE(queues != nullptr);
  CHECK(std::string(queues) == "32");
}

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

TEST_CASE("a stream fails with the latest work of another stream that it has waited for") {
  const Device device = Device::cuda();
  auto lane = device.stream(), compute = device.stream();
  const auto early = lane.record();
  lane.enqueue([] { throw std::runtime_error("planted"); });
  // Waits for the older event last, because reductions may be awaited in another order.
  compute.wait(lane.record());
  compute.wait(early);
  std::atomic<int> ran{0};
  compute.enqueue([&] { ++ran; });
  CHECK_THROWS_WITH(compute.synchronize(), "planted");
  CHECK(ran == 0);
}

TEST_CASE("a failure is found on every way from one stream to another") {
  const Device device = Device::cuda();
  auto lane = device.stream(), begin = device.stream(), end = device.stream(),
       compute = device.stream();
  begin.wait(lane.record());
  lane.enqueue([] { throw std::runtime_error("planted"); });
  end.wait(lane.record());
  compute.wait(begin.record());  // recorded before the failure
  compute.wait(end.record());
  CHECK_NOTHROW(begin.synchronize());
  CHECK_THROWS_WITH(compute.synchronize(), "planted");
}

TEST_CASE(
    "a failure leaves earlier events of its stream alone, also where streams wait in a cycle") {
  const Device device = Device::cuda();
  auto lane = device.stream(), compute = device.stream();
  compute.wait(lane.record());
  lane.wait(compute.record());
  compute.wait(lane.record());
  const auto early = compute.record();
  compute.enqueue([] { throw std::runtime_error("planted"); });
  lane.wait(compute.record());
  CHECK_NOTHROW(early.synchronize());
  CHECK_THROWS_WITH(lane.synchronize(), "planted");
}

TEST_CASE("the error of a stream that no call throws fails the World when the stream ends") {
  const atoll::World world = atoll::World::single();
  const Device device = Device::cuda();
  const auto broken = [&] {
    auto stream = device.stream({.name = "lane"});
    stream.enqueue([] { throw std::runtime_error("planted"); });
    return stream;
  };
  SUBCASE("nobody synchronizes") {
    { const auto lost = broken(); }
    CHECK_THROWS_WITH(world.check(), doctest::Contains("stream lane: its work failed"));
  }
  SUBCASE("a call throws it, on a stream that outlives the failed one") {
    {
      auto compute = device.stream();
      {
        auto lane = broken();
        compute.wait(lane.record());
      }
      CHECK_NOTHROW(world.check());
      CHECK_THROWS_WITH(compute.synchronize(), "planted");
    }
    CHECK_NOTHROW(world.check());
  }
}

TEST_CASE("a failure outlives the streams on which it happened") {
  const Device device = Device::cuda();
  auto compute = device.stream();
  {
    auto lane = device.stream(), other = device.stream();
    lane.enqueue([] { throw std::runtime_error("planted"); });
    other.wait(lane.record());
    compute.wait(other.record());
    lane.wait(compute.record());  // streams may wait for each other
  }
  std::atomic<int> ran{0};
  compute.enqueue([&] { ++ran; });
  CHECK_THROWS_WITH(compute.synchronize(), "planted");
  CHECK(ran == 0);
}

namespace {

// A CUDA stream that the test owns, as a framework would.
struct OwnStream {
  cudaStream_t stream = nullptr;
  OwnStream() { REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess); }
  ~OwnStream() { cudaStreamDestroy(stream); }
};

struct OwnEvent {
  cudaEvent_t event = nullptr;
  OwnEvent() { REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess); }
  ~OwnEvent() { cudaEventDestroy(event); }
};

}  // namespace

TEST_CASE("a stream of the caller is used in the order of all calls, and outlives its wrapper") {
  const Device device = Device::cuda();
  const OwnStream own;
  std::vector<int> order;
  {
    auto stream = atoll::cuda::wrap_stream(device, own.stream, "framework");
    CHECK(stream.name() == "framework");
    CHECK(atoll::cuda::native(stream) == own.stream);
    stream.enqueue([&] {
      std::this_thread::sleep_for(20ms);
      order.push_back(1);
    });
    const auto add = [](void* to) { static_cast<std::vector<int>*>(to)->push_back(2); };
    REQUIRE(cudaLaunchHostFunc(own.stream, add, &order) == cudaSuccess);
    stream.enqueue([&] { order.push_back(3); });
  }  // waits for the work
  CHECK(order == std::vector<int>{1, 2, 3});
  CHECK(cudaStreamSynchronize(own.stream) == cudaSuccess);
  auto legacy = atoll::cuda::wrap_stream(device, nullptr);
  legacy.enqueue([&] { order.clear(); });
  legacy.synchronize();
  CHECK(order.empty());
}

TEST_CASE("events of the caller and of atoll order both kinds of streams") {
  const Device device = Device::cuda();
  const OwnStream own;
  const OwnEvent event;
  auto stream = device.stream(), other = device.stream();
  std::atomic<int> at{0};
  int seen_by_other = -1, seen_by_own = -1;
  stream.enqueue([&] {
    std::this_thread::sleep_for(30ms);
    at = 1;
  });
  atoll::cuda::record(stream, event.event);
  atoll::cuda::wait(other, event.event);
  other.enqueue([&] { seen_by_other = at; });
  atoll::cuda::wait(own.stream, stream.record());
  struct Seen {
    std::atomic<int>* at;
    int* seen;
  } seen{&at, &seen_by_own};
  const auto look = [](void* of) {
    const auto& [from, to] = *static_cast<Seen*>(of);
    *to = *from;
  };
  REQUIRE(cudaLaunchHostFunc(own.stream, look, &seen) == cudaSuccess);
  atoll::cuda::wait(own.stream, atoll::Event());  // an empty event counts as complete
  other.synchronize();
  REQUIRE(cudaStreamSynchronize(own.stream) == cudaSuccess);
  CHECK(seen_by_other == 1);
  CHECK(seen_by_own == 1);
}

TEST_CASE("launch() passes the CUDA stream and exceptions of the caller") {
  const Device device = Device::cuda();
  auto stream = device.stream();
  const auto buffer = device.allocate(8);
  std::vector<std::uint8_t> back(8, 1);
  atoll::cuda::launch(stream, [&](cudaStream_t native) {
    CHECK(native == atoll::cuda::native(stream));
    CHECK(cudaMemsetAsync(buffer.data(), 0, 8, native) == cudaSuccess);
  });
  stream.copy(back.data(), buffer.data(), 8);
  stream.synchronize();
  CHECK(back == std::vector<std::uint8_t>(8, 0));
  const auto fail = [](cudaStream_t) { throw std::runtime_error("bad launch"); };
  CHECK_THROWS_WITH_AS(atoll::cuda::launch(stream, fail), "bad launch", std::runtime_error);
}

TEST_CASE("check() turns errors of the CUDA runtime into exceptions") {
  CHECK_NOTHROW(atoll::cuda::check(cudaSuccess, "my call"));
  const auto thrown = [](cudaError_t status) {
    try {
      atoll::cuda::check(status, "my call");
    } catch (const atoll::Error& error) {
      CHECK(std::string(error.what()).starts_with("cuda: my call: "));
      return error.code();
    }
    return atoll::ErrorCode::internal;
  };
  CHECK(thrown(cudaErrorInvalidValue) == atoll::ErrorCode::backend);
  CHECK(thrown(cudaErrorMemoryAllocation) == atoll::ErrorCode::out_of_memory);
  CHECK_THROWS_AS(atoll::cuda::Current(Device::cuda_count()), atoll::Error);
  CHECK(cudaGetLastError() == cudaSuccess);  // check() has cleared the error
}

TEST_CASE("a GPU is current in a scope, and the one before it after the scope") {
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  const int other = Device::cuda_count() - 1;
  int current = -1;
  {
    const atoll::cuda::Current scope(other);
    REQUIRE(cudaGetDevice(&current) == cudaSuccess);
    CHECK(current == other);
  }
  REQUIRE(cudaGetDevice(&current) == cudaSuccess);
  CHECK(current == 0);
}

TEST_CASE("streams and events of the host are refused") {
  const Device host = Device::cpu();
  auto stream = host.stream();
  CHECK_THROWS_AS(atoll::cuda::native(stream), atoll::Error);
  CHECK_THROWS_AS(atoll::cuda::launch(stream, [](cudaStream_t) {}), atoll::Error);
  CHECK_THROWS_AS(atoll::cuda::wrap_stream(host, nullptr), atoll::Error);
}
