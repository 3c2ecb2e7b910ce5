// What went wrong in the host functions of a stream, and of the streams that it waits for. The GPU
// does not know of exceptions: kernels behind one that failed still run, but no host function does,
// and whoever synchronizes is told.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

namespace atoll_v1::atoll::cuda {

// Positions are numbers of what was enqueued on a stream, from 1.
class Failure {
 public:
  // The one nearest to the front stays.
  void fail(std::uint64_t position, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (error_ && position_ <= position) return;
    error_ = std::move(error);
    position_ = position;
  }

  // From `position` of this stream on, whatever fails in the other one up to `theirs` counts here.
  void follow(std::uint64_t position, const std::shared_ptr<Failure>& other, std::uint64_t theirs) {
    if (other.get() == this) return;
    const std::lock_guard lock(mutex_);
    for (Source& source : sources_) {
      if (source.failure.lock() == other) {
        source.theirs = theirs;
        return;
      }
    }
    std::erase_if(sources_, [](const Source& source) { return source.failure.expired(); });
    sources_.push_back({other, position, theirs});
  }

  // The error of what was enqueued up to `position`; NULL: none so far.
  std::exception_ptr before(std::uint64_t position) const {
    std::vector<const Failure*> seen;
    return before(position, seen);
  }

 private:
  struct Source {
    std::weak_ptr<Failure> failure;
    std::uint64_t position, theirs;
  };

  std::exception_ptr before(std::uint64_t position, std::vector<const Failure*>& seen) const {
    for (const Failure* one : seen) {
      if (one == this) return nullptr;  // streams that wait for each other in turn
    }
    seen.push_back(this);
    std::vector<Source> sources;
    {
      const std::lock_guard lock(mutex_);
      if (error_ && position_ <= position) return error_;
      sources = sources_;
    }
    for (const Source& source : sources) {
      const auto other = source.failure.lock();
      if (!other || source.position > position) continue;
      if (auto error = other->before(source.theirs, seen)) return error;
    }
    return nullptr;
  }

  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::uint64_t position_ = 0;
  std::vector<Source> sources_;
};

}  // namespace atoll_v1::atoll::cuda
