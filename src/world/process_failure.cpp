#include "world/process_failure.hpp"

#include <chrono>
#include <exception>
#include <future>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "core/errors.hpp"
#include "core/log.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::chrono::seconds terminate_patience{5};

struct ProcessFailureHooks {
  // Recursive: a callback can destroy a stream with an unobserved error, which calls them again.
  std::recursive_mutex mutex;
  std::set<const ProcessFailureHook::Callback*> callbacks;
  bool is_installed = false;  // true if the terminate handler is installed
  std::terminate_handler before = nullptr;
};

// Never destroyed, since static objects of the program can own streams, and std::terminate can run
// after their destructors.
ProcessFailureHooks& process_failure_hooks() {
  static auto* const all = new ProcessFailureHooks;
  return *all;
}

// Calls the callbacks of all Worlds. Returns false if all Worlds had failed before.
bool fail_worlds(std::string_view text) {
  const std::lock_guard lock(process_failure_hooks().mutex);
  bool is_news = process_failure_hooks().callbacks.empty();
  for (const auto* callback : process_failure_hooks().callbacks)
    is_news = (*callback)(text) || is_news;
  return is_news;
}

std::string reason_of_terminate() {
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
  auto reported = std::make_shared<std::promise<void>>();
  const std::future<void> done = reported->get_future();
  std::thread([reported, text = reason_of_terminate()] {
    fail_worlds(text);
    reported->set_value();
  }).detach();
  done.wait_for(terminate_patience);
  if (process_failure_hooks().before != nullptr) process_failure_hooks().before();
  std::abort();
}

}  // namespace

ProcessFailureHook::ProcessFailureHook(Callback callback, bool on_terminate)
    : callback_(std::move(callback)) {
  ProcessFailureHooks& hooks = process_failure_hooks();
  const std::lock_guard lock(hooks.mutex);
  if (on_terminate && !std::exchange(hooks.is_installed, true))
    hooks.before = std::set_terminate(report_and_terminate);
  hooks.callbacks.insert(&callback_);
}

ProcessFailureHook::~ProcessFailureHook() {
  const std::lock_guard lock(process_failure_hooks().mutex);
  process_failure_hooks().callbacks.erase(&callback_);
}

void report_unobserved(std::string_view text) noexcept {
  try {
    if (fail_worlds(text)) log::error("{}", text);
  } catch (const std::exception& problem) {
    log::error("cannot report an error of a stream: {}", text_of(problem));
  }
}

}  // namespace atoll_v1::atoll
