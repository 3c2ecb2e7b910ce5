// The program's own logger: atoll::log::set_sink().
#include "atoll/log.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/world.hpp"
#include "comm/registry/registry.hpp"
#include "core/log.hpp"
#include "unit/train/data_temporary.hpp"

using atoll::log::Level;

namespace {

using Messages = std::vector<std::pair<Level, std::string>>;

// Restores the log when a test ends.
struct Restored {
  Restored() { atoll::log::set_level(Level::info); }
  ~Restored() {
    atoll::log::set_sink(nullptr);
    atoll::log::set_level(Level::info);
    atoll::log::set_rank(-1);
  }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;
};

atoll::log::Sink into(Messages& messages) {
  return [&](Level level, std::string_view text) { messages.emplace_back(level, text); };
}

// Runs `body` and returns the text that it wrote to stderr.
std::string stderr_of(const std::function<void()>& body) {
  const train_test::TemporaryFolder folder;
  const auto path = folder.write("log", "");
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND), before = ::dup(STDERR_FILENO);
  REQUIRE(file >= 0);
  std::fflush(stderr);
  ::dup2(file, STDERR_FILENO);
  body();
  std::fflush(stderr);
  ::dup2(before, STDERR_FILENO);
  ::close(file);
  ::close(before);
  return train_test::TemporaryFolder::read(path);
}

}  // namespace

TEST_CASE("log: a sink receives level and text instead of stderr, until null restores it") {
  Messages messages;
  const Restored restored;
  atoll::log::set_sink(into(messages));
  const std::string text = stderr_of([] {
    atoll::log::debug("hidden");
    atoll::log::warn("before a {}", "World");
    atoll::log::set_rank(3);
    atoll::log::write(Level::error, "as a rank");
    atoll::log::set_level(Level::debug);
    atoll::log::debug("shown");
    atoll::log::set_level(Level::off);
    atoll::log::error("hidden");
    atoll::log::write(Level::off, "hidden");
    atoll::log::set_level(Level::info);
  });
  CHECK(text.empty());
  CHECK(messages == Messages{{Level::warn, "rank -: before a World"},
                             {Level::error, "rank 3: as a rank"},
                             {Level::debug, "rank 3: shown"}});
  atoll::log::set_sink(nullptr);
  CHECK(stderr_of([] { atoll::log::info("again"); }).ends_with(" atoll info rank 3: again\n"));
  CHECK(messages.size() == 3);
}

TEST_CASE("log: messages of backends and the rank of a World reach the sink") {
  Messages messages;
  const Restored restored;
  atoll::World world =
      atoll::World::from_ranks(0, 1, [](const std::string& text) { return text; }, {});
  atoll::log::set_level(Level::info);
  atoll::log::set_sink(into(messages));
  const atoll_core services = atoll::core_services(world);
  services.log(services.ctx, ATOLL_LOG_WARN, "a slow link");
  services.log(services.ctx, ATOLL_LOG_DEBUG, "hidden");
  CHECK(messages == Messages{{Level::warn, "rank 0: a slow link"}});
}

TEST_CASE("log: a sink that throws does not end the process, and the message is on stderr") {
  const Restored restored;
  atoll::log::set_sink(
      [](Level, std::string_view) { throw std::runtime_error("the disk is full"); });
  const std::string text = stderr_of([] { CHECK_NOTHROW(atoll::log::info("kept")); });
  CHECK(text.find(" atoll info rank -: kept\n") != std::string::npos);
  CHECK(text.find(" atoll error the sink of the log threw: the disk is full\n") !=
        std::string::npos);
  atoll::log::set_sink([](Level, std::string_view) { throw 7; });
  CHECK(stderr_of([] {
          atoll::log::info("kept");
        }).ends_with("the sink of the log threw: an exception that is not a std::exception\n"));
}

TEST_CASE("log: messages that a sink writes go to stderr; a sink cannot set a sink") {
  const Restored restored;
  std::string problem;
  atoll::log::set_sink([&](Level, std::string_view text) {
    atoll::log::warn("inside of {}", text);
    try {
      atoll::log::set_sink(nullptr);
    } catch (const atoll::Error& error) {
      problem = error.what();
    }
  });
  const std::string text = stderr_of([] { atoll::log::info("x"); });
  CHECK(text.ends_with(" atoll warning rank -: inside of rank -: x\n"));
  CHECK(problem == "log::set_sink: a sink cannot replace itself: call set_sink() outside it");
}

TEST_CASE("log: threads write at once while sinks change, and no call outlives its sink") {
  const Restored restored;
  std::atomic<int> received{0};
  std::atomic<bool> called_late{false};
  atoll::log::set_sink([&](Level, std::string_view) { ++received; });
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 500; ++i) atoll::log::info("message {}", i);
      });
    }
    for (int round = 0; round < 50; ++round) {
      std::atomic<bool> alive{true};
      atoll::log::set_sink([&](Level, std::string_view) {
        ++received;
        if (!alive) called_late = true;
      });
      std::this_thread::yield();
      atoll::log::set_sink([&](Level, std::string_view) { ++received; });
      alive = false;  // the first sink is not called any more
    }
  }
  CHECK(received > 0);
  CHECK_FALSE(called_late);
}
