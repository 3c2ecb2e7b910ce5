// Records the failures of the host functions of a CUDA stream, and follows those of the streams
// that it waits for. A GPU knows no exceptions: after a failure, later kernels of the stream still
// run, but host functions are skipped, and synchronizing throws the error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

namespace atoll_v1::atoll::cuda {

// A position is the number of an operation on its stream, counted from 1.
class Failure {
 public:
  // Keeps the error with the smallest position.
  void fail(std::uint64_t position, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (error_ && position_ <= position) return;
    error_ = std::move(error);
    position_ = position;
  }

  // Records that this stream, at `position`, waits for position `theirs` of another stream. From
  // there on, earlier errors of the other stream count as errors of this stream.
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

  // Returns an error that affects operations up to `position`; null if there is none so far.
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
    // Skips streams that were already visited, because streams may wait for each other in a cycle.
    if (std::ranges::find(seen, this) != seen.end()) return nullptr;
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
