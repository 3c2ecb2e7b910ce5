// A child process of a test, and the pipe through which it reports.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

namespace atoll_test {

class ChildProcess {
 public:
  // Calls `body` in a fork of this process, which then ends with status 0. `out` is its end of the
  // pipe. The destructor kills a child that still runs.
  explicit ChildProcess(const std::function<void(int out)>& body) {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::alarm(120);
      body(ends[1]);
      ::_exit(0);
    }
    ::close(ends[1]);
    from_ = ends[0];
  }
  ChildProcess(ChildProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), from_(std::exchange(other.from_, -1)) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    status();
    if (from_ >= 0) ::close(from_);
  }

  pid_t pid() const { return pid_; }
  // Returns the next line; "" if the child has ended.
  std::string line() const {
    std::string text;
    for (char one = 0; ::read(from_, &one, 1) == 1 && one != '\n';) text += one;
    return text;
  }
  // Returns all further output, up to the end of the child.
  std::string rest() const {
    std::string text;
    std::array<char, 1024> piece{};
    for (ssize_t n = 0; (n = ::read(from_, piece.data(), piece.size())) > 0;) {
      text.append(piece.data(), static_cast<std::size_t>(n));
    }
    return text;
  }
  // Returns whether the child, and all children of its own that hold the pipe, end within `limit`
  // without further output.
  bool ends_within(std::chrono::milliseconds limit) const {
    pollfd item{from_, POLLIN, 0};
    char byte = 0;
    return ::poll(&item, 1, static_cast<int>(limit.count())) > 0 && ::read(from_, &byte, 1) == 0;
  }
  // Waits for the end of the child. Returns its status as waitpid() does.
  int status() {
    int result = -1;
    if (pid_ > 0) ::waitpid(std::exchange(pid_, -1), &result, 0);
    return result;
  }

 private:
  pid_t pid_ = -1;
  int from_ = -1;
};

}  // namespace atoll_test
