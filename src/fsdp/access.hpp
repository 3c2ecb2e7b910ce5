// The inside of Engine, Unit and Optimizer, for the other sources of this folder and for tests.
#pragma once

#include <memory>

#include "atoll/optimizer.hpp"
#include "fsdp/unit.hpp"

namespace atoll_v1::atoll::fsdp {

struct EngineSetup;
class Storage;
class Gathering;
class Reducing;
class PassState;

// The optimizer's moments of a bucket or of a part of it; empty without moments.
struct Moments {
  View first, second;
};

// A friend of the public classes. References live as long as the engine.
struct EngineAccess {
  static std::unique_ptr<Unit> make_unit(std::unique_ptr<UnitState> state) {
    return std::unique_ptr<Unit>(new Unit(std::move(state)));
  }
  static UnitState& state(const Unit& unit) noexcept { return *unit.state_; }
  static EngineSetup& setup(Engine& engine) noexcept;
  static Gathering& gathering(Engine& engine) noexcept;
  static Reducing& reducing(Engine& engine) noexcept;
  static PassState& pass(Engine& engine) noexcept;
  static Moments moments(const Optimizer& optimizer, const Unit& unit, std::size_t bucket);
};

inline UnitState& state_of(const Unit& unit) noexcept { return EngineAccess::state(unit); }

}  // namespace atoll_v1::atoll::fsdp
