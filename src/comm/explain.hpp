// Adds to the error of a failed operation what the other ranks of its communicator were doing.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "atoll/error.hpp"
#include "comm/operation.hpp"

namespace atoll_v1::atoll {

// Whether a failure began on this rank or on another rank. A backend that was aborted or lost a
// peer reports a failure that began on another rank.
enum class Cause {
  here,
  elsewhere
};

struct ExplainedError {
  Error error;
  std::string finding{};   // what other ranks reported; empty when they reported nothing
  bool overtaken = false;  // true when the job failed before this rank could ask other ranks

  // Returns the error that the operation throws, given the job's first failure. Ranks to which the
  // other ranks reported the same cause throw the same text.
  Error to_report(const std::optional<Error>& first, Cause cause) const;
};

struct FailedOperations {
  World& world;
  const Axis& axis;
  const FlightTrack& track;
  std::span<const Operation> operations;
};

// Returns why a task does not run. While this thread drops a task because its stream has failed,
// this is the error of the stream. Otherwise the call that enqueued the task has thrown.
std::string reason_of_drop();
// Returns the text without "communicator NAME: " at its beginning, which some backends add.
std::string_view without_name(std::string_view text, std::string_view name);

// Asks the other ranks what they were doing when the backend cannot know which rank caused the
// error: after a timeout, after a failure of the backend, and after a mismatch that names no call.
// Waits up to 2 s for the answers.
ExplainedError explain(const FailedOperations& failed, const Error& own);

}  // namespace atoll_v1::atoll
