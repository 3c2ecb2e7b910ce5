// Functions of World for other parts of the library, which users do not need.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "atoll/world.hpp"
#include "core/store.hpp"

namespace atoll_v1::atoll {

struct WorldInternals {
  // Returns the one object that the communicator layer attaches to this World. The first call makes it;
  // ~World releases it after the callbacks of at_exit, while the store still works.
  static std::shared_ptr<void> companion(World& world,
                                         const std::function<std::shared_ptr<void>()>& make);

  // Sends a question to every rank, this one included, waits for at most `patience` and returns the
  // answers by rank. A rank answers on the thread that reads its connection, so it answers even while
  // it computes or hangs. Throws the failure of the job, or Error(timeout) if the store does not answer.
  static std::vector<store::Answered> ask(World& world, std::string_view question,
                                          std::chrono::milliseconds patience);
  // Sets the function that answers questions on this rank; it must not block or call the World. An
  // empty function removes it and waits for a call in progress. A rank without one answers "".
  static void answer_with(World& world, store::Answerer answerer);
};

}  // namespace atoll_v1::atoll
