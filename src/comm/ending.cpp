// How a group ends on all its ranks with one error: by an abort or a failure.
#include <chrono>
#include <thread>

#include "comm/backend_communicator.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/terminal_safe.hpp"
#include "flight/flight.hpp"
#include "store/store.hpp"
#include "world/introduction.hpp"

namespace atoll_v1::atoll {
namespace {

// Longest time that a rank which has failed waits until the store names the first error.
constexpr std::chrono::seconds announce_patience{2};

}  // namespace

void BackendCommunicator::abort(std::string_view reason) {
  const std::string why = one_line(reason);
  const Error error = make_error(ErrorCode::aborted, "communicator {} was aborted by rank {}: {}",
                                 name_, world().rank(), why.empty() ? "without a reason" : why);
  try {
    WorldInternals::store(world()).announce(end_name(), encode(error), {});
  } catch (const std::exception& problem) {
    if (!world().failure()) {
      log::error("communicator {}: cannot tell the other ranks about abort(): {}", name_,
                 problem.what());
    }
  }
  end(error, {}, true);
}

void BackendCommunicator::announced(const Error& why) {
  std::vector<std::weak_ptr<BackendCommunicator>> parts;
  {
    const std::lock_guard lock(ending_);
    if (std::exchange(may_be_replaced_, false)) announced_ = why;
    parts = parts_;
  }
  for (const auto& entry : parts) {
    const auto part = entry.lock();
    if (!part) continue;
    const std::lock_guard lock(part->ending_);
    if (std::exchange(part->may_be_replaced_, false)) part->announced_ = why;
  }
  end(why);
}

// Marks all groups as ended before the first backend aborts: a stream that fails then drops
// operations of the other groups, and operation_dropped() must know that they have ended.
void BackendCommunicator::end(const Error& why, std::chrono::steady_clock::time_point deadline,
                              bool may_be_replaced) {
  if (!mark(why, may_be_replaced)) return;
  std::vector<std::shared_ptr<BackendCommunicator>> parts;
  bool is_open = false;
  {
    const std::lock_guard lock(ending_);
    for (const auto& part : parts_) parts.push_back(part.lock());
    is_open = is_open_;
  }
  std::erase_if(parts,
                [&](const auto& part) { return !part || !part->mark(why, may_be_replaced); });
  const auto is_complete = [](const auto& track) { return track->completed >= track->enqueued; };
  while (is_open && std::chrono::steady_clock::now() < deadline) {
    if (is_complete(track_) &&
        std::ranges::all_of(parts, is_complete, [](const auto& part) { return part->track_; })) {
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!fails_job() && is_failure(why)) flight_->fail(why);
  store::Store& store = WorldInternals::store(world());
  store.interrupt(id_ + "/");  // ends get() of a backend that is still opening
  // Ends the exchanges of ranks that choose a backend, or that allocate or register memory.
  store.interrupt(store::titled("", id_ + "/"));
  stop();
  for (const auto& part : parts) part->stop();
}

bool BackendCommunicator::mark(const Error& why, bool may_be_replaced) {
  const std::lock_guard lock(ending_);
  if (ended_by_) return false;
  ended_by_ = why;
  may_be_replaced_ = may_be_replaced;
  has_ended_ = true;
  return true;
}

void BackendCommunicator::stop() {
  {
    const std::lock_guard lock(ending_);
    if (!is_open_) return;  // opened() calls stop() later
  }
  if (watchdog_) {
    watchdog_->await_finished();
    watchdog_->fail(*ended());
  }
  plugin_->table.abort(comm_);
}

void BackendCommunicator::adopt(const std::vector<std::shared_ptr<BackendCommunicator>>& parts) {
  for (const auto& part : parts) {
    part->calling_ = calling_;
    const std::lock_guard lock(part->ending_);
    part->whole_ = weak_from_this();
  }
  std::optional<Error> why;
  {
    const std::lock_guard lock(ending_);
    parts_.insert(parts_.end(), parts.begin(), parts.end());
    why = announced_ ? announced_ : ended_by_;
  }
  if (!why) return;
  for (const auto& part : parts) part->end(*why);
}

std::optional<Error> BackendCommunicator::ended() const {
  const std::lock_guard lock(ending_);
  return announced_ ? announced_ : ended_by_;
}

void BackendCommunicator::check_ended() const {
  if (has_ended_) throw Error(*ended());
}

void BackendCommunicator::await_cause() const {
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (!world().failure() && !has_ended_ && std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Error BackendCommunicator::fail_all(const Error& own) noexcept {
  if (fails_job()) {
    world_.fail(own.what());  // has no effect if the World has already failed
    return own;
  }
  std::shared_ptr<BackendCommunicator> whole;
  {
    const std::lock_guard lock(ending_);
    whole = whole_.lock();
  }
  if (whole) return whole->fail_all(own);
  Error first = own;
  try {
    first = decode_error(
        WorldInternals::store(world()).announce(end_name(), encode(own), announce_patience));
  } catch (const std::exception& problem) {
    log::error("communicator {}: cannot tell the other ranks about a failure: {}", name_,
               problem.what());
  }
  end(first);
  return *ended();
}

}  // namespace atoll_v1::atoll
