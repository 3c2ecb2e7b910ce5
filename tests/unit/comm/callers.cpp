// Threads that call one communicator are served in turn. Streams of other devices are errors.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <latch>
#include <memory>
#include <mutex>
#include <span>
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

using atoll_test::error_of;
using atoll_test::has;

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

TEST_CASE("two threads that call one communicator at the same time are served in turn") {
  const auto reports = atoll_test::on_threads(2, [](atoll::World& world) {
    auto both = atoll::Communicator::open(world, {0, 1}, "both", {.backend = "host"});
    std::vector<float> first(4, 1.0f), second(4, 1.0f);
    const auto add_up = [&](std::vector<float>& values, atoll::Stream& stream) {
      both.all_reduce(values, values, atoll::ReduceOp::sum, stream).synchronize();
    };
    auto stream = atoll::Device::cpu().stream();
    if (world.rank() == 1) {
      add_up(first, stream);
      add_up(second, stream);
    } else {
      Door door;
      auto held = atoll::Device(std::make_shared<HeldDevice>(door)).stream();
      std::jthread caller([&] { add_up(first, held); });
      door.reached.wait();  // `caller` is inside its call
      std::jthread other([&] { add_up(second, stream); });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      CHECK(second == std::vector<float>(4, 1.0f));
      door.opened.count_down();
    }
    CHECK(first == std::vector<float>(4, 2.0f));
    CHECK(second == std::vector<float>(4, 2.0f));
    return std::string();
  });
  CHECK(reports == std::vector<std::string>(2));
}

TEST_CASE("a thread may call a communicator while operations of another thread are in flight") {
  const auto reports = atoll_test::on_threads(2, [&](atoll::World& world) {
    auto both = atoll::Communicator::open(world, {0, 1}, "both", {.backend = "host"});
    std::vector<std::vector<float>> values(16, std::vector<float>(4, 1.0f));
    std::mutex order;  // the callers keep the same order on both ranks
    std::atomic<int> next = 0;
    const auto call = [&](int parity) {
      auto stream = atoll::Device::cpu().stream();
      std::vector<atoll::Work> works;
      while (next < 16) {
        const std::lock_guard lock(order);
        if (next >= 16 || next % 2 != parity) continue;
        auto& mine = values[static_cast<std::size_t>(next++)];
        works.push_back(both.all_reduce(mine, mine, atoll::ReduceOp::sum, stream));
      }
      for (const atoll::Work& work : works) work.synchronize();
    };
    std::jthread other([&] { call(1); });
    call(0);
    other.join();
    CHECK(values == std::vector<std::vector<float>>(16, std::vector<float>(4, 2.0f)));
    return std::string();
  });
  CHECK(reports == std::vector<std::string>(2));
}

TEST_CASE("messages that nobody asks for are kept, and wait in their sender above 256 MiB") {
  constexpr std::size_t large = std::size_t{100} << 20;
  // Rank 1 receives these tags in this order. Rank 0 sends three large messages with the tags 0, 1
  // and 2, and an empty one with the tag 3.
  const auto receive = [](const std::vector<int>& tags) {
    return atoll_test::on_threads(2, [&](atoll::World& world) {
      auto both = atoll::Communicator::open(
          world, {0, 1}, "both",
          {.backend = "host", .timeout = std::chrono::seconds(3), .tags = true});
      auto stream = atoll::Device::cpu().stream();
      std::vector<std::uint8_t> data(large);
      for (int tag = 0; tag < 4 && world.rank() == 0; ++tag) {
        data[0] = static_cast<std::uint8_t>(tag);
        const std::span<const std::uint8_t> all(data);
        both.send(all.first(tag < 3 ? large : 0), 1, stream, tag).synchronize();
      }
      for (const int tag : tags) {
        if (world.rank() == 0) continue;
        both.recv(std::span(data).first(tag < 3 ? large : 0), 0, stream, tag).synchronize();
        if (tag < 3) CHECK(data[0] == tag);
      }
      return std::string();
    });
  };
  CHECK(receive({2, 1, 0, 3}) == std::vector<std::string>(2));
  const auto reports = receive({3, 2, 1, 0});
  CHECK(has(reports[1], {"timeout", "a message from rank 0", "with tag 3",
                         "not received: ", "with tag 0", "with tag 1"}));
}

TEST_CASE("communicators that have some ranks in common are opened in any order") {
  const auto reports = atoll_test::on_threads(3, [&](atoll::World& world) {
    const auto open_and_use = [&](int a, int b) {
      auto pair = atoll::Communicator::open(world, {a, b}, "pair", {.backend = "host"});
      auto stream = atoll::Device::cpu().stream();
      std::vector<float> values(4, 1.0f);
      pair.all_reduce(values, values, atoll::ReduceOp::sum, stream).synchronize();
      CHECK(values == std::vector<float>(4, 2.0f));
    };
    if (world.rank() == 0) (open_and_use(0, 2), open_and_use(0, 1));
    if (world.rank() == 1) (open_and_use(1, 2), open_and_use(0, 1));
    if (world.rank() == 2) (open_and_use(1, 2), open_and_use(0, 2));
    world.barrier();
    // Each rank waits for another one in a cycle, but in threads of their own.
    const int next = (world.rank() + 1) % 3, last = (world.rank() + 2) % 3;
    std::jthread first([&] { open_and_use(world.rank(), next); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    open_and_use(last, world.rank());
    return std::string();
  });
  CHECK(reports == std::vector<std::string>(3));
}

TEST_CASE("a communicator that was closed leaves no thread, descriptor or mapping behind") {
  const auto things = [] {
    const auto count = [](const char* folder) {
      const std::filesystem::directory_iterator all(folder);
      return std::distance(begin(all), end(all));
    };
    std::ifstream maps("/proc/self/maps");
    std::string line;
    std::ptrdiff_t shared = 0;
    while (std::getline(maps, line)) shared += line.find("atoll") != std::string::npos ? 1 : 0;
    return std::array{count("/proc/self/task"), count("/proc/self/fd"), shared};
  };
  const auto reports = atoll_test::on_threads(2, [&](atoll::World& world) {
    const auto open_and_use = [&] {
      auto both =
          atoll::Communicator::open(world, {0, 1}, "both", {.backend = "host", .tags = true});
      auto stream = atoll::Device::cpu().stream();
      std::vector<float> values(4, 1.0f);
      both.all_reduce(values, values, atoll::ReduceOp::sum, stream).synchronize();
    };
    open_and_use();
    world.barrier();
    const auto before = world.rank() == 0 ? things() : decltype(things())();
    world.barrier();
    for (int i = 0; i < 100; ++i) open_and_use();
    world.barrier();
    if (world.rank() == 0) {
      bool are_equal = false;
      for (int tries = 0; !are_equal && tries < 200; ++tries) {
        are_equal = things() == before;
        if (!are_equal) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      CHECK(are_equal);
    }
    world.barrier();
    return std::string();
  });
  CHECK(reports == std::vector<std::string>(2));
}

TEST_CASE("a job changes nothing of the process, unless the program asks for it") {
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit lower{std::min<rlim_t>(limit.rlim_max - 1, 4000), limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &lower) == 0);
  struct Process {
    std::vector<std::string> environment;
    std::vector<void (*)(int)> handlers;
    std::terminate_handler terminate = std::get_terminate();
    rlim_t descriptors = 0;
    std::ptrdiff_t threads = 0;
    Process() {
      for (char** one = environ; *one != nullptr; ++one) environment.emplace_back(*one);
      for (int number = 1; number < NSIG; ++number) {
        struct sigaction action {};
        ::sigaction(number, nullptr, &action);
        handlers.push_back(action.sa_handler);
      }
      rlimit now{};
      ::getrlimit(RLIMIT_NOFILE, &now);
      descriptors = now.rlim_cur;
      const std::filesystem::directory_iterator all("/proc/self/task");
      threads = std::distance(begin(all), end(all));
    }
    bool operator==(const Process&) const = default;
  };
  const Process before;
  atoll_test::on_threads(2, [](atoll::World& world) {
    auto both = atoll::Communicator::open(world, {0, 1}, "both", {.backend = "host"});
    auto stream = atoll::Device::cpu().stream();
    std::vector<float> values(4, 1.0f);
    both.all_reduce(values, values, atoll::ReduceOp::sum, stream).synchronize();
    CHECK(values == std::vector<float>(4, 2.0f));
    if (world.rank() == 1) world.fail("the end");
    return std::string();
  });
  Process after;
  for (int tries = 0; after != before && tries < 200; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    after = Process();
  }
  CHECK(after.environment == before.environment);
  CHECK((after.handlers == before.handlers));
  CHECK((after.terminate == before.terminate));
  CHECK(after.descriptors == before.descriptors);
  CHECK(after.threads == before.threads);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
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
      return error_of(
          [&] { shard.all_reduce(values, values, atoll::ReduceOp::sum, on).synchronize(); });
    };
    for (const std::string& error :
         {add_up(wrong), error_of([&] { shard.barrier(wrong).synchronize(); }),
          error_of([&] { shard.group([] {}, wrong).synchronize(); })}) {
      CHECK(has(error, {"the stream clock is not a stream of the communicator's device CPU",
                        "take streams from Communicator::device()"}));
    }
    CHECK(add_up(stream) == "no error");
    CHECK(values == std::vector<float>(4, 2.0f));
    return std::string("done");
  });
  CHECK(reports == std::vector<std::string>(2, "done"));
}
