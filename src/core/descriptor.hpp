// Owned file descriptors, and their limit. Backends include this header too, so it uses nothing of
// libatoll that has a source.
//
// A forked child shares no descriptor of an Fd with this process: a handler of pthread_atfork()
// replaces them in the child by /dev/null. Otherwise a child that outlives its rank would keep the
// rank's connections open, and the other ranks would not notice that the rank has died. The child
// keeps the numbers in use, because its copies of the objects may close them.
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll::net {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {
    static const int registered = ::pthread_atfork(nullptr, nullptr, replace_in_child);
    static_cast<void>(registered);
    mark(true);
  }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    Fd old(std::move(other));
    std::swap(fd_, old.fd_);
    return *this;
  }
  ~Fd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void reset() noexcept {
    if (fd_ < 0) return;
    mark(false);
    ::close(std::exchange(fd_, -1));
  }
  // From now on, forked children share the descriptor.
  void share_with_children() const noexcept { mark(false); }

 private:
  // The table of owned numbers needs no lock and no memory allocation, because a child may be
  // forked while another thread opens a descriptor. Linux allows larger numbers only if an
  // administrator raises fs.nr_open; a child keeps descriptors with larger numbers.
  static constexpr std::size_t most = std::size_t{1} << 20;
  static constexpr std::size_t bits = 64;
  static inline std::array<std::atomic<std::uint64_t>, most / bits> owned{};

  void mark(bool is_owned) const noexcept {
    const auto number = static_cast<std::size_t>(fd_);
    if (fd_ < 0 || number >= most) return;
    const std::uint64_t bit = std::uint64_t{1} << number % bits;
    if (is_owned) {
      owned[number / bits].fetch_or(bit, std::memory_order_relaxed);
    } else {
      owned[number / bits].fetch_and(~bit, std::memory_order_relaxed);
    }
  }
  // Runs in the child, where only system calls that are safe in signal handlers are allowed.
  static void replace_in_child() {
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (std::size_t i = 0; i < owned.size(); ++i) {
      for (std::uint64_t left = owned[i].load(std::memory_order_relaxed); left != 0;
           left &= left - 1) {
        const int fd = static_cast<int>(i * bits) + std::countr_zero(left);
        if (nothing < 0 || ::dup3(nothing, fd, O_CLOEXEC) < 0) ::close(fd);
      }
    }
    if (nothing >= 0) ::close(nothing);
  }

  int fd_ = -1;
};

// Returns true if this process has no free file descriptor.
inline bool lacks_descriptors() noexcept {
  const Fd spare(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return !spare && (errno == EMFILE || errno == ENFILE);
}

// Returns the soft limit of descriptors of this process. With `raise` it first becomes the hard
// limit.
inline std::size_t descriptor_limit(bool raise) noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  if (raise && limit.rlim_cur < limit.rlim_max) {
    const rlimit raised{limit.rlim_max, limit.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return static_cast<std::size_t>(limit.rlim_cur);
}

}  // namespace atoll_v1::atoll::net
