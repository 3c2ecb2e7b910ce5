#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/log.hpp"
#include "core/store.hpp"

namespace atoll_v1::atoll::store {

void SoloStore::put(std::string_view key, std::string_view value) {
  failure_->check();
  {
    const std::lock_guard lock(mutex_);
    values_.insert_or_assign(std::string(key), std::string(value));
  }
  changed_.notify_all();
}

std::string SoloStore::get(std::string_view key, std::chrono::milliseconds timeout) {
  // A larger one would overflow the clock.
  timeout = std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
  std::unique_lock lock(mutex_);
  const bool ready =
      changed_.wait_for(lock, timeout, [&] { return failure_->get() || values_.contains(key); });
  failure_->check();
  if (!ready) {
    throw Error(ErrorCode::timeout,
                fmt::format("rank 0: nobody put key \"{}\" within {} ms", key, timeout.count()));
  }
  return values_.find(key)->second;
}

std::vector<std::string> SoloStore::exchange(std::string_view, std::string_view mine,
                                             std::chrono::milliseconds) {
  failure_->check();
  return {std::string(mine)};
}

std::vector<Answered> SoloStore::ask(std::string_view question, std::chrono::milliseconds) {
  failure_->check();
  const std::lock_guard lock(mutex_);
  return {{Answered::How::answered, answerer_ ? answerer_(question) : std::string()}};
}

void SoloStore::answer_with(Answerer answerer) {
  const std::lock_guard lock(mutex_);
  answerer_ = std::move(answerer);
}

void SoloStore::fail(std::string_view reason) noexcept {
  try {
    if (!failure_->record(Error(ErrorCode::aborted, fmt::format("rank 0: {}", reason)))) return;
    {
      const std::lock_guard lock(mutex_);  // nobody is between its look at failure_ and its wait
    }
    changed_.notify_all();
    failure_->announce();
  } catch (const std::exception& problem) {
    log::error("cannot record the failure \"{}\": {}", reason, problem.what());
  }
}

}  // namespace atoll_v1::atoll::store
