// Implements Stamp with the CPU's steady clock: a task of the stream calls take().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "device/backend.hpp"

namespace atoll_v1::atoll {

class ClockStamp final : public StampBackend {
 public:
  void take() noexcept {
    ns_.store(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1),
              std::memory_order_release);
  }
  std::optional<std::int64_t> ns() const override {
    const std::int64_t ns = ns_.load(std::memory_order_acquire);
    return ns == unknown ? std::nullopt : std::optional(ns);
  }

 private:
  static constexpr std::int64_t unknown = -1;
  std::atomic<std::int64_t> ns_{unknown};
};

}  // namespace atoll_v1::atoll
