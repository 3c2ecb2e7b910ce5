#include "core/thread.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include "core/control_groups.hpp"

namespace atoll_v1::atoll {

std::string thread_limit(const std::filesystem::path& root) {
  for (const auto& group : control_groups("pids", root)) {
    const auto most = number_of(group / "pids.max"), now = number_of(group / "pids.current");
    if (!most || !now || *now < *most) continue;
    return fmt::format(
        "the control group of this process allows {} processes and threads: raise {}", *most,
        (group / "pids.max").string());
  }
  rlimit limit{};
  const bool limits_user =
      ::geteuid() != 0 && ::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  if (limits_user) {
    return fmt::format(
        "the user of this process may have {} processes and threads: raise `ulimit -u`",
        limit.rlim_cur);
  }
  return "raise `ulimit -v`, kernel.threads-max or kernel.pid_max";
}

}  // namespace atoll_v1::atoll
