// Misuse of streams: handles that were moved from, null addresses, empty functions, and tasks that
// wait for their own stream.
#include <doctest/doctest.h>

#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "atoll/device.hpp"
#include "atoll/error.hpp"
#include "device/task.hpp"
#include "error_text.hpp"

namespace {

using atoll::Device;
using atoll::Stream;
using atoll_test::error_of;

}  // namespace

TEST_CASE("every call of a stream that was moved from is an error") {
  const Device device = Device::host();
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
        "Device::host() or Device::cuda()");
}

TEST_CASE("null addresses and empty functions are refused when they are enqueued") {
  Stream stream = Device::host().stream({.name = "s"});
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
  const Device device = Device::host();
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
  Stream stream = Device::host().stream();
  std::string ran, dropped;
  stream.enqueue([witness = std::make_shared<Witness>(&ran)] {});
  stream.enqueue([] { throw std::runtime_error("kernel broke"); });
  stream.enqueue([witness = std::make_shared<Witness>(&dropped)] {});
  CHECK_THROWS_WITH(stream.synchronize(), "kernel broke");
  CHECK(ran == "not dropped");
  CHECK(dropped == "kernel broke");
}
