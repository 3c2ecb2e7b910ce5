// Adds to the error of an operation what the other ranks of its communicator were doing.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "atoll/error.hpp"
#include "comm/operation.hpp"

namespace atoll_v1::atoll {

// Where a failure began. A backend that was aborted, or lost a peer, follows a failure elsewhere.
enum class Cause {
  here,
  elsewhere
};

struct ExplainedError {
  Error error;
  std::string finding{};   // the part of the error that other ranks reported; may be empty
  bool overtaken = false;  // the job failed before this rank could ask the others

  // The error that the operation throws once the World knows the job's first failure. Its text is
  // the same on every rank that found the same.
  Error to_report(const std::optional<Error>& first, Cause cause) const;
};

struct FailedOperations {
  World& world;
  const Axis& axis;
  const FlightTrack& track;
  std::span<const Operation> operations;
};

// Asks the other ranks when the backend could not know who is to blame: after a timeout, and after
// a failure or mismatch whose text names no call. Waits up to 2 s for their answers.
ExplainedError explain(const FailedOperations& failed, const Error& own);

}  // namespace atoll_v1::atoll
