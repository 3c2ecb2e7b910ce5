// Runs Graphviz' `dot` as a child process to make an SVG. The child reads and writes files in
// memory instead of pipes, so that neither process blocks on the other.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

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

// An anonymous file in memory.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("atoll-picture", MFD_CLOEXEC)) {
    if (fd_ < 0) fail("memfd_create", errno);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { close(fd_); }

  int descriptor() const { return fd_; }

  std::size_t size() const {
    struct stat about {};
    return fstat(fd_, &about) == 0 ? static_cast<std::size_t>(about.st_size) : 0;
  }

  void fill(std::string_view text) const {
    if (pwrite(fd_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
      fail("write", errno);
  }

  // Returns the first `limit` bytes, or the whole file if it is shorter.
  std::string text(std::size_t limit) const {
    std::string text(std::min(size(), limit), '\0');
    if (pread(fd_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
      fail("read", errno);
    return text;
  }

 private:
  int fd_;
};

pid_t spawn_dot(const MemoryFile& input, const MemoryFile& output, const MemoryFile& complaint) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.descriptor(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output.descriptor(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, complaint.descriptor(), STDERR_FILENO);
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

// Returns the exit status of `dot`, or 0 if another part of this process has already collected the
// status. Kills `dot` if its output is too large or if it runs too long.
int run_dot(const MemoryFile& input, const MemoryFile& output, const MemoryFile& complaint) {
  const pid_t pid = spawn_dot(input, output, complaint);
  const Clock::time_point deadline = Clock::now() + patience;
  while (true) {
    int status = 0;
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    const bool has_ended = ended == pid || (ended < 0 && errno != EINTR);
    const bool is_large = std::max(output.size(), complaint.size()) > most_output;
    const bool is_late = Clock::now() >= deadline;
    if (!has_ended && (is_large || is_late)) {
      kill(pid, SIGKILL);
      while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
    if (is_large)
      throw Error(ErrorCode::unsupported,
                  fmt::format("the picture is larger than {} MiB", most_output >> 20));
    if (has_ended) return status;
    if (is_late) fail("dot did not finish in time", ETIMEDOUT);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace

std::string to_svg(const Inspection& inspection) {
  const MemoryFile input, output, complaint;
  input.fill(to_dot(inspection));
  const int status = run_dot(input, output, complaint);
  std::string picture = output.text(most_output);
  if (status != 0 || picture.find("<svg") == std::string::npos) {
    const std::string reason = complaint.text(most_complaint);
    const std::string line = reason.substr(0, reason.find('\n'));
    const std::string end = WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                                : fmt::format("exit {}", WEXITSTATUS(status));
    throw Error(ErrorCode::io, fmt::format("Graphviz' dot made no picture ({}): {}", end,
                                           line.empty() ? "no reason given" : line));
  }
  return picture;
}

}  // namespace atoll_v1::atoll
