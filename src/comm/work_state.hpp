// The state behind a Work: when the operation is complete, and why it failed.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "atoll/error.hpp"
#include "comm/operation.hpp"

namespace atoll_v1::atoll {

// The operation is complete when `event` has happened. An error is stored before the event happens.
struct Work::State {
  Event event;
  std::optional<Operation> operation;  // set until it has run, if this Work is one operation
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::optional<Error> error;

  void fail(const Error& reason);  // keeps the first reason
  void check();                    // throws the error if one is known
};

}  // namespace atoll_v1::atoll
