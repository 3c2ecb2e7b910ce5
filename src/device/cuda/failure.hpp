// Records the failures of the host functions of a CUDA stream, and follows those of the streams
// that it waits for. A GPU knows no exceptions: after a failure, later kernels of the stream still
// run, but host functions are skipped, and synchronizing throws the error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "core/log.hpp"
#include "device/stream_failure.hpp"

namespace atoll_v1::atoll::cuda {

// A position is the number of an operation on its stream, counted from 1. A moment is the time at
// which work was enqueued (StreamFailure::now()): an error that the program knew then does not
// affect the work.
class Failure {
 public:
  explicit Failure(std::string stream) : stream_(std::move(stream)) {}

  // Records an error of the operation at `position`, unless an earlier position has failed: later
  // errors are consequences of the first one, so they are not reported.
  void fail(std::uint64_t position, const std::exception_ptr& error) {
    fail(position, std::make_shared<StreamFailure>(error, stream_));
  }
  void fail(std::uint64_t position, const std::shared_ptr<StreamFailure>& error) {
    const std::lock_guard lock(mutex_);
    for (const Failed& one : failed_) {
      if (one.error == error || one.error->was_observed(StreamFailure::now())) continue;
      if (one.position <= position) return error->observe();
      one.error->observe();
    }
    failed_.push_back({error, position});
  }

  // Records that this stream, at `position`, waits for position `theirs` of another stream. From
  // there on, earlier errors of the other stream count as errors of this stream. Later waits for
  // the same stream may name a position before or after `theirs`: the largest one counts, from the
  // `position` of the first wait on.
  void follow(std::uint64_t position, const std::shared_ptr<Failure>& other, std::uint64_t theirs) {
    if (other.get() == this) return;
    // Destroyed after the lock is released, because an unobserved error fails the World.
    std::vector<Source> gone;
    const std::lock_guard lock(mutex_);
    for (Source& source : sources_) {
      if (source.failure != other) continue;
      source.theirs = std::max(source.theirs, theirs);
      return;
    }
    // Removes streams that are gone and have not failed. Nothing else refers to them, so they
    // cannot fail.
    const auto first_gone =
        std::ranges::partition(sources_, [](const Source& source) {
          return source.failure.use_count() > 1 || source.failure->before(source.theirs, 0);
        }).begin();
    std::move(first_gone, sources_.end(), std::back_inserter(gone));
    sources_.erase(first_gone, sources_.end());
    sources_.push_back({other, position, theirs});
  }

  // Returns an error that affects the operation at `position`, whose work was enqueued at `moment`;
  // null if there is none so far.
  std::shared_ptr<StreamFailure> before(std::uint64_t position, std::uint64_t moment) const {
    // The search does not return to this stream: it covers all positions up to `position`, and
    // later positions cannot have caused the error.
    std::map<const Failure*, std::uint64_t> seen{{this, UINT64_MAX}};
    return search(position, moment, seen);
  }

  // Throws the error that before() returns, if any, and records that the program knows it.
  void check(std::uint64_t position, std::uint64_t moment) const {
    const auto error = before(position, moment);
    if (!error) return;
    if (!IgnoringErrors::on_this_thread()) error->observe();
    std::rethrow_exception(error->error());
  }

  // Call it when all work of the stream has ended. Keeps the errors of other streams and
  // releases these streams, because streams that wait for each other would keep each other alive.
  void close() noexcept {
    try {
      std::unique_lock lock(mutex_);
      const std::vector<Source> sources = sources_;
      lock.unlock();
      for (const Source& source : sources) {
        if (auto error = source.failure->before(source.theirs, 0)) {
          const std::lock_guard own(mutex_);
          failed_.push_back({std::move(error), source.position});  // the other stream reports it
        }
      }
    } catch (const std::bad_alloc&) {
      log::error("cuda: no memory for the errors of the streams that a stream has waited for");
    }
    std::vector<Source> gone;  // destroyed after the lock is released
    const std::lock_guard lock(mutex_);
    gone.swap(sources_);  // last, so that searches on other threads find the errors at any moment
  }

 private:
  struct Failed {
    std::shared_ptr<StreamFailure> error;
    std::uint64_t position;
  };
  struct Source {
    std::shared_ptr<Failure> failure;
    std::uint64_t position, theirs;
  };

  // `seen` has the largest position that was searched on each stream. Streams may wait for each
  // other in a cycle, and several ways may lead to different positions of a stream.
  std::shared_ptr<StreamFailure> search(std::uint64_t position, std::uint64_t moment,
                                        std::map<const Failure*, std::uint64_t>& seen) const {
    std::vector<Source> sources;
    {
      const std::lock_guard lock(mutex_);
      for (const Failed& one : failed_)
        if (one.position <= position && !one.error->was_observed(moment)) return one.error;
      sources = sources_;
    }
    for (const Source& source : sources) {
      if (source.position > position) continue;
      std::uint64_t& searched = seen[source.failure.get()];
      if (searched >= source.theirs) continue;
      searched = source.theirs;
      if (auto error = source.failure->search(source.theirs, moment, seen)) return error;
    }
    return nullptr;
  }

  mutable std::mutex mutex_;
  const std::string stream_;
  std::vector<Failed> failed_;
  std::vector<Source> sources_;
};

}  // namespace atoll_v1::atoll::cuda
