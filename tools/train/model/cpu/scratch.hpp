#pragma once

#include <hwy/aligned_allocator.h>

#include <cstddef>

#include "fail.hpp"

namespace train::cpu {

// Aligned f32 memory that grows to the largest request. Growing discards the contents.
class Scratch {
 public:
  float* reserve(std::size_t floats) {
    if (floats > size_) {
      size_ = 0;
      memory_ = hwy::AllocateAligned<float>(floats);
      if (memory_ == nullptr) {
        fail(ErrorCode::out_of_memory, "cannot allocate {} floats of scratch memory", floats);
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
