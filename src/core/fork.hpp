// Recognises a forked child of a rank, and keeps the rank's sockets out of it. A child that shared a
// socket would keep the connection open after the rank has died, so that the other ranks would not
// notice the death.
#pragma once

#include <atomic>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// Remembers the process that made it. is_here() is true in that process and false in its children.
// Unlike a comparison of getpid(), it makes no system call, so every collective can ask.
class ProcessMark {
 public:
  ProcessMark() noexcept;
  bool is_here() const noexcept { return forks_ == forks_before_.load(std::memory_order_relaxed); }

 private:
  static std::atomic<unsigned> forks_before_;  // forks between the first mark and this process
  unsigned forks_;
};

}  // namespace atoll_v1::atoll

namespace atoll_v1::atoll::net {

// From now on, fork() replaces this socket in the child by /dev/null. The descriptor stays in use
// there, because objects that the child has copied may close it.
void keep_from_children(int socket) noexcept;
// Ends that, before the descriptor is closed. Any descriptor may be passed.
void forget_descriptor(int descriptor) noexcept;

}  // namespace atoll_v1::atoll::net
