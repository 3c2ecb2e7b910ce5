// Helpers of tests that use engines wrongly.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/log.hpp"
#include "unit/fsdp/toy.hpp"

namespace atoll_test {

inline constexpr std::int64_t elements = 9000;

// Runs a micro batch that writes 1 to every gradient.
inline void train(atoll::fsdp::Engine& engine, atoll::Stream& compute,
                  const atoll::fsdp::PassOptions& options = {}) {
  auto pass = engine.begin(options, compute);
  for (const auto& unit : engine.units()) const auto w = pass.forward(*unit);
  for (auto unit = engine.units().rbegin(); unit != engine.units().rend(); ++unit) {
    const auto w = pass.backward(**unit);
    compute.enqueue([g = w.grad("w").view.as<float>()] { std::fill_n(g, elements, 1.0f); });
  }
}

inline std::string disagree(const std::string& call, const std::string& what) {
  return "mismatch: " + call + ": ranks disagree about " + what + "; all ranks must pass the same";
}

// Collects the messages of the log while it exists.
class Messages {
 public:
  Messages() {
    atoll::log::set_level(atoll::log::Level::warn);
    atoll::log::set_sink([this](atoll::log::Level, std::string_view text) {
      const std::lock_guard lock(mutex_);
      all_.emplace_back(text);
    });
  }
  ~Messages() {
    atoll::log::set_sink(nullptr);
    atoll::log::set_level(atoll::log::Level::error);
  }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  std::ptrdiff_t count(std::string_view part) {
    const std::lock_guard lock(mutex_);
    return std::ranges::count_if(all_,
                                 [&](const auto& text) { return text.find(part) != text.npos; });
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> all_;
};

// Returns the error of `wrong` on an engine of one rank with the unit "a".
inline std::string error_of(
    const std::function<void(atoll::fsdp::Engine&, atoll::Stream&)>& wrong) {
  atoll::World world = atoll::World::single();
  atoll::fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
  add_units(engine, {"a"}, elements);
  set_all(engine, 1.0f);
  auto compute = engine.device().stream();
  try {
    wrong(engine, compute);
  } catch (const atoll::Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace atoll_test
