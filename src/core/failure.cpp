#include "core/failure.hpp"

#include <memory>
#include <set>
#include <utility>

namespace atoll_v1::atoll {

bool Failure::record(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (error_) return false;
  error_ = error;
  failed_ = true;
  return true;
}

void Failure::announce() { subscribers_.call(get().value()); }

std::optional<Error> Failure::get() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void Failure::check() const {
  if (!failed_.load(std::memory_order_acquire)) return;
  if (const std::optional<Error> error = get()) throw Error(*error);
}

std::uint64_t Failure::subscribe(Callback callback) {
  std::unique_lock lock(mutex_);
  if (!error_) return subscribers_.add(std::move(callback));
  // The callback is not registered, because an announcement in progress would call it again.
  const Error error = *error_;
  lock.unlock();
  subscribers_.call(callback, error);
  return 0;
}

void Departures::record(int rank, const Error& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!gone_.emplace(rank, why).second) return;
    times_.emplace(rank, std::chrono::steady_clock::now());
  }
  subscribers_.call(rank, why);
}

std::map<int, Error> Departures::all() const {
  const std::lock_guard lock(mutex_);
  return gone_;
}

std::chrono::steady_clock::time_point Departures::time_of(int rank) const {
  const std::lock_guard lock(mutex_);
  return times_.at(rank);
}

std::uint64_t Departures::subscribe(Callback callback) {
  struct Told {
    std::mutex mutex;
    std::set<int> ranks;
  };
  // Ignores the second report of a rank that leaves now, which may be in gone_ and also announced.
  const Callback once = [told = std::make_shared<Told>(), callback = std::move(callback)](
                            int rank, const Error& why) {
    {
      const std::lock_guard lock(told->mutex);
      if (!told->ranks.insert(rank).second) return;
    }
    callback(rank, why);
  };
  std::unique_lock lock(mutex_);
  const std::map<int, Error> gone = gone_;
  const std::uint64_t id = subscribers_.add(once);
  lock.unlock();
  for (const auto& [rank, why] : gone) subscribers_.call(once, rank, why);
  return id;
}

}  // namespace atoll_v1::atoll
