#include "world/parent.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/errors.hpp"
#include "core/limits.hpp"
#include "core/log.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::chrono::milliseconds grace{5'000};
// Period in which a rank checks whether the process still exists, if the kernel cannot report the
// end of the process.
constexpr std::chrono::milliseconds parent_period{1'000};
constexpr int most_ancestors = 32;

// Names as the kernel shows them, which are cut to 15 characters.
constexpr std::array<std::string_view, 13> launchers = {
    "mpirun", "mpiexec", "orterun",       "orted",           "prterun",    "prted",   "prte",
    "prun",   "srun",    "mpiexec.hydra", "hydra_pmi_proxy", "slurmstepd", "torchrun"};

// Reads /proc/PID/stat, see proc(5): "PID (NAME) STATE PPID ..."; field 22 is the start time. The
// name may contain spaces and parentheses.
std::optional<ParentProcess> read_process(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  // Reading fails if the process ends now. An istreambuf_iterator would throw then.
  std::getline(file, text, '\0');
  const auto begin = text.find('(');
  const auto end = text.rfind(')');
  if (begin == std::string::npos || end == std::string::npos) return std::nullopt;
  ParentProcess result;
  result.pid = pid;
  result.name = text.substr(begin + 1, end - begin - 1);
  std::istringstream rest(text.substr(end + 1));
  char state = 0;
  rest >> state >> result.parent;
  constexpr int between = 17;  // number of the fields from 5 to 21
  std::string skipped;
  for (int i = 0; i < between; ++i) rest >> skipped;
  if (!(rest >> result.start) || state == 'Z') return std::nullopt;
  return result;
}

bool is_same(const std::optional<ParentProcess>& found, const ParentProcess& wanted) {
  return found && found->start == wanted.start;
}

}  // namespace

// Never returns process 1, because it outlives this process.
std::optional<ParentProcess> find_parent(WithoutLauncher otherwise) {
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

ParentWatch::ParentWatch(ParentProcess process, bool ends_process, Report report)
    : process_(std::move(process)),
      ends_process_(ends_process),
      report_(std::move(report)),
      wake_(::eventfd(0, EFD_CLOEXEC)),
      handle_(static_cast<int>(::syscall(SYS_pidfd_open, process_.pid, 0))) {
  require(static_cast<bool>(wake_), ErrorCode::io,
          "no file descriptor is left to watch the launcher: raise `ulimit -n`");
  // If another process has got the pid since it was read, the pidfd is that of the wrong process.
  if (!is_same(read_process(process_.pid), process_)) handle_.reset();
  thread_ = start_thread([this] { run(); });
}

bool ParentWatch::is_stopped_by(net::Clock::time_point end) const {
  return stopped_.wait_until(end) == std::future_status::ready;
}

ParentWatch::~ParentWatch() {
  stop_.set_value();
  const std::uint64_t one = 1;
  // The result is ignored: an eventfd accepts a write unless it is full.
  static_cast<void>(::write(wake_.get(), &one, sizeof one) == sizeof one);
}

// Returns true as soon as the process has ended, and false when the destructor runs.
bool ParentWatch::await_end() const {
  if (!is_same(read_process(process_.pid), process_))
    return true;  // it ended before the watch began
  for (;;) {
    std::array<pollfd, 2> items{{{wake_.get(), POLLIN, 0}, {handle_.get(), POLLIN, 0}}};
    ::poll(items.data(), handle_ ? 2 : 1, static_cast<int>(parent_period.count()));
    if (is_stopped_by({})) return false;
    const bool has_event = items[0].revents != 0 || items[1].revents != 0;
    if (handle_ && !has_event) continue;
    if (!is_same(read_process(process_.pid), process_)) return true;
    // The event has no cause: the program has closed a descriptor, and another file may have its
    // number. Waits for a period here, because poll() would return at once again and again.
    if (has_event && is_stopped_by(net::Clock::now() + parent_period)) return false;
  }
}

void ParentWatch::run() {
  if (!await_end()) return;
  // If the launcher read the output of this process, a write can raise SIGPIPE, so it is blocked.
  sigset_t pipe;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  // The program may hold the locks that the report and the log need, so another thread waits for
  // them. If it cannot be started, the other ranks learn the end of this rank from the store.
  const auto end = net::Clock::now() + grace;
  std::future<void> reported;
  try {
    reported = std::async(std::launch::async, [this] {
      const auto reason = fmt::format("{} (process {}), which started this rank, has ended",
                                      process_.name, process_.pid);
      report_(reason);
      log::error("{}{} (ATOLL_PARENT=ignore lets it run on)", reason,
                 ends_process_ ? "; this rank ends as well" : "; its World has failed");
    });
  } catch (const std::system_error&) {
  }
  const bool is_over = is_stopped_by(end);
  if (!ends_process_) return;
  if (!is_over || (reported.valid() && reported.wait_until(end) != std::future_status::ready))
    std::_Exit(EXIT_FAILURE);
}

}  // namespace atoll_v1::atoll
