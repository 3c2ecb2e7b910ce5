// Writes beyond the limit of the size of a file (ulimit -f) fail with EFBIG and do not end the
// process.
#pragma once

#include <pthread.h>

#include <cerrno>
#include <csignal>
#include <ctime>

namespace atoll_v1::atoll {

// Holds back SIGXFSZ from this thread. A write beyond the limit of size sends the signal to the
// thread that writes; the signal would end the process, but a blocked one only stays pending.
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
