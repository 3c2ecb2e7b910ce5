#include "core/log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <array>
#include <atomic>
#include <memory>

#include "core/errors.hpp"

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

// This logger is not in spdlog's global registry, because that belongs to the program.
spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger made("atoll", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made.set_pattern("%Y-%m-%d %H:%M:%S.%e %n %l %v");
    made.set_level(spdlog::level::info);
    return made;
  }();
  return instance;
}

}  // namespace

Level level_from_name(std::string_view name) {
  for (std::size_t i = 0; i < levels.size(); ++i) {
    if (levels[i].name == name) return static_cast<Level>(i);
  }
  throw invalid("log level \"{}\": expected trace, debug, info, warn, error or off", name);
}

void set_level(Level level) { logger().set_level(to_spdlog(level)); }

void set_rank(int rank) noexcept { this_rank.store(rank, std::memory_order_relaxed); }

bool enabled(Level level) noexcept {
  return level != Level::off && logger().should_log(to_spdlog(level));
}

void write(Level level, std::string_view message) {
  const int rank = this_rank.load(std::memory_order_relaxed);
  logger().log(to_spdlog(level), rank < 0 ? fmt::format("rank -: {}", message)
                                          : fmt::format("rank {}: {}", rank, message));
}

}  // namespace atoll_v1::atoll::log
