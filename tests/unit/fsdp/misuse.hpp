// Helpers of tests that use engines wrongly.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "unit/error_text.hpp"
#include "unit/fsdp/toy.hpp"

namespace atoll_test {

inline constexpr std::int64_t elements = 9000;

// Runs a micro batch that writes 1 to every gradient.
inline void train(atoll::fsdp::Engine& engine, atoll::Stream& compute,
                  const atoll::fsdp::PassOptions& options = {}) {
  run_pass(engine, compute, 1.0f, options);
}

inline std::string disagree(const std::string& call, const std::string& what) {
  return "mismatch: " + call + ": ranks disagree about " + what + "; all ranks must pass the same";
}

// Returns the error of `wrong` on an engine of one rank that has no units yet.
inline std::string error_before_seal(const std::function<void(atoll::fsdp::Engine&)>& wrong) {
  atoll::World world = atoll::World::single();
  atoll::fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
  return error_of([&] { wrong(engine); });
}

// Returns the error of `wrong` on an engine of one rank with the unit "a", whose parameter "w" is
// 1.
inline std::string engine_error(
    const std::function<void(atoll::fsdp::Engine&, atoll::Stream&)>& wrong) {
  return error_before_seal([&](atoll::fsdp::Engine& engine) {
    add_units(engine, {"a"}, elements);
    set_all(engine, 1.0f);
    auto compute = engine.device().stream();
    wrong(engine, compute);
  });
}

}  // namespace atoll_test
