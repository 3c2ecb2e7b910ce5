#include "comm/launched.hpp"

#include <fmt/format.h>

#include <utility>

#include "atoll/plugin_names.hpp"
#include "comm/flight.hpp"
#include "core/log.hpp"
#include "device/backend.hpp"

namespace atoll_v1::atoll {
namespace {

using namespace std::chrono_literals;

// Between two looks: what a failure takes longer to be seen, and the flight recorder's times are off.
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
  FlightRecorder& recorder = impl_.flight->recorder();
  for (const Operation& operation : operations_) {
    if (operation.done.backend()->peek()) {
      recorder.completed(*impl_.lane, operation.number, operation.requests);
      begun_.reset();
      continue;
    }
    // What had not begun stays so in the record.
    if (std::exchange(begun_, std::nullopt)) {
      recorder.failed(operation.number, operation.requests.size(), error.what());
    }
    // Whoever gives one up knows more of it.
    if (operation.state != given_up_) operation.state->fail(error);
    operation.done.backend()->fail(std::make_exception_ptr(error));
  }
  operations_.clear();
  changed_.notify_one();
}

void Launched::watch(const std::stop_token& stop) {
  Clock::time_point next_question = Clock::now() + between_questions;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return failure_ || !operations_.empty(); })) return;
      if (failure_) return;
    }
    const Clock::time_point now = Clock::now();
    if (auto late = look(now)) {
      return give_up(
          *late, ATOLL_TIMEOUT,
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

std::optional<Launched::Operation> Launched::look(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  FlightRecorder& recorder = impl_.flight->recorder();
  while (!operations_.empty()) {
    const Operation& first = operations_.front();
    if (!begun_) {
      if (!first.reached.backend()->peek()) return std::nullopt;
      begun_ = now;
      recorder.started(first.number, first.requests.size());
    }
    if (!first.done.backend()->peek()) {
      if (now - *begun_ < impl_.world.config().timeout) return std::nullopt;
      return first;
    }
    recorder.completed(*impl_.lane, first.number, first.requests);
    begun_.reset();
    operations_.pop_front();
  }
  return std::nullopt;
}

bool Launched::ask_backend() {
  const auto async_error = impl_.plugin->table.async_error;
  if (async_error == nullptr) return true;
  const atoll_status status = async_error(impl_.comm);
  if (status == ATOLL_OK) return true;
  const std::string why = last_error(*impl_.plugin, impl_.comm);
  std::optional<Operation> first;
  {
    const std::lock_guard lock(mutex_);
    if (operations_.empty()) return true;  // nothing waits for it: the next call is told
    first = operations_.front();
  }
  give_up(*first, status, why);
  return false;
}

void Launched::give_up(const Operation& operation, atoll_status status, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    given_up_ = operation.state;
  }
  const Request& first = operation.requests.front();
  try {
    impl_.fail(status,
               fmt::format("{} {} ({} x {}): {}", atoll_abi::kind_name(first.kind),
                           operation.sequence, first.count, name(first.dtype), why),
               operation.requests, operation.number, *operation.state);
  } catch (const std::exception& error) {  // of the inquiry, say: the job ends all the same
    log::error("communicator {}: {}", impl_.name, error.what());
    impl_.world.fail(why);
  }
}

}  // namespace atoll_v1::atoll
