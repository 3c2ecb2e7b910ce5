// Device memory that the operations of one communicator use one after the other.
#pragma once

#include <algorithm>
#include <vector>

#include "atoll/device.hpp"

namespace atoll_v1::atoll {

class Scratch {
 public:
  explicit Scratch(Device device) : device_(std::move(device)) {}

  // Returns the same memory at every call; it is safe to share because operations of a communicator
  // run in order. Grows to at least twice its size when it is too small.
  View take(std::uint64_t count, DType dtype) {
    const std::uint64_t bytes = count * size_of(dtype);
    const std::uint64_t before = buffers_.empty() ? 0 : buffers_.back().bytes();
    if (before < bytes) buffers_.push_back(device_.allocate(std::max(bytes, 2 * before)));
    return buffers_.back().view(dtype).part(0, count);
  }

 private:
  Device device_;
  std::vector<Buffer> buffers_;  // the last one is the largest; earlier ones may still be in use
};

}  // namespace atoll_v1::atoll
