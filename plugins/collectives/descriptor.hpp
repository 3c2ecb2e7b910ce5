// Descriptor owns a file descriptor and closes it on destruction.
//
// A forked child shares no Descriptor with this process: a handler of pthread_atfork() replaces the
// descriptors in the child by /dev/null. Otherwise a child that outlives its rank would keep the
// rank's connections open, and the other ranks would not notice that the rank has died. The child
// keeps the numbers in use, because its copies of the Descriptor objects may close them.
// src/core/socket.cpp does the same for the sockets of libatoll. The two share no code: a backend
// includes nothing of src/, and a header for both would be installed as part of the public API.
#pragma once

#include <utility>

namespace atoll_collectives {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept;
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void reset() noexcept;

 private:
  int fd_ = -1;
};

}  // namespace atoll_collectives
