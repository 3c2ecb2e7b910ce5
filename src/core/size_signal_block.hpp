// Makes a write beyond the limit of file sizes (ulimit -f) fail with EFBIG, instead of ending the
// process.
#pragma once

#include <pthread.h>

#include <cerrno>
#include <csignal>
#include <ctime>

namespace atoll_v1::atoll {

// Blocks SIGXFSZ in this thread. A write beyond the limit sends this signal to the thread that
// writes; it would end the process, but a blocked signal only stays pending.
class SizeSignalBlock {
 public:
  SizeSignalBlock() noexcept {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~SizeSignalBlock() {
    const int error = errno;
    if (sigismember(&before_, SIGXFSZ) == 0) {
      constexpr timespec at_once{};
      while (sigtimedwait(&signal_, nullptr, &at_once) == SIGXFSZ) {
      }
      pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    errno = error;
  }
  SizeSignalBlock(const SizeSignalBlock&) = delete;
  SizeSignalBlock& operator=(const SizeSignalBlock&) = delete;

 private:
  sigset_t signal_{}, before_{};
};

}  // namespace atoll_v1::atoll
