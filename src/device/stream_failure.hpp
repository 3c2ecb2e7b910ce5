// An error of a stream, which the stream, its events and the streams that wait for them share.
//
// Work is dropped if it is enqueued before a call has thrown or returned the error to the program.
// Work that is enqueued after that call runs.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "core/errors.hpp"
#include "world/process_failure.hpp"

namespace atoll_v1::atoll {

class StreamFailure {
 public:
  StreamFailure(std::exception_ptr error, std::string stream)
      : error_(std::move(error)), stream_(std::move(stream)) {}
  StreamFailure(const StreamFailure&) = delete;
  StreamFailure& operator=(const StreamFailure&) = delete;
  // Reports the error if no call has thrown it, because no later call can.
  ~StreamFailure() {
    if (observed_at_ == 0) report();
  }

  const std::exception_ptr& error() const noexcept { return error_; }
  // Call this when a call throws or returns the error to the program.
  void observe() noexcept {
    std::uint64_t never = 0;
    observed_at_.compare_exchange_strong(never, ++moments);
  }
  // Returns the time of a logical clock. Work stores the time at which it was enqueued.
  static std::uint64_t now() noexcept { return moments.load(); }
  // Returns true if the program had received the error at this logical time.
  bool was_observed(std::uint64_t moment) const noexcept {
    const std::uint64_t at = observed_at_;
    return at != 0 && at <= moment;
  }

 private:
  void report() const noexcept {
    try {
      std::rethrow_exception(error_);
    } catch (const Error& error) {
      // Does not report an abort: the program knows the failure or the call that caused it.
      if (error.code() != ErrorCode::aborted) report(error.what());
    } catch (const std::exception& error) {
      report(text_of(error));
    } catch (...) {
      report(foreign_exception);
    }
  }
  void report(const char* why) const noexcept {
    try {
      report_unobserved(fmt::format(
          "stream {}: its work failed, and the stream was destroyed before any call had thrown the "
          "error (call synchronize() before): {}",
          stream_, why));
    } catch (const std::exception&) {
      report_unobserved(why);  // no memory for the longer text
    }
  }

  // The logical clock: advances whenever the program receives the error of any stream.
  static inline std::atomic<std::uint64_t> moments{0};

  const std::exception_ptr error_;
  const std::string stream_;
  std::atomic<std::uint64_t> observed_at_{0};  // 0: no call has thrown or returned the error
};

}  // namespace atoll_v1::atoll
