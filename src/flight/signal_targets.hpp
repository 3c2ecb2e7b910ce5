// The event descriptors to which the handler of SIGUSR1 writes. The handler takes no lock; it may
// run on any thread, and on several threads at once.
//
// The structure is a template over the atomic type, so that tests/litmus can run exactly this code
// on a model of weak memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace atoll_v1::atoll {

template <template <class> class Atomic, std::size_t places>
struct SignalTargetsOf {
  struct Target {
    Atomic<int> eventfd{-1};  // descriptor to write to; -1 in an unused entry
    Atomic<std::uint64_t> value{0};
  };

  // For the handler: calls write(eventfd, value) for each target.
  template <class Write>
  void handle(const Write& write) {
    running.fetch_add(1, std::memory_order_seq_cst);
    for (const Target& target : targets) {
      const int fd = target.eventfd.load(std::memory_order_seq_cst);
      const std::uint64_t value = target.value.load(std::memory_order_relaxed);
      if (fd >= 0) write(fd, value);
    }
    running.fetch_add(-1, std::memory_order_seq_cst);
  }

  // One caller at a time may add or remove a target. Returns the index of the target in `targets`;
  // nothing if all entries are in use.
  std::optional<std::size_t> add(int eventfd, std::uint64_t value) {
    for (std::size_t i = 0; i < places; ++i) {
      if (targets[i].eventfd.load(std::memory_order_relaxed) >= 0) continue;
      targets[i].value.store(value, std::memory_order_relaxed);
      targets[i].eventfd.store(eventfd, std::memory_order_seq_cst);
      return i;
    }
    return std::nullopt;
  }
  // Removes a target. Then waits for running handlers, because they may have read the descriptor
  // before and may still write to it. A handler increments `running` before it reads descriptors,
  // and this function removes the descriptor before it reads `running`. These accesses are
  // sequentially consistent, so the handler sees the removal or this function waits for it.
  template <class Yield>
  void remove(std::size_t place, const Yield& yield) {
    targets[place].eventfd.store(-1, std::memory_order_seq_cst);
    while (running.load(std::memory_order_seq_cst) > 0) yield();
  }

  std::array<Target, places> targets;
  Atomic<int> running{0};  // number of handlers that run now
};

}  // namespace atoll_v1::atoll
