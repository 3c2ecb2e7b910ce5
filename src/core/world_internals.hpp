// Functions of World for other parts of the library, which users do not need.
#pragma once

#include <functional>
#include <memory>

#include "atoll/world.hpp"
#include "core/store.hpp"

namespace atoll_v1::atoll {

struct WorldInternals {
  // Returns the one object that the communicator layer attaches to this World. The first call makes
  // it; ~World releases it after the callbacks of at_exit, while the store still works.
  static std::shared_ptr<void> companion(World& world,
                                         const std::function<std::shared_ptr<void>()>& make);

  // While the result or a copy of it exists, moving this World throws. Throws if it has been moved.
  static std::shared_ptr<const void> hold(const World& world);
  // Returns true if the World of a result of hold() has been destroyed; false for a null pointer.
  static bool is_over(const std::shared_ptr<const void>& hold) noexcept;
  // Throws Error(invalid_argument) in a forked child, which has no connection with the store.
  static store::Store& store(World& world);
};

}  // namespace atoll_v1::atoll
