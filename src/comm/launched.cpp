#include "comm/launched.hpp"

#include <fmt/format.h>

#include <utility>

#include "atoll/plugin_names.hpp"
#include "flight/flight.hpp"
#include "core/log.hpp"
#include "device/backend.hpp"

namespace atoll_v1::atoll {
namespace {

using namespace std::chrono_literals;

// Between two looks: what a failure takes longer to be seen, and the flight recorder's times are
// off.
constexpr auto pause = 2ms;
constexpr auto between_questions = 50ms;

}  // namespace

Launched::Launched(Communicator::Impl& impl)
    : impl_(impl), thread_([this](const std::stop_token& stop) { watch(stop); }) {}

Launched::~Launched() = default;

void Launched::add(Operation operation) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      operations_.push_back(std::move(operation));
      changed_.notify_one();
      return;
    }
  }
  operation.state->fail(*failure_);
  operation.done.backend()->fail(std::make_exception_ptr(*failure_));
}

void Launched::fail(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = error;
  // The device is asked for nothing: its calls may wait for what only the abort behind this ends.
  for (const Operation& operation : operations_) {
    // What had not begun stays so in the record.
    if (std::exchange(begun_, std::nullopt)) {
      impl_.flight->recorder().failed(operation.number, operation.requests.size(), error.what());
    }
    // Whoever gives one up knows more of it.
    if (operation.state != given_up_) operation.state->fail(error);
    operation.done.backend()->fail(std::make_exception_ptr(error));
  }
  operations_.clear();
  changed_.notify_one();
}

void Launched::watch(const std::stop_token& stop) {
  try {
    watch_until(stop);
  } catch (const std::exception& error) {  // the device has failed
    give_up_first(ATOLL_BACKEND, error.what());
  }
}

void Launched::watch_until(const std::stop_token& stop) {
  Clock::time_point next_question = Clock::now() + between_questions;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return failure_ || !operations_.empty(); })) return;
      if (failure_) return;
    }
    const Clock::time_point now = Clock::now();
    const bool late = look(now);
    if (stop.stop_requested()) return;  // what is still under way is nobody's any more
    if (late) {
      return give_up_first(
          ATOLL_TIMEOUT,
          fmt::format("not done {} s after its stream got to it",
                      std::chrono::duration<double>(impl_.world.config().timeout).count()));
    }
    if (now >= next_question) {
      next_question = now + between_questions;
      if (!ask_backend()) return;
    }
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, pause, [&] { return failure_.has_value(); });
  }
}

// The device is asked without the lock, which fail() needs: an answer may wait for what only the
// abort behind that ends.
bool Launched::look(Clock::time_point now) {
  FlightRecorder& recorder = impl_.flight->recorder();
  while (true) {
    std::unique_lock lock(mutex_);
    if (operations_.empty()) return false;
    const std::uint64_t number = operations_.front().number;
    const Event reached = operations_.front().reached, done = operations_.front().done;
    const bool begun = begun_.has_value();
    lock.unlock();
    const bool is_reached = begun || reached.backend()->peek();
    const bool is_done = is_reached && done.backend()->peek();
    lock.lock();
    const bool gone = failure_ || operations_.empty() || operations_.front().number != number;
    if (gone || !is_reached) return false;
    const Operation& first = operations_.front();
    if (!begun) {
      begun_ = now;
      recorder.started(first.number, first.requests.size());
    }
    if (!is_done) return now - *begun_ >= impl_.world.config().timeout;
    recorder.completed(*impl_.lane, first.number, first.requests);
    begun_.reset();
    operations_.pop_front();
  }
}

bool Launched::ask_backend() {
  const auto async_error = impl_.plugin->table.async_error;
  if (async_error == nullptr) return true;
  const atoll_status status = async_error(impl_.comm);
  if (status == ATOLL_OK) return true;
  give_up_first(status, last_error(*impl_.plugin, impl_.comm));
  return false;
}

void Launched::give_up_first(atoll_status status, const std::string& why) {
  std::optional<Operation> operation;
  {
    const std::lock_guard lock(mutex_);
    if (!operations_.empty()) {
      operation = operations_.front();
      given_up_ = operation->state;
    }
  }
  if (!operation) {
    return impl_.world.fail(
        fmt::format("rank {}: communicator {}: {}", impl_.world.rank(), impl_.name, why));
  }
  const Request& first = operation->requests.front();
  const std::string text = fmt::format("{} {} ({} x {}): {}", atoll_abi::kind_name(first.kind),
                                       operation->sequence, first.count, name(first.dtype), why);
  try {
    impl_.fail(status, text, operation->requests, operation->number, *operation->state);
  } catch (const std::exception& error) {  // of the inquiry, say: the job ends all the same
    log::error("communicator {}: {}", impl_.name, error.what());
    operation->state->fail(Error(static_cast<ErrorCode>(status), text));
    impl_.world.fail(text);
  }
}

}  // namespace atoll_v1::atoll
