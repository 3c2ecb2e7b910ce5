// Fails the job of a rank whose launcher has ended, and ends the rank if it owns its process.
// Launchers end their ranks when they end in good order; a launcher that is killed cannot, and its
// ranks would otherwise run on.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "core/socket.hpp"

namespace atoll_v1::atoll {

// Which process a rank watches if none of its ancestors has the name of a launcher.
enum class WithoutLauncher {
  watch_nothing,
  watch_parent,
};

struct ParentProcess {
  pid_t pid = 0;
  pid_t parent = 0;
  std::string name;
  std::uint64_t start = 0;  // start time in clock ticks; with the pid, it identifies the process
};

// Finds the nearest ancestor with the name of a launcher (mpirun, orted, slurmstepd, ...). Returns
// nothing if there is nothing to watch, for example because the ancestors are in another PID
// namespace.
std::optional<ParentProcess> find_parent(WithoutLauncher otherwise);

// Waits on its own thread until `process` has ended, which may be before this object exists. Then
// calls `report` with a sentence that says so. If `ends_process` is true and the destructor does
// not run within 5 s after that call, ends this process with status 1.
class ParentWatch {
 public:
  using Report = std::function<void(std::string_view reason)>;

  ParentWatch(ParentProcess process, bool ends_process, Report report);
  ~ParentWatch();
  ParentWatch(const ParentWatch&) = delete;
  ParentWatch& operator=(const ParentWatch&) = delete;

 private:
  bool await_end() const;
  bool is_stopped_by(net::Clock::time_point end) const;
  void run();

  const ParentProcess process_;
  const bool ends_process_;
  const Report report_;
  std::promise<void> stop_;  // set when the destructor runs
  const std::future<void> stopped_ = stop_.get_future();
  net::Fd wake_;    // eventfd that ends poll() when the destructor runs
  net::Fd handle_;  // pidfd of the process; empty on kernels without pidfd_open
  std::jthread thread_;
};

}  // namespace atoll_v1::atoll
