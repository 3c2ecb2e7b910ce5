// Replaces DeviceRadixSort of CUB on the emulated GPU: sorts pairs by their keys and keeps the
// order of equal keys.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <type_traits>
#include <vector>

#include "emulated.hpp"

namespace cub {

struct DeviceRadixSort {
  template <class Key, class Value>
  static cudaError_t SortPairs(void* scratch, std::size_t& bytes, const Key* keys_in, Key* keys_out,
                               const Value* values_in, Value* values_out, int n, int begin_bit = 0,
                               int end_bit = 8 * sizeof(Key), cudaStream_t stream = nullptr) {
    constexpr int bits = 8 * sizeof(Key);
    if (scratch == nullptr) {
      bytes = 1;
      return cudaSuccess;
    }
    emulated::enqueue(stream, [=] {
      std::vector<int> order(static_cast<std::size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      // Compares only the chosen bits, with the sign bit inverted, as CUB does.
      const auto digits = [&](int i) {
        using Bits = std::make_unsigned_t<Key>;
        const Bits sign = std::is_signed_v<Key> ? Bits{1} << (bits - 1) : Bits{0};
        const auto key = static_cast<Bits>(static_cast<Bits>(keys_in[i]) ^ sign);
        return static_cast<Bits>(key << (bits - end_bit)) >> (bits - end_bit + begin_bit);
      };
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return digits(a) < digits(b); });
      for (int i = 0; i < n; ++i) {
        keys_out[i] = keys_in[order[static_cast<std::size_t>(i)]];
        values_out[i] = values_in[order[static_cast<std::size_t>(i)]];
      }
    });
    return cudaSuccess;
  }
};

}  // namespace cub
