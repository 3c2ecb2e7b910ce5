// The log of the process: one line per message to stderr, with time, level and rank, or the
// program's own logger. The library, its backends and its consumers share it. Any thread may call
// any function.
#pragma once

#include <functional>
#include <string_view>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll::log {

enum class Level {
  trace,
  debug,
  info,
  warn,
  error,
  off
};

// Parses the name of a level; throws Error(invalid_argument) for any other text.
ATOLL_API Level level_from_name(std::string_view name);

// Sets the lowest level that is logged, initially info. A World sets it from its configuration.
ATOLL_API void set_level(Level level);
ATOLL_API bool enabled(Level level) noexcept;

// Writes a message if its level is enabled.
ATOLL_API void write(Level level, std::string_view message);

// Receives each message that would go to stderr, with its level. The text begins with the rank in
// the World that this process joined last ("rank 3: "), or with "rank -: " before the first World.
// It contains no time, level or line break at its end, and is valid only during the call.
using Sink = std::function<void(Level level, std::string_view text)>;

// Passes all later messages of enabled levels to `sink`; a null sink restores stderr. Waits for
// calls of the earlier sink in progress, so that its state may be destroyed afterwards.
//
// Several threads may call the sink at the same time, threads of the library among them. A sink
// should return soon, must not end the process, and must not wait for a thread that calls
// set_sink(). If it throws, stderr receives the message and the text of the exception. Messages
// that a sink writes to this log go to stderr. Throws Error(invalid_argument) when a sink calls it.
ATOLL_API void set_sink(Sink sink);

}  // namespace atoll_v1::atoll::log
