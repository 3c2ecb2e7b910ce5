// relax() executes the CPU's pause instruction. Call it in loops that wait for another core.
#pragma once

namespace atoll_collectives {

inline void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace atoll_collectives
