// Scratch memory that the operations of one communicator share, because they run one after the
// other.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "atoll/device.hpp"

namespace atoll_v1::atoll {

class Scratch {
 public:
  explicit Scratch(Device device) : device_(std::move(device)) {}

  // Adds memory that take() may return.
  void add(Buffer memory) { buffers_.push_back(std::move(memory)); }
  // Returns memory that every later call may return again. When the memory is too small, allocates
  // at least twice its size.
  View take(std::uint64_t count, DType dtype) {
    const std::uint64_t bytes = count * size_of(dtype);
    const std::uint64_t before = buffers_.empty() ? 0 : buffers_.back().bytes();
    if (before < bytes) buffers_.push_back(device_.allocate(std::max(bytes, 2 * before)));
    return buffers_.back().view(dtype).part(0, count);
  }

 private:
  Device device_;
  // Buffers in ascending size; operations in flight may still use the smaller buffers.
  std::vector<Buffer> buffers_;
};

}  // namespace atoll_v1::atoll
