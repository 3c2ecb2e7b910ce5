// The barrier that names the ranks that do not come. Its words are those of PyTorch, for programs
// that look for them. It uses only the store of c10d, so it works while operations of the group
// hang.
#include "backend.hpp"

namespace atoll_torch {
namespace {

using c10d::Store;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

bool has_key(Store& store, const std::string& key, Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  if (left.count() <= 0) return store.check({key});
  try {
    store.wait({key}, left);
    return true;
  } catch (const c10::Error&) {  // kinds of stores report a timeout with different types
    return store.check({key});
  }
}

std::string absent(Store& store, const std::string& key, int size, bool wait_all_ranks,
                   milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  std::string ranks;
  for (int rank = 1; rank < size; ++rank) {
    if (has_key(store, key + std::to_string(rank), deadline)) continue;
    if (!wait_all_ranks) return "Rank " + std::to_string(rank);
    ranks += (ranks.empty() ? "Ranks " : ", ") + std::to_string(rank);
  }
  return ranks;
}

}  // namespace

void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const milliseconds timeout = options.timeout.count() >= 0 ? options.timeout : group_.timeout;
  const std::string in_time = " in " + std::to_string(timeout.count()) + " ms";
  std::string world;
  {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(job_ != nullptr, "atoll: the process group has no members");
    world = job_->id();
  }
  // The store may have keys of earlier groups.
  const std::string key = "atoll/monitored_barrier/" + world + "/" + group_.name + "/" +
                          std::to_string(monitored_barriers_++) + "/";
  const std::string all = key + "all";
  Store& store = *group_.store;
  if (rank_ == 0) {
    const std::string failed = absent(store, key, size_, wait_all_ranks, timeout);
    store.set(all, failed);
    if (failed.empty()) return;
    const bool is_late = timeout.count() == 0;  // rank 0 has not waited for anybody
    C10_THROW_ERROR(DistBackendError, is_late
                                          ? "Rank 0 timed out in monitoredBarrier" + in_time
                                          : failed + " failed to pass monitoredBarrier" + in_time);
  }
  store.set(key + std::to_string(rank_), std::string("here"));
  const bool is_decided = has_key(store, all, Clock::now() + timeout);
  const std::string failed = is_decided ? store.get_to_str(all) : "rank 0";
  if (failed.empty()) return;
  C10_THROW_ERROR(DistBackendError,
                  "Rank " + std::to_string(rank_) +
                      " successfully reached monitoredBarrier, but received errors while waiting "
                      "for send/recv from rank 0: " +
                      failed + " did not come" + in_time);
}

}  // namespace atoll_torch
