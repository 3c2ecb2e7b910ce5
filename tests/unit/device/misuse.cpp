// Misuse of streams: handles that were moved from, null addresses, empty functions, tasks that wait
// for their own stream or destroy it, two threads, and errors that nobody looks at.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "atoll/device.hpp"
#include "atoll/error.hpp"
#include "atoll/world.hpp"
#include "device/task.hpp"
#include "unit/error_text.hpp"

namespace {

using atoll::Device;
using atoll::Stream;
using namespace std::chrono_literals;
using atoll_test::error_of;

}  // namespace

TEST_CASE("every call of a stream that was moved from is an error") {
  const Device device = Device::cpu();
  Stream stream = device.stream();
  Stream other = std::move(stream);
  const std::string text =
      "invalid argument: this Stream was moved from: use the object that it was moved to, or "
      "assign "
      "to it first";
  // NOLINTBEGIN(bugprone-use-after-move): this use is what the test is about
  CHECK(error_of([&] { stream.enqueue([] {}); }) == text);
  CHECK(error_of([&] { stream.synchronize(); }) == text);
  CHECK(error_of([&] { stream.record(); }) == text);
  CHECK(error_of([&] { stream.wait(other.record()); }) == text);
  CHECK(error_of([&] { static_cast<void>(stream.backend()); }) == text);
  stream = device.stream();
  CHECK(error_of([&] { stream.synchronize(); }) == "no error");
  // NOLINTEND(bugprone-use-after-move)
}

TEST_CASE("a device of a null backend is refused") {
  CHECK(error_of([] { const Device device(nullptr); }) ==
        "invalid argument: a Device of a null DeviceBackend: pass a backend, or use "
        "Device::cpu() or Device::cuda()");
}

TEST_CASE("null addresses and empty functions are refused when they are enqueued") {
  Stream stream = Device::cpu().stream({.name = "s"});
  char memory[4] = {};
  CHECK(error_of([&] { stream.copy(nullptr, memory, 4); }) ==
        "invalid argument: stream s: copy of 4 bytes: dst is null");
  CHECK(error_of([&] { stream.copy(memory, nullptr, 4); }) ==
        "invalid argument: stream s: copy of 4 bytes: src is null");
  CHECK(error_of([&] { stream.zero(nullptr, 4); }) ==
        "invalid argument: stream s: zero() of 4 bytes: dst is null");
  CHECK(error_of([&] { stream.copy(nullptr, nullptr, 0); }) == "no error");
  CHECK(error_of([&] { stream.enqueue(nullptr); }) ==
        "invalid argument: stream s: the work to enqueue is an empty function");
  CHECK(error_of([&] { stream.enqueue_and_record(nullptr); }) ==
        "invalid argument: stream s: the work to enqueue is an empty function");
  CHECK(error_of([&] { stream.synchronize(); }) == "no error");
}

TEST_CASE("a task that waits for its own stream fails") {
  const std::string text =
      "invalid argument: stream s: a task of this stream waits for later work of the same stream, "
      "which runs only after the task: wait outside the task, or enqueue the work on another "
      "stream";
  const Device device = Device::cpu();
  SUBCASE("directly") {
    Stream stream = device.stream({.name = "s"});
    stream.enqueue([&] { stream.synchronize(); });
    CHECK(error_of([&] { stream.synchronize(); }) == text);
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

TEST_CASE("two threads that call one stream at the same time: one gets an error") {
  Stream stream = Device::cpu().stream({.name = "shared"});
  std::atomic<int> ran{0};
  int enqueued[2] = {0, 0};
  std::string errors[2];
  std::atomic<bool> failed{false};
  const auto enqueue = [&](int thread) {
    while (!failed && enqueued[thread] < 200'000) {
      const std::string error = error_of([&] { stream.enqueue([&] { ++ran; }); });
      if (error == "no error") {
        ++enqueued[thread];
      } else {
        errors[thread] = error;
        failed = true;
      }
    }
  };
  std::jthread other([&] { enqueue(1); });
  enqueue(0);
  other.join();
  stream.synchronize();
  CHECK(ran == enqueued[0] + enqueued[1]);
  for (const std::string& error : errors) {
    if (error.empty()) continue;
    CHECK(error ==
          "invalid argument: stream shared: another thread calls it at the same time: call a "
          "stream from one thread at a time, or make a stream for each thread");
  }
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
    CHECK(
        error_of([&] { world.check(); })
            .find("stream lost: its work failed, and the stream was destroyed before any call had "
                  "thrown the error (call synchronize() before): kernel broke") !=
        std::string::npos);
  }
  SUBCASE("a stream that waits for the failed one passes the error on") {
    {
      Stream first = broken("first"), second = device.stream({.name = "second"});
      second.wait(first.record());
    }
    CHECK(error_of([&] { world.check(); }).find("stream first: ") != std::string::npos);
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

TEST_CASE("a dropped task learns why its stream failed") {
  struct Witness {
    std::string* text;
    explicit Witness(std::string* text_) : text(text_) {}
    Witness(const Witness&) = delete;
    Witness& operator=(const Witness&) = delete;
    ~Witness() {
      const std::exception_ptr error = atoll::DroppedTask::error();
      *text = "not dropped";
      try {
        if (error) std::rethrow_exception(error);
      } catch (const std::exception& problem) {
        *text = problem.what();
      }
    }
  };
  Stream stream = Device::cpu().stream();
  std::string ran, dropped;
  stream.enqueue([witness = std::make_shared<Witness>(&ran)] {});
  stream.enqueue([] { throw std::runtime_error("kernel broke"); });
  stream.enqueue([witness = std::make_shared<Witness>(&dropped)] {});
  CHECK_THROWS_WITH(stream.synchronize(), "kernel broke");
  CHECK(ran == "not dropped");
  CHECK(dropped == "kernel broke");
}
