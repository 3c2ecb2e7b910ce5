// The first error of a stream, which the stream, its events and the streams that wait for them
// share.
#pragma once

#include <fmt/core.h>

#include <atomic>
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
    if (!is_observed_) report();
  }

  const std::exception_ptr& error() const noexcept { return error_; }
  // Call this when the program gets the error.
  void observe() noexcept { is_observed_ = true; }

 private:
  void report() const noexcept {
    try {
      std::rethrow_exception(error_);
    } catch (const Error& error) {
      // The program knows the failure or the call that has aborted an operation.
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

  const std::exception_ptr error_;
  const std::string stream_;
  std::atomic<bool> is_observed_{false};
};

}  // namespace atoll_v1::atoll
