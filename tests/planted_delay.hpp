// Plants delays in collectives through the test backend `delay` (tests/plugins/delay.cpp).
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "atoll/config.hpp"
#include "atoll/plugin.h"

namespace atoll_test {

// Makes the library find the backend `delay` and choose it.
inline void use_delay_backend(atoll::Config& config) {
  config.plugin_path = ATOLL_TEST_PLUGINS;
  config.backend = "delay";
}

template <class Function>
Function delay_function(const char* name) {
  const std::string file = std::string(ATOLL_TEST_PLUGINS) + "/libatoll-delay.so";
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto found = handle ? reinterpret_cast<Function>(dlsym(handle, name)) : nullptr;
  if (!found) throw std::runtime_error("cannot load " + file);
  return found;
}

// Number of ranks of this process that open a communicator whose name begins with "waits".
inline int waiting_ranks() { return delay_function<int (*)()>("atoll_test_waiting")(); }

// Delays by `ms` milliseconds every operation of `kind` for which sequence number % every == which,
// on every communicator of this process. Kind -1 removes all delays.
inline void plant_delay(std::int32_t kind, std::uint64_t every, std::uint64_t which,
                        std::int64_t ms) {
  using Plant = void (*)(std::int32_t, std::uint64_t, std::uint64_t, std::int64_t);
  delay_function<Plant>("atoll_test_plant")(kind, every, which, ms);
}

}  // namespace atoll_test
