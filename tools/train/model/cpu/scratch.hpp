#pragma once

#include <fmt/format.h>
#include <hwy/aligned_allocator.h>

#include <cstddef>

#include "atoll/error.hpp"

namespace train::cpu {

// Aligned f32 memory that grows to the largest request. Growing discards the contents.
class Scratch {
 public:
  float* reserve(std::size_t floats) {
    if (floats > size_) {
      size_ = 0;
      memory_ = hwy::AllocateAligned<float>(floats);
      if (memory_ == nullptr) {
        throw atoll::Error(atoll::ErrorCode::out_of_memory,
                           fmt::format("cannot allocate {} floats of scratch memory", floats));
      }
      size_ = floats;
    }
    return memory_.get();
  }

 private:
  hwy::AlignedFreeUniquePtr<float[]> memory_;
  std::size_t size_ = 0;
};

}  // namespace train::cpu
