// What the rooms above core need of a World and users do not.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/world.hpp"
#include "core/store.hpp"

namespace atoll_v1::atoll {

struct WorldInternals {
  // The one object that the room above keeps for the life of this World: made by the first caller,
  // dropped in ~World, after the callbacks of at_exit and while the store still answers.
  static std::shared_ptr<void> companion(World& world,
                                         const std::function<std::shared_ptr<void>()>& make);

  // Asks every rank, also this one, and waits for at most `patience`. By rank. A rank answers from
  // the thread that reads its connection, so it does even while it computes or hangs. Throws the
  // failure of the job, and Error(timeout) when the store itself does not answer.
  static std::vector<store::Answered> ask(World& world, std::string_view question,
                                          std::chrono::milliseconds patience);
  // What this rank answers; must not block, nor call the World. An empty function ends it, after a
  // call under way has returned. Without one a rank answers "".
  static void answer_with(World& world, store::Answerer answerer);
};

}  // namespace atoll_v1::atoll
