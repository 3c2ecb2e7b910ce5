#include "core/parent.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <future>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/socket.hpp"
#include "core/thread.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::chrono::milliseconds grace{5'000};
// How often a rank checks whether the program has closed the descriptors of the watch and, on
// kernels without pidfd_open (before Linux 5.3), whether the process still exists.
constexpr std::chrono::milliseconds parent_period{1'000};
constexpr int most_ancestors = 32;

// Names as the kernel shows them, which are cut to 15 characters.
constexpr std::array<std::string_view, 13> launchers = {
    "mpirun", "mpiexec", "orterun",       "orted",           "prterun",    "prted",   "prte",
    "prun",   "srun",    "mpiexec.hydra", "hydra_pmi_proxy", "slurmstepd", "torchrun"};

struct ParentProcess {
  pid_t pid = 0;
  pid_t parent = 0;
  std::string name;
  std::uint64_t start = 0;  // start time in clock ticks; with the pid, it identifies the process
};

// Reads /proc/PID/stat, see proc(5): "PID (NAME) STATE PPID ..."; field 22 is the start time. The
// name may contain spaces and parentheses.
std::optional<ParentProcess> read_process(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto begin = text.find('(');
  const auto end = text.rfind(')');
  if (begin == std::string::npos || end == std::string::npos) return std::nullopt;
  ParentProcess result;
  result.pid = pid;
  result.name = text.substr(begin + 1, end - begin - 1);
  std::istringstream rest(text.substr(end + 1));
  char state = 0;
  rest >> state >> result.parent;
  constexpr int between = 17;  // fields 5 to 21
  std::string skipped;
  for (int i = 0; i < between; ++i) rest >> skipped;
  if (!(rest >> result.start) || state == 'Z') return std::nullopt;
  return result;
}

// A process with pid 1 outlives everything that this process could wait for.
std::optional<ParentProcess> find_process(WithoutLauncher otherwise) {
  pid_t pid = ::getppid();
  for (int i = 0; i < most_ancestors && pid > 1; ++i) {
    auto process = read_process(pid);
    if (!process) break;
    if (std::ranges::find(launchers, process->name) != launchers.end()) return process;
    pid = process->parent;
  }
  if (otherwise == WithoutLauncher::watch_nothing || ::getppid() <= 1) return std::nullopt;
  return read_process(::getppid());
}

bool is_same(const std::optional<ParentProcess>& found, const ParentProcess& wanted) {
  return found && found->start == wanted.start;
}

class ProcessWatch final : public ParentWatch {
 public:
  explicit ProcessWatch(ParentProcess process)
      : process_(std::move(process)),
        wake_(::eventfd(0, EFD_CLOEXEC)),
        handle_(static_cast<int>(::syscall(SYS_pidfd_open, process_.pid, 0))) {
    require(static_cast<bool>(wake_), ErrorCode::io,
            "no file descriptor is left to watch the launcher: raise `ulimit -n`");
    // The pid may have passed to another process since it was read.
    if (!is_same(read_process(process_.pid), process_)) handle_.reset();
  }
  ~ProcessWatch() override {
    stop_.set_value();
    const std::uint64_t one = 1;
    // The result is ignored: an eventfd accepts a write unless it is full.
    static_cast<void>(::write(wake_.get(), &one, sizeof one) == sizeof one);
  }
  void start(Report report) override {
    report_ = std::move(report);
    thread_ = start_thread([this] { run(); });
  }

 private:
  enum class Event {
    stopped,
    ended
  };

  // Waits until the process ends or the destructor runs.
  Event wait() const {
    for (;;) {
      std::array<pollfd, 2> items{{{wake_.get(), POLLIN, 0}, {handle_.get(), POLLIN, 0}}};
      ::poll(items.data(), handle_ ? 2 : 1, static_cast<int>(parent_period.count()));
      if (is_stopped_by({})) return Event::stopped;
      const bool has_event = items[0].revents != 0 || items[1].revents != 0;
      if (handle_ && !has_event) continue;
      if (!is_same(read_process(process_.pid), process_)) return Event::ended;
      // The program has closed a descriptor, and another file may have its number.
      if (has_event && is_stopped_by(net::Clock::now() + parent_period)) return Event::stopped;
    }
  }

  // Needs no descriptor, because the program may have closed them.
  bool is_stopped_by(net::Clock::time_point end) const {
    return stopped_.wait_until(end) == std::future_status::ready;
  }

  void run() {
    if (wait() == Event::stopped) return;
    // The launcher may have read this process's output, so a write can raise SIGPIPE.
    sigset_t pipe;
    ::sigemptyset(&pipe);
    ::sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    // The program may hold the locks that the report and the log need, so another thread waits for
    // them. If it cannot be started, the other ranks learn the end of this rank from the store.
    const auto end = net::Clock::now() + grace;
    std::future<void> told;
    try {
      told = std::async(std::launch::async, [this] {
        const auto reason = fmt::format("{} (process {}), which started this rank, has ended",
                                        process_.name, process_.pid);
        report_(reason);
        log::error("{}; this rank ends as well (ATOLL_PARENT=ignore lets it run on)", reason);
      });
    } catch (const std::system_error&) {
    }
    const bool is_over = is_stopped_by(end);
    if (!is_over || (told.valid() && told.wait_until(end) != std::future_status::ready))
      std::_Exit(EXIT_FAILURE);
  }

  ParentProcess process_;
  Report report_;
  std::promise<void> stop_;  // kept when the destructor runs
  std::future<void> stopped_ = stop_.get_future();
  net::Fd wake_;    // ends poll() then
  net::Fd handle_;  // pidfd of the process; empty on kernels without pidfd_open
  std::jthread thread_;
};

}  // namespace

std::unique_ptr<ParentWatch> ParentWatch::find(WithoutLauncher otherwise) {
  auto process = find_process(otherwise);
  if (!process) return nullptr;
  return std::make_unique<ProcessWatch>(std::move(*process));
}

}  // namespace atoll_v1::atoll
