// One turn of a loop that waits for another core.
#pragma once

namespace atoll_sdk {

inline void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace atoll_sdk
