#include "core/log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>

#include "core/errors.hpp"
#include "core/terminal_safe.hpp"

namespace atoll_v1::atoll::log {
namespace {

struct LevelEntry {
  std::string_view name;
  spdlog::level::level_enum level;
};
// Names of the log levels and their spdlog values, indexed by Level.
constexpr std::array<LevelEntry, 6> levels{{{"trace", spdlog::level::trace},
                                            {"debug", spdlog::level::debug},
                                            {"info", spdlog::level::info},
                                            {"warn", spdlog::level::warn},
                                            {"error", spdlog::level::err},
                                            {"off", spdlog::level::off}}};

std::atomic<int> this_rank{-1};

spdlog::level::level_enum to_spdlog(Level level) noexcept {
  return levels[static_cast<std::size_t>(level)].level;
}

// This logger is not in spdlog's global registry, because that belongs to the program. It is never
// destroyed: threads of the library may still log when a program calls exit().
spdlog::logger& logger() {
  static auto* const instance = [] {
    auto made = std::make_unique<spdlog::logger>("atoll",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %n %l %v");
    made->set_level(spdlog::level::info);
    return made.release();
  }();
  return *instance;
}

// The program's sink. Calls of the sink hold the mutex shared; set_sink() holds it alone.
struct OwnSink {
  std::shared_mutex mutex;
  Sink sink;
};
OwnSink& own_sink() {
  static auto* const instance = new OwnSink;
  return *instance;
}

thread_local bool in_sink = false;  // true while this thread calls the sink

void write_to_stderr(Level level, const std::string& text) { logger().log(to_spdlog(level), text); }

// Passes a message to the program's sink. Returns false if there is no sink, or if this thread is
// inside the sink. The mutex is not taken twice on a thread, because that could wait for ever.
bool write_to_sink(Level level, const std::string& text) {
  if (in_sink) return false;
  OwnSink& own = own_sink();
  const std::shared_lock lock(own.mutex);
  if (!own.sink) return false;
  in_sink = true;
  std::optional<std::string> problem;
  try {
    own.sink(level, text);
  } catch (const std::exception& error) {
    problem = error.what();
  } catch (...) {
    problem = foreign_exception;
  }
  in_sink = false;
  if (!problem) return true;
  write_to_stderr(level, text);
  write_to_stderr(Level::error, fmt::format("the sink of the log threw: {}", *problem));
  return true;
}

}  // namespace

Level level_from_name(std::string_view name) {
  for (std::size_t i = 0; i < levels.size(); ++i) {
    if (levels[i].name == name) return static_cast<Level>(i);
  }
  throw invalid("log level \"{}\": expected trace, debug, info, warn, error or off",
                terminal_safe(name));
}

void set_level(Level level) { logger().set_level(to_spdlog(level)); }

void set_rank(int rank) noexcept { this_rank.store(rank, std::memory_order_relaxed); }

bool enabled(Level level) noexcept {
  return level != Level::off && logger().should_log(to_spdlog(level));
}

void write(Level level, std::string_view message) {
  if (!enabled(level)) return;
  const int rank = this_rank.load(std::memory_order_relaxed);
  const std::string text =
      rank < 0 ? fmt::format("rank -: {}", message) : fmt::format("rank {}: {}", rank, message);
  if (!write_to_sink(level, text)) write_to_stderr(level, text);
}

void set_sink(Sink sink) {
  require(!in_sink, "log::set_sink: a sink cannot replace itself: call set_sink() outside it");
  OwnSink& own = own_sink();
  const std::unique_lock lock(own.mutex);
  own.sink.swap(sink);
}

}  // namespace atoll_v1::atoll::log
