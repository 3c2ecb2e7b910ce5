// Counts the allocated bytes of a device, and the largest number so far. Any thread may call.
#pragma once

#include <atomic>
#include <cstddef>

namespace atoll_v1::atoll {

class AllocationCount {
 public:
  // A negative number of bytes means that memory was freed.
  void add(std::ptrdiff_t bytes) noexcept {
    const std::size_t now = now_ +=
        static_cast<std::size_t>(bytes);  // unsigned wrap-around subtracts a negative number
    std::size_t peak = peak_.load();
    while (bytes > 0 && now > peak && !peak_.compare_exchange_weak(peak, now)) {
    }
  }
  std::size_t now() const noexcept { return now_; }
  std::size_t peak() const noexcept { return peak_; }

 private:
  std::atomic<std::size_t> now_{0};
  std::atomic<std::size_t> peak_{0};
};

}  // namespace atoll_v1::atoll
