// run_ranks -n N [--timeout SECONDS] [--killed RANK] [--stopped RANK] [--] PROGRAM [ARGUMENTS...]
//
// Starts the ranks of a test on this machine: N processes that find each other through ATOLL_RANK,
// ATOLL_SIZE, ATOLL_ADDR and ATOLL_TOKEN. Each line of their output is prefixed with the rank. A
// bug in a collective usually makes ranks hang instead of fail. So after the timeout (default 100
// s) run_ranks names and kills the remaining ranks and exits with 124. Otherwise it exits with the
// worst status of all ranks, where a failure is worse than 77 (skipped), and 77 is worse than 0.
// With --killed, RANK must die of SIGKILL, and any other end is a failure. With --stopped, RANK
// must stop itself by SIGSTOP; run_ranks kills it when all other ranks have ended, and treats this
// as success.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "reserved_port.hpp"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int skipped = 77;
constexpr int timed_out = 124;
constexpr int signalled = 128;  // a shell adds the number of the signal to this status

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }
  int get() const { return fd_; }
  void reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

struct Options {
  int ranks = 0;
  int killed = -1;
  int stopped = -1;
  std::chrono::seconds timeout{100};
  std::vector<char*> command;  // program and arguments, ending with a null pointer for execvp
};

struct Rank {
  pid_t pid = -1;
  Fd output;
  std::string line;  // output of the rank after its last complete line
  bool running = true;
  int status = 0;
};

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

Options parse(int argc, char** argv) {
  Options options;
  int i = 1;
  const auto number = [&] { return i + 1 < argc ? std::stoi(argv[++i]) : 0; };
  for (; i < argc && argv[i][0] == '-'; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "-n") {
      options.ranks = number();
    } else if (flag == "--timeout") {
      options.timeout = std::chrono::seconds(number());
    } else if (flag == "--killed") {
      options.killed = number();
    } else if (flag == "--stopped") {
      options.stopped = number();
    } else if (flag == "--") {
      ++i;
      break;
    } else {
      throw std::invalid_argument("unknown option " + std::string(flag));
    }
  }
  options.command.assign(argv + i, argv + argc);
  if (options.ranks < 1 || options.stopped >= options.ranks || options.command.empty()) {
    throw std::invalid_argument(
        "run_ranks -n N [--timeout SECONDS] [--killed RANK] [--stopped RANK] PROGRAM ...");
  }
  options.command.push_back(nullptr);
  return options;
}

std::string random_token() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 4; ++i) token += std::to_string(random());
  return token;
}

// Runs in the child process and replaces it with the program of the rank.
[[noreturn]] void become(const Options& options, int rank, int output, const std::string& address,
                         const std::string& token) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::setenv("ATOLL_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("ATOLL_SIZE", std::to_string(options.ranks).c_str(), 1);
  ::setenv("ATOLL_ADDR", address.c_str(), 1);
  ::setenv("ATOLL_TOKEN", token.c_str(), 1);
  ::execvp(options.command[0], options.command.data());
  std::fprintf(stderr, "cannot start %s: %s\n", options.command[0], std::strerror(errno));
  std::_Exit(1);
}

Rank start(const Options& options, int rank, const std::string& address, const std::string& token) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail("pipe");
  Rank result;
  result.output = Fd(ends[0]);
  const Fd input(ends[1]);
  result.pid = ::fork();
  if (result.pid < 0) fail("fork");
  if (result.pid == 0) become(options, rank, input.get(), address, token);
  return result;
}

void print(int rank, std::string_view line) {
  std::printf("[%d] %.*s\n", rank, static_cast<int>(line.size()), line.data());
  std::fflush(stdout);
}

// Reads the output that is available from the rank. When the output has ended, waits for the
// process of the rank, which is about to exit.
void drain(Rank& rank, int number) {
  std::array<char, 4096> buffer{};
  const ssize_t n = ::read(rank.output.get(), buffer.data(), buffer.size());
  if (n < 0 && errno == EINTR) return;
  if (n > 0) {
    rank.line.append(buffer.data(), static_cast<std::size_t>(n));
    for (std::size_t end; (end = rank.line.find('\n')) != std::string::npos;) {
      print(number, std::string_view(rank.line).substr(0, end));
      rank.line.erase(0, end + 1);
    }
    return;
  }
  if (!rank.line.empty()) print(number, rank.line);
  rank.output.reset();
  while (::waitpid(rank.pid, &rank.status, 0) < 0 && errno == EINTR) {
  }
  rank.running = false;
}

// Returns true if `stopped` is the only rank that has not ended, and it has stopped.
bool only_stopped_left(const std::vector<Rank>& ranks, int stopped) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].running != (static_cast<int>(i) == stopped)) return false;
  }
  siginfo_t info{};
  const auto pid = static_cast<id_t>(ranks[static_cast<std::size_t>(stopped)].pid);
  return ::waitid(P_PID, pid, &info, WSTOPPED | WNOWAIT | WNOHANG) == 0 && info.si_pid != 0;
}

// Forwards output until all ranks have ended. Kills the rank `stopped` when it is the only rank
// left. Returns false if ranks are still running at the deadline.
bool watch(std::vector<Rank>& ranks, int stopped, Clock::time_point deadline) {
  for (;;) {
    std::vector<pollfd> descriptors;
    std::vector<int> numbers;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (!ranks[i].running) continue;
      descriptors.push_back({ranks[i].output.get(), POLLIN, 0});
      numbers.push_back(static_cast<int>(i));
    }
    if (descriptors.empty()) return true;
    if (stopped >= 0 && only_stopped_left(ranks, stopped)) {
      ::kill(ranks[static_cast<std::size_t>(stopped)].pid, SIGKILL);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    // A rank that stops does not wake poll(), so the loop checks for it every 100 ms.
    const auto longest = stopped >= 0 ? std::chrono::milliseconds(100) : left;
    ::poll(descriptors.data(), descriptors.size(),
           static_cast<int>(std::min(left, longest).count()));
    for (std::size_t i = 0; i < descriptors.size(); ++i) {
      if (descriptors[i].revents == 0) continue;
      drain(ranks[static_cast<std::size_t>(numbers[i])], numbers[i]);
    }
  }
}

void kill_rest(std::vector<Rank>& ranks) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (!ranks[i].running) continue;
    std::printf("run_ranks: rank %zu (process %d) is still running, killed\n", i, ranks[i].pid);
    ::kill(ranks[i].pid, SIGKILL);
    ::waitpid(ranks[i].pid, &ranks[i].status, 0);
    ranks[i].running = false;
  }
}

int exit_code(const Rank& rank, int number, const Options& options) {
  const int signal = WIFSIGNALED(rank.status) ? WTERMSIG(rank.status) : 0;
  if (number == options.killed || number == options.stopped) {
    if (signal == SIGKILL) return 0;
    std::printf("run_ranks: rank %d should have died of SIGKILL and did not\n", number);
    return 1;
  }
  if (signal == 0) return WEXITSTATUS(rank.status);
  std::printf("run_ranks: rank %d died of signal %d (%s)\n", number, signal, ::strsignal(signal));
  return signalled + signal;
}

int run(const Options& options) {
  const atoll_test::ReservedPort port;
  const std::string token = random_token();
  const auto deadline = Clock::now() + options.timeout;
  std::vector<Rank> ranks;
  for (int i = 0; i < options.ranks; ++i) ranks.push_back(start(options, i, port.address(), token));
  if (!watch(ranks, options.stopped, deadline)) {
    std::printf("run_ranks: not finished after %lld s\n",
                static_cast<long long>(options.timeout.count()));
    kill_rest(ranks);
    return timed_out;
  }
  int worst = 0;
  for (int i = 0; i < options.ranks; ++i) {
    const int code = exit_code(ranks[static_cast<std::size_t>(i)], i, options);
    const bool worse =
        worst == 0 || (worst == skipped && code != 0) || (code != skipped && code > worst);
    if (worse) worst = code;
  }
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "run_ranks: %s\n", error.what());
    return 2;
  }
}
