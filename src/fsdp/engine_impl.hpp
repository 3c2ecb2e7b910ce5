// Joins the parts of an engine.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "fsdp/pass_state.hpp"

namespace atoll_v1::atoll::fsdp {

// The order of members matters: buffers must be destroyed before the scheduler, which has
// registered them.
struct Engine::Impl {
  Impl(const Mesh& mesh, Options options) : setup(mesh, std::move(options)) {}

  EngineSetup setup;
  std::map<std::string, std::size_t, std::less<>> by_name;  // unit name to index in setup.units
  Storage storage{setup};
  Gathering gathering{setup, storage};
  Reducing reducing{setup, storage};
  PassState pass{setup, storage, gathering, reducing};
};

}  // namespace atoll_v1::atoll::fsdp
