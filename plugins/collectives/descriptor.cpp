#include "collectives/descriptor.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace atoll_collectives {
namespace {

// One bit per descriptor number, set while a Descriptor owns the number. The table needs no lock
// and no memory allocation, because a child may be forked while another thread opens a descriptor.
// Linux allows larger numbers only if an administrator raises fs.nr_open; a child keeps descriptors
// with larger numbers.
constexpr std::size_t most = std::size_t{1} << 20;
constexpr std::size_t bits = 64;
std::array<std::atomic<std::uint64_t>, most / bits> owned{};

void mark(int fd, bool is_owned) noexcept {
  const auto number = static_cast<std::size_t>(fd);
  if (number >= most) return;
  const std::uint64_t bit = std::uint64_t{1} << number % bits;
  if (is_owned) {
    owned[number / bits].fetch_or(bit, std::memory_order_relaxed);
  } else {
    owned[number / bits].fetch_and(~bit, std::memory_order_relaxed);
  }
}

// Runs in the child, where only system calls that are safe in signal handlers are allowed.
void replace_in_child() {
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

}  // namespace

Descriptor::Descriptor(int fd) noexcept : fd_(fd) {
  static const int registered = ::pthread_atfork(nullptr, nullptr, replace_in_child);
  static_cast<void>(registered);
  if (fd_ >= 0) mark(fd_, true);
}

void Descriptor::reset() noexcept {
  if (fd_ < 0) return;
  mark(fd_, false);
  ::close(fd_);
  fd_ = -1;
}

}  // namespace atoll_collectives
