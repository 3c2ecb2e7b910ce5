// Functions of World for other parts of the library, which users do not need.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>

#include "atoll/world.hpp"
#include "core/errors.hpp"
#include "store/store.hpp"

namespace atoll_v1::atoll {

struct WorldInternals {
  // Returns the object that another part of the library has attached to this World as `name`. The
  // first call makes it. ~World releases these objects after the callbacks of at_exit, the newest
  // first, while the store still works.
  static std::shared_ptr<void> companion(World& world, std::string_view name,
                                         const std::function<std::shared_ptr<void>()>& make);

  // While the result or a copy of it exists, moving this World throws. Throws if it has been moved.
  static std::shared_ptr<const void> hold(const World& world);
  // Returns true if the World of a result of hold() has been destroyed; false for a null pointer.
  static bool is_over(const std::shared_ptr<const void>& hold) noexcept;
  // Throws Error(invalid_argument) in a forked child, which has no connection with the store.
  static store::Store& store(World& world);
  // Returns when this process learned that a rank is gone.
  static std::chrono::steady_clock::time_point departure_time(const World& world, int rank);
};

// A reference to a World for objects that the program may keep longer than the World.
class WorldLink {
 public:
  WorldLink(World& world)  // NOLINT(google-explicit-constructor): a reference to `world`
      : world_(&world), hold_(WorldInternals::hold(world)) {}

  bool is_over() const noexcept { return WorldInternals::is_over(hold_); }
  // Throws Error(invalid_argument) if the World has been destroyed; so does get().
  void check_exists() const {
    require(!is_over(),
            "the World has been destroyed: destroy meshes, communicators, engines and optimizers "
            "before their World");
  }
  World& get() const {
    check_exists();
    return *world_;
  }
  // Calls World::fail(), unless the World has been destroyed.
  void fail(std::string_view reason) const noexcept {
    if (!is_over()) world_->fail(reason);
  }

 private:
  World* world_;
  std::shared_ptr<const void> hold_;
};

}  // namespace atoll_v1::atoll
