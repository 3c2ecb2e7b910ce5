// Sums and copies of CPU memory: the kernels that backends on CPU memory need too. They use nothing
// else of libatoll, so a backend links its own copy of them (atoll_cpu_kernels).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "atoll/view.hpp"

namespace atoll_v1::atoll::cpu {

enum class Stores {
  cached,
  streaming,  // uses non-temporal stores, for data that is not read soon
};

// A reduction that writes several destinations and may multiply each part with a factor.
struct Reduction {
  std::span<void* const> dsts{};
  std::span<const void* const> parts{};
  // One factor per part; null means that all are 1. Only for sum and avg of floating types.
  const double* factors = nullptr;
  std::uint64_t count = 0;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int divisor = 0;  // avg divides the sum by this number; 0 means the number of parts
  Stores stores = Stores::cached;
  std::size_t block = 0;  // consecutive parts per inner tree; 0 means one tree over all parts
};
void reduce_into(const Reduction& reduction);
// reduce_into() calls this function for all ops from product on, and for the types of is_plain().
void reduce_plain(const Reduction& reduction);
// Returns true for the integer types that are reduced by plain loops instead of vector code.
constexpr bool is_plain(DType dtype) {
  return dtype == DType::i8 || dtype == DType::u16 || dtype == DType::u32 || dtype == DType::u64 ||
         dtype == DType::i16;
}
// Returns the number of parts in the left half of a tree over n parts. If `block` is not 0, each
// run of `block` consecutive parts forms one subtree.
constexpr std::size_t left_of(std::size_t n, std::size_t block) {
  return block == 0 || n <= block ? std::bit_floor(n - 1) : std::bit_floor(n / block - 1) * block;
}
// Copies like memcpy(), with non-temporal stores.
void copy_streaming(void* dst, const void* src, std::size_t bytes);

}  // namespace atoll_v1::atoll::cpu
