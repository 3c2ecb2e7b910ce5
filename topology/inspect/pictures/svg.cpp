// The picture as Graphviz paints it. `dot` runs as a child process; what it says on all its
// channels is read while it is fed, so that neither side waits for the other.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "atoll/error.hpp"
#include "atoll/inspect/inspection.hpp"

extern char** environ;

namespace atoll_v1::atoll {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t most_output = std::size_t{64} << 20;
constexpr std::size_t most_complaint = 4096;
constexpr std::chrono::seconds patience{30};

[[noreturn]] void fail(std::string_view step, int error) {
  throw Error(ErrorCode::io, fmt::format("Graphviz' dot: {}: {}", step, std::strerror(error)));
}

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Channel {
  Descriptor ours, theirs;
};

// A socket both ways: writing to a pipe whose reader is gone would raise SIGPIPE.
Channel make_channel() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    fail("socketpair", errno);
  Channel channel{Descriptor(ends[0]), Descriptor(ends[1])};
  if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) fail("fcntl", errno);
  return channel;
}

// A running process; killed and reaped at the end of its life here, if it has not ended itself.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  // Its status; 0 where someone else has reaped it.
  int wait(Clock::time_point deadline) {
    while (true) {
      int status = 0;
      const pid_t ended = waitpid(pid_, &status, WNOHANG);
      if (ended == pid_ || (ended < 0 && errno != EINTR)) {
        pid_ = 0;
        return ended < 0 ? 0 : status;
      }
      if (Clock::now() >= deadline) fail("end", ETIMEDOUT);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

 private:
  pid_t pid_;
};

pid_t spawn_dot(int input, int output, int complaint) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, complaint, STDERR_FILENO);
  std::array<char, 4> program{"dot"};
  std::array<char, 6> option{"-Tsvg"};
  std::array<char*, 3> arguments{program.data(), option.data(), nullptr};
  pid_t pid = 0;
  const int error =
      posix_spawnp(&pid, program.data(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT || error == EACCES || error == ENOTDIR)
    throw Error(ErrorCode::not_found, "Graphviz' dot is not in PATH: install the package graphviz");
  if (error != 0) fail("start", error);
  return pid;
}

bool is_transient(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// Sends what the channel takes, and says so when it was all. A reader that is gone is no error
// here: its complaint says more.
void feed(Descriptor& channel, std::string_view& rest) {
  const ssize_t sent = send(channel.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
  if (sent > 0) rest.remove_prefix(static_cast<std::size_t>(sent));
  if (rest.empty() || (sent < 0 && !is_transient(errno))) channel.close();
}

// Appends what is there; closes the channel at its end.
void drain(Descriptor& channel, std::string& into) {
  std::array<char, 1 << 16> block{};
  const ssize_t got = read(channel.get(), block.data(), block.size());
  if (got > 0) into.append(block.data(), static_cast<std::size_t>(got));
  if (got == 0 || (got < 0 && !is_transient(errno))) channel.close();
}

struct Answer {
  std::string output, complaint;
};

Answer talk(Descriptor input, Descriptor output, Descriptor complaint, std::string_view text,
            Clock::time_point deadline) {
  Answer answer;
  while (output.is_open() || complaint.is_open()) {
    // poll() skips closed channels: their descriptor is -1.
    std::array<pollfd, 3> waits{pollfd{input.get(), POLLOUT, 0}, pollfd{output.get(), POLLIN, 0},
                                pollfd{complaint.get(), POLLIN, 0}};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) fail("no answer", ETIMEDOUT);
    const int ready = poll(waits.data(), waits.size(), static_cast<int>(left.count()));
    if (ready < 0 && errno != EINTR) fail("poll", errno);
    if (ready <= 0) continue;
    if (waits[0].revents != 0) feed(input, text);
    if (waits[1].revents != 0) drain(output, answer.output);
    if (waits[2].revents != 0) drain(complaint, answer.complaint);
    if (answer.output.size() > most_output)
      throw Error(ErrorCode::unsupported,
                  fmt::format("the picture is larger than {} MiB", most_output >> 20));
    answer.complaint.resize(std::min(answer.complaint.size(), most_complaint));
  }
  return answer;
}

}  // namespace

std::string to_svg(const Inspection& inspection) {
  const std::string text = to_dot(inspection);
  const Clock::time_point deadline = Clock::now() + patience;
  Channel input = make_channel(), output = make_channel(), complaint = make_channel();
  Child child(spawn_dot(input.theirs.get(), output.theirs.get(), complaint.theirs.get()));
  for (Channel* channel : {&input, &output, &complaint}) channel->theirs.close();
  Answer answer = talk(std::move(input.ours), std::move(output.ours), std::move(complaint.ours),
                       text, deadline);
  const int status = child.wait(deadline);
  if (status != 0 || answer.output.find("<svg") == std::string::npos) {
    const std::string line = answer.complaint.substr(0, answer.complaint.find('\n'));
    const std::string end = WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                                : fmt::format("exit {}", WEXITSTATUS(status));
    throw Error(ErrorCode::io, fmt::format("Graphviz' dot made no picture ({}): {}", end,
                                           line.empty() ? "no reason given" : line));
  }
  return std::move(answer.output);
}

}  // namespace atoll_v1::atoll
