#include "core/fork.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <new>
#include <set>

namespace atoll_v1::atoll {

std::atomic<unsigned> ProcessMark::forks_before_{0};

ProcessMark::ProcessMark() noexcept {
  static const int registered = ::pthread_atfork(
      nullptr, nullptr, [] { forks_before_.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  forks_ = forks_before_.load(std::memory_order_relaxed);
}

}  // namespace atoll_v1::atoll

namespace atoll_v1::atoll::net {
namespace {

struct Kept {
  std::mutex mutex;
  std::set<int> sockets;
};

// Never destroyed, since a process may fork while static objects are being destroyed.
Kept& kept() {
  static auto* const all = new Kept;
  return *all;
}

// Runs in the child, where only system calls that are safe in signal handlers are allowed.
void replace_in_child() {
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int socket : kept().sockets) {
    if (nothing < 0 || ::dup3(nothing, socket, O_CLOEXEC) < 0) ::close(socket);
  }
  if (nothing >= 0) ::close(nothing);
  kept().mutex.unlock();
}

}  // namespace

void keep_from_children(int socket) noexcept {
  static const int registered = ::pthread_atfork([] { kept().mutex.lock(); },
                                                 [] { kept().mutex.unlock(); }, replace_in_child);
  static_cast<void>(registered);
  const std::lock_guard lock(kept().mutex);
  try {
    kept().sockets.insert(socket);
  } catch (const std::bad_alloc&) {
    // Without memory for the entry, a forked child merely keeps the socket.
  }
}

void forget_descriptor(int descriptor) noexcept {
  const std::lock_guard lock(kept().mutex);
  kept().sockets.erase(descriptor);
}

}  // namespace atoll_v1::atoll::net
