// A reference to a World for objects that the program may keep longer than the World.
#pragma once

#include <memory>
#include <string_view>

#include "core/errors.hpp"
#include "core/world_internals.hpp"

namespace atoll_v1::atoll {

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
