// Groups whose members change. Each call of reconfigure() makes a new World of the listed
// processes; they meet in the store of the group.
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <array>
#include <random>

#include "backend.hpp"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

namespace atoll_torch {
namespace {

// "host.pid.random": unique, and readable in errors.
std::string new_handle() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return std::string(host.data()) + "." + std::to_string(::getpid()) + "." +
         std::to_string(std::random_device()());
}

// Returns the handles in the order of their ranks. A set has no order, so its ranks are sorted.
std::vector<std::string> members_of(const c10d::ReconfigureOptions& options) {
  if (const auto* list = std::get_if<std::vector<std::string>>(&options.handles)) return *list;
  const auto& set = std::get<std::unordered_set<std::string>>(options.handles);
  std::vector<std::string> members(set.begin(), set.end());
  std::ranges::sort(members);
  return members;
}

}  // namespace

c10d::ReconfigureHandle Backend::get_reconfigure_handle() const {
  const std::lock_guard lock(mutex_);
  if (handle_.empty()) handle_ = new_handle();
  return handle_;
}

Backend::WorkPtr Backend::reconfigure(const c10d::ReconfigureOptions& options) {
  const std::vector<std::string> members = members_of(options);
  const auto own = std::ranges::find(members, get_reconfigure_handle());
  TORCH_CHECK(own != members.end(), "atoll: reconfigure: the handles do not contain that of this ",
              "process, ", get_reconfigure_handle());
  TORCH_CHECK(used_.insert(options.uuid).second, "atoll: reconfigure: uuid ", options.uuid,
              " was already used; each call needs a new one");
  release("the process group gets new members");
  GroupOptions next = group_;
  next.rank = static_cast<int>(own - members.begin());
  next.size = static_cast<int>(members.size());
  next.global_ranks.clear();  // the World has no other ranks than these
  next.store = c10::make_intrusive<c10d::PrefixStore>("reconfigure/" + std::to_string(options.uuid),
                                                      group_.store);
  next.join_timeout = options.timeout.value_or(group_.timeout);
  auto job = Job::open(next, is_default_);
  {
    const std::lock_guard lock(mutex_);
    job_ = std::move(job);
    job_->begin_use();
    next.store = group_.store;
    group_ = std::move(next);
    rank_ = group_.rank;
    size_ = group_.size;
    is_revoked_ = false;
    monitored_barriers_ = 0;
  }
  return barrier({});
}

}  // namespace atoll_torch

#endif
