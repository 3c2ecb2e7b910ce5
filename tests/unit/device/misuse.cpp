// Misuse of streams: handles that were moved from, null addresses, empty functions, tasks that wait
// for their own stream or destroy it, two threads, and errors that nobody looks at.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "atoll/device.hpp"
#include "atoll/world.hpp"
#include "unit/error_text.hpp"

namespace {

using atoll::Device;
using atoll::Stream;
using namespace std::chrono_literals;
using atoll_test::error_of;
using atoll_test::has;

}  // namespace

TEST_CASE("every call of a stream that was moved from is an error") {
  const Device device = Device::cpu();
  Stream stream = device.stream();
  Stream other = std::move(stream);
  // NOLINTBEGIN(bugprone-use-after-move): this use is what the test is about
  const std::function<void()> calls[] = {
      [&] { stream.enqueue([] {}); }, [&] { stream.synchronize(); }, [&] { stream.record(); },
      [&] { stream.wait(other.record()); }, [&] { static_cast<void>(stream.backend()); }};
  for (const auto& call : calls) CHECK(has(error_of(call), "this Stream was moved from: use the"));
  stream = device.stream();
  CHECK(error_of([&] { stream.synchronize(); }) == "no error");
  // NOLINTEND(bugprone-use-after-move)
}

TEST_CASE("null addresses and empty functions are refused when they are enqueued") {
  Stream stream = Device::cpu().stream({.name = "s"});
  char memory[4] = {};
  CHECK(has(error_of([&] { stream.copy(nullptr, memory, 4); }), "s: copy of 4 bytes: dst is null"));
  CHECK(has(error_of([&] { stream.copy(memory, nullptr, 4); }), "s: copy of 4 bytes: src is null"));
  CHECK(has(error_of([&] { stream.zero(nullptr, 4); }), "s: zero() of 4 bytes: dst is null"));
  CHECK(error_of([&] { stream.copy(nullptr, nullptr, 0); }) == "no error");
  const std::string empty = "stream s: the work to enqueue is an empty function";
  CHECK(has(error_of([&] { stream.enqueue(nullptr); }), empty));
  CHECK(has(error_of([&] { stream.enqueue_and_record(nullptr); }), empty));
  CHECK(error_of([&] { stream.synchronize(); }) == "no error");
  CHECK(has(error_of([] { const Device device(nullptr); }), "a Device of a null DeviceBackend"));
}

TEST_CASE("a task that waits for its own stream fails") {
  const Device device = Device::cpu();
  SUBCASE("directly") {
    Stream stream = device.stream({.name = "s"});
    stream.enqueue([&] { stream.synchronize(); });
    CHECK(has(error_of([&] { stream.synchronize(); }),
              {"stream s: a task of this stream waits for later work of the same stream",
               "wait outside the task"}));
  }
  SUBCASE("a wait for earlier work or for another stream is allowed") {
    Stream stream = device.stream({.name = "s"}), other = device.stream({.name = "other"});
    const atoll::Event earlier = stream.record();
    int value = 0;
    stream.enqueue([&] {
      other.enqueue([&] { value = 1; });
      other.synchronize();
      earlier.synchronize();
    });
    CHECK(error_of([&] { stream.synchronize(); }) == "no error");
    CHECK(value == 1);
  }
}

TEST_CASE("two threads may call one stream at the same time") {
  Stream stream = Device::cpu().stream({.name = "shared"});
  int ran = 0;  // not atomic: the stream runs one task at a time
  const auto enqueue = [&] {
    for (int i = 0; i < 100'000; ++i) stream.enqueue([&] { ++ran; });
  };
  std::jthread other(enqueue);
  enqueue();
  other.join();
  stream.synchronize();
  CHECK(ran == 200'000);
}

TEST_CASE("a stream that its own task destroys drops the later work, and the World fails") {
  atoll::World world = atoll::World::single();
  bool ran = false;
  const auto failed = [&] {
    for (int i = 0; i < 1000 && !world.failure(); ++i) std::this_thread::sleep_for(5ms);
    return world.failure() ? std::string(world.failure()->what()) : "no failure";
  };
  SUBCASE("by a call") {
    auto stream = std::make_unique<Stream>(Device::cpu().stream({.name = "own"}));
    std::latch enqueued{1};
    stream->enqueue([&] {
      enqueued.wait();
      stream.reset();
    });
    stream->enqueue([&] { ran = true; });
    enqueued.count_down();
    CHECK(failed().find("stream own: ") != std::string::npos);
  }
  SUBCASE("as the last owner") {
    auto stream = std::make_shared<Stream>(Device::cpu().stream({.name = "own"}));
    std::latch released{1};
    stream->enqueue([stream, &released] { released.wait(); });
    stream->enqueue([&] { ran = true; });
    stream.reset();
    released.count_down();
    CHECK(failed().find("a task of this stream destroyed the stream") != std::string::npos);
  }
  CHECK_FALSE(ran);
}

TEST_CASE("the error of a stream that no call throws fails the World when the stream ends") {
  atoll::World world = atoll::World::single();
  const Device device = Device::cpu();
  const auto broken = [&](const char* name) {
    Stream stream = device.stream({.name = name});
    stream.enqueue([] { throw std::runtime_error("kernel broke"); });
    return stream;
  };
  const std::string told = "no error";
  SUBCASE("nobody synchronizes") {
    { const Stream stream = broken("lost"); }
    CHECK(has(error_of([&] { world.check(); }),
              {"stream lost: its work failed", "(call synchronize() before): kernel broke"}));
  }
  SUBCASE("a stream that waits for the failed one passes the error on") {
    {
      Stream first = broken("first"), second = device.stream({.name = "second"});
      second.wait(first.record());
    }
    CHECK(has(error_of([&] { world.check(); }), "stream first: "));
  }
  SUBCASE("a call has thrown it, also through another stream or an event") {
    {
      Stream first = broken("first"), second = device.stream();
      second.wait(first.record());
      CHECK_THROWS_WITH(second.synchronize(), "kernel broke");
      Stream third = broken("third");
      CHECK_THROWS_WITH(third.record().synchronize(), "kernel broke");
    }
    CHECK(error_of([&] { world.check(); }) == told);
  }
  SUBCASE("a task has handled it") {
    {
      Stream first = broken("first"), second = device.stream();
      second.enqueue([&] { CHECK_THROWS_WITH(first.synchronize(), "kernel broke"); });
      second.synchronize();
    }
    CHECK(error_of([&] { world.check(); }) == told);
  }
  SUBCASE("an event keeps it until somebody asks") {
    atoll::Event end;
    {
      Stream stream = broken("s");
      end = stream.record();
    }
    CHECK(error_of([&] { world.check(); }) == told);
    CHECK_THROWS_WITH(end.synchronize(), "kernel broke");
    end = {};
    CHECK(error_of([&] { world.check(); }) == told);
  }
}
