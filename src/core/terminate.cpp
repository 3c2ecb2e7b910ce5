#include "core/terminate.hpp"

#include <chrono>
#include <exception>
#include <future>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "core/errors.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::chrono::seconds patience{5};

struct TerminateNotices {
  std::mutex mutex;
  std::set<const std::function<void(std::string_view)>*> callbacks;
  std::terminate_handler before = nullptr;
};

// Never destroyed, since std::terminate can run after the destructors of static objects.
TerminateNotices& terminate_notices() {
  static auto* const all = new TerminateNotices;
  return *all;
}

std::string reason() {
  try {
    if (const std::exception_ptr current = std::current_exception())
      std::rethrow_exception(current);
  } catch (const std::exception& error) {
    return std::string("ended by an exception: ") + text_of(error);
  } catch (...) {
    return std::string("ended by ") + foreign_exception;
  }
  return "ended by std::terminate";
}

void report_and_terminate() {
  auto told = std::make_shared<std::promise<void>>();
  const std::future<void> done = told->get_future();
  std::thread([told, text = reason()] {
    const std::lock_guard lock(terminate_notices().mutex);
    for (const auto* callback : terminate_notices().callbacks) (*callback)(text);
    told->set_value();
  }).detach();
  done.wait_for(patience);
  if (terminate_notices().before != nullptr) terminate_notices().before();
  std::abort();
}

}  // namespace

TerminateNotice::TerminateNotice(std::function<void(std::string_view)> callback)
    : callback_(std::move(callback)) {
  const std::lock_guard lock(terminate_notices().mutex);
  static const bool installed = [] {
    terminate_notices().before = std::set_terminate(report_and_terminate);
    return true;
  }();
  static_cast<void>(installed);
  terminate_notices().callbacks.insert(&callback_);
}

TerminateNotice::~TerminateNotice() {
  const std::lock_guard lock(terminate_notices().mutex);
  terminate_notices().callbacks.erase(&callback_);
}

}  // namespace atoll_v1::atoll
