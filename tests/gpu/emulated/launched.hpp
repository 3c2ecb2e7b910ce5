// Counts the kernels and products that the host launches on the emulated GPU.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "emulated.hpp"

namespace atoll_test {

struct Launched {
  int kernels = 0, products = 0;
  friend bool operator==(const Launched&, const Launched&) = default;
};
inline doctest::String toString(const Launched& count) {
  return fmt::format("{} kernels and {} products", count.kernels, count.products).c_str();
}

// Returns what `work` launches.
template <class Work>
Launched launched_by(const Work& work) {
  const auto& launches = emulated::launches();
  const int kernels = static_cast<int>(launches.kernels);
  const int products = static_cast<int>(launches.products);
  work();
  return {static_cast<int>(launches.kernels) - kernels,
          static_cast<int>(launches.products) - products};
}

}  // namespace atoll_test
