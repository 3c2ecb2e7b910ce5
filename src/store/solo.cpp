#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/log.hpp"
#include "store/client.hpp"

namespace atoll_v1::atoll::store {
namespace {

using std::chrono::milliseconds;

class SoloStore final : public Store {
 public:
  SoloStore(std::shared_ptr<Failure> failure, std::size_t size)
      : failure_(std::move(failure)), size_(size) {}

  void put(std::string_view key, std::string_view value, milliseconds) override {
    failure_->check();
    {
      const std::lock_guard lock(mutex_);
      values_.insert_or_assign(std::string(key), std::string(value));
    }
    changed_.notify_all();
  }

  std::vector<std::string> get_all(std::span<const std::string> keys,
                                   milliseconds timeout) override {
    // A larger timeout would overflow the clock.
    timeout = std::min<milliseconds>(timeout, std::chrono::hours(24 * 365));
    std::vector<std::string> result;
    std::unique_lock lock(mutex_);
    for (const std::string& key : keys) {
      const bool ready = changed_.wait_for(
          lock, timeout, [&] { return failure_->get() || values_.contains(key); });
      failure_->check();
      require(ready, ErrorCode::timeout, "rank 0: no rank put key \"{}\" within {} ms", key,
              timeout.count());
      result.push_back(values_.find(key)->second);
    }
    return result;
  }

  void release(std::string_view prefix, std::span<const int>) override {
    failure_->check();
    const std::lock_guard lock(mutex_);
    const auto first = values_.lower_bound(prefix);
    auto last = first;
    while (last != values_.end() && last->first.starts_with(prefix)) ++last;
    values_.erase(first, last);
  }

  std::vector<std::string> exchange(std::string_view, std::string_view mine,
                                    std::chrono::milliseconds,
                                    std::span<const int> ranks) override {
    failure_->check();
    return std::vector<std::string>(ranks.empty() ? size_ : ranks.size(), std::string(mine));
  }

  std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                    std::chrono::milliseconds timeout, std::span<const int> ranks,
                                    const std::stop_token&, std::string_view) override {
    return exchange(key, mine, timeout, ranks);
  }

  void interrupt(std::string_view) override {}  // an exchange of one rank never waits

  std::vector<Answered> ask(std::string_view name, std::string_view detail, milliseconds) override {
    failure_->check();
    const std::lock_guard lock(mutex_);
    return std::vector<Answered>(
        size_, {Answered::How::answered, answerer_ ? answerer_(name, detail) : std::string()});
  }

  std::string announce(std::string_view name, std::string_view value, milliseconds) override {
    failure_->check();
    const std::lock_guard lock(mutex_);
    const auto [place, is_new] = values_.try_emplace(std::string(name), value);
    if (is_new && answerer_) answerer_(name, value);
    return place->second;
  }

  void answer_with(Answerer answerer) override {
    const std::lock_guard lock(mutex_);
    answerer_ = std::move(answerer);
  }

  void fail(std::string_view reason) noexcept override {
    try {
      if (!failure_->record(Error(ErrorCode::aborted, fmt::format("rank 0: {}", reason)))) return;
      {
        const std::lock_guard lock(
            mutex_);  // prevents a wake-up between a get()'s check and its wait
      }
      changed_.notify_all();
      failure_->announce();
    } catch (const std::exception& problem) {
      log::error("cannot record the failure \"{}\": {}", reason, problem.what());
    }
  }

  void farewell(bool) noexcept override {}
  void end(const Error& why) override {
    if (failure_->record(why)) failure_->announce();
  }

 private:
  std::shared_ptr<Failure> failure_;
  std::size_t size_;
  std::mutex mutex_;  // guards all members below
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
  Answerer answerer_;
};

}  // namespace

std::unique_ptr<Store> make_solo_store(std::shared_ptr<Failure> failure, int size) {
  return std::make_unique<SoloStore>(std::move(failure), static_cast<std::size_t>(size));
}

}  // namespace atoll_v1::atoll::store
