#include "core/failure.hpp"

#include <exception>
#include <utility>

#include "core/errors.hpp"
#include "core/log.hpp"

namespace atoll_v1::atoll {

bool Failure::record(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (error_) return false;
  error_ = error;
  failed_ = true;
  return true;
}

void Failure::announce() {
  std::unique_lock lock(mutex_);
  const Error error = error_.value();
  // A callback runs with the mutex unlocked and may unsubscribe other callbacks. Therefore the next
  // callback is searched for in the map each time.
  for (std::uint64_t last = 0;;) {
    const auto next = subscribers_.upper_bound(last);
    if (next == subscribers_.end()) return;
    last = next->first;
    const std::shared_ptr<Subscriber> subscriber = next->second;
    if (subscriber->callback) call(lock, *subscriber, error);
  }
}

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
  const std::uint64_t id = next_id_++;
  const auto subscriber = std::make_shared<Subscriber>();
  subscriber->callback = std::move(callback);
  if (error_) {
    // Do not add the subscriber to the map: an announcement in progress would call it again.
    const Error error = *error_;
    call(lock, *subscriber, error);
  } else {
    subscribers_.emplace(id, subscriber);
  }
  return id;
}

void Failure::unsubscribe(std::uint64_t id) {
  // `subscriber` is declared before `lock`, so that the mutex is unlocked before the callback is
  // destroyed.
  std::shared_ptr<Subscriber> subscriber;
  std::unique_lock lock(mutex_);
  const auto found = subscribers_.find(id);
  if (found == subscribers_.end()) return;
  subscriber = found->second;
  subscribers_.erase(found);
  returned_.wait(lock, [&] {
    return subscriber->runner == std::thread::id() ||
           subscriber->runner == std::this_thread::get_id();
  });
}

// The caller holds a shared_ptr to the subscriber. The subscriber therefore stays alive when its
// callback unsubscribes itself.
void Failure::call(std::unique_lock<std::mutex>& lock, Subscriber& subscriber, const Error& error) {
  Callback callback = std::exchange(subscriber.callback, nullptr);
  subscriber.runner = std::this_thread::get_id();
  const Failure* const outer = std::exchange(calling_, this);
  lock.unlock();
  try {
    callback(error);
  } catch (const std::exception& problem) {
    log::error("a callback registered with on_failure() threw: {}", text_of(problem));
  } catch (...) {
    log::error("a callback registered with on_failure() threw: {}", foreign_exception);
  }
  callback = nullptr;  // destroys the captures of the callback while the mutex is unlocked
  calling_ = outer;
  lock.lock();
  subscriber.runner = std::thread::id();
  returned_.notify_all();
}

}  // namespace atoll_v1::atoll
