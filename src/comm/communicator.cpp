#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "comm/arguments.hpp"
#include "comm/communicator_impl.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

namespace atoll_v1::atoll {

void Work::State::fail(const Error& reason) {
  const std::lock_guard lock(mutex);
  if (!error) error = reason;
  failed = true;
}

std::optional<Error> Work::State::failure() {
  if (!failed) return std::nullopt;
  const std::lock_guard lock(mutex);
  return error;
}

void Work::State::check() {
  if (const std::optional<Error> reason = failure()) throw Error(*reason);
}

void Work::wait(Stream& stream) const {
  if (!state_) return;
  if (state_->failed) throw Error(*error());
  stream.wait(state_->event, WaitReason::communication);
}

void Work::synchronize() const {
  if (!state_) return;
  try {
    state_->event.synchronize();
  } catch (...) {
    state_->check();  // the error of the operation is more precise than that of its stream
    throw;
  }
  state_->check();
}

bool Work::synchronize_for(std::chrono::nanoseconds limit) const {
  constexpr std::chrono::microseconds least{20}, most{1000};
  const auto end = std::chrono::steady_clock::now() + limit;
  for (std::chrono::nanoseconds pause = least; !done();
       pause = std::min<std::chrono::nanoseconds>(2 * pause, most)) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds(0)) return false;
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, left));
  }
  if (const std::optional<Error> failure = error()) throw Error(*failure);
  return true;
}

bool Work::done() const { return !state_ || state_->failed || state_->event.happened(); }

std::optional<Error> Work::error() const {
  if (!state_ || !done()) return std::nullopt;
  std::optional<Error> failure = state_->failure();
  if (!state_->event.happened()) return failure;
  try {
    state_->event.synchronize();  // tells the stream that the program knows its failure
  } catch (const Error& problem) {
    if (!failure) failure = problem;
  } catch (const std::exception& problem) {
    if (!failure) failure = Error(ErrorCode::internal, text_of(problem));
  } catch (...) {
    if (!failure) failure = Error(ErrorCode::internal, foreign_exception);
  }
  return failure;
}

int Work::source() const { return state_ && done() ? state_->arrived.source : ATOLL_ANY; }
int Work::tag() const { return state_ && done() ? state_->arrived.tag : ATOLL_ANY; }

void Work::then(std::function<void(const std::optional<Error>& error)> callback) const {
  require(callback != nullptr, "Work::then: the callback is empty");
  const auto call = [work = *this, callback = std::move(callback)] {
    try {
      callback(work.done() ? work.error()
                           : Error(ErrorCode::aborted,
                                   "the World ended before the operation was complete"));
    } catch (const std::exception& problem) {
      log::error("a callback of Work::then() threw: {}", text_of(problem));
    } catch (...) {
      log::error("a callback of Work::then() threw: {}", foreign_exception);
    }
  };
  if (done()) return call();
  if (state_->event.backend()->then(call)) return;
  if (const auto watchdog = state_->watchdog.lock()) return watchdog->then(state_->event, call);
  settle(state_->event);  // a device without callbacks
  call();
}

Work Work::local_copy(ConstView src, View dst, Stream& stream) {
  require(src.dtype == dst.dtype && src.count == dst.count,
          "a collective of one rank: src has {} elements of {}, but dst has {} of {}", src.count,
          atoll::name(src.dtype), dst.count, atoll::name(dst.dtype));
  require(src.data == dst.data || !overlap(src, dst),
          "a collective of one rank: src and dst overlap partially");
  if (src.data != dst.data) stream.copy(dst.data, src.data, dst.bytes());
  auto state = std::make_shared<State>();
  state->event = stream.record();
  return Work(std::move(state));
}

Communicator::Communicator(std::shared_ptr<Impl> impl) : impl_(std::move(impl), "Communicator") {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&& other) noexcept {
  Communicator old(std::move(other));
  std::swap(impl_, old.impl_);
  return *this;  // the destructor of `old` waits for its operations if it was the last handle
}

Communicator::~Communicator() = default;

Communicator::Impl::Handles::~Handles() {
  try {
    // A callback of an operation may start another one on either group.
    for (bool is_idle = false; !is_idle;) {
      if (tags) tags->call_when_idle().unlock();
      const auto calling = group->call_when_idle();  // the mutex of both groups
      is_idle = !tags || tags->is_idle();
    }
  } catch (const std::bad_alloc&) {
    if (tags) tags->wait_until_idle();
    group->wait_until_idle();  // needs no memory
  }
}

Communicator Communicator::open(const Axis& axis, CommunicatorOptions options) {
  const Communicator* const parent = options.parent;
  const bool levels = options.levels;
  const std::stop_token stop = options.stop;
  std::optional<CommunicatorOptions> for_tags;
  std::unique_lock<std::mutex> calling;
  if (parent) {
    calling = parent->impl_->group->call_when_idle();
    parent->impl_->group->check_ended();
    options.backend = std::string(parent->backend());
    options.device = parent->device();
    parent->impl_->group->settings().pass_on(options);
  }
  if (options.tags) {
    require(options.device.kind() == DeviceKind::cpu, ErrorCode::unsupported,
            "CommunicatorOptions::tags: only backends on CPU memory have tags");
    for_tags = options;
    for_tags->parent = nullptr;
    for_tags->name = (options.name.empty() ? axis.name : options.name) + ".tags";
  }
  auto impl = std::make_shared<Impl>();
  impl->group = BackendCommunicator::open(axis, std::move(options),
                                          parent ? parent->impl_->group.get() : nullptr);
  try {
    if (levels && impl->group->lacks_levels()) impl->two_level = TwoLevel::open(*impl->group, stop);
    if (for_tags) {
      for_tags->backend = std::string(impl->group->plugin().name);
      impl->tags = BackendCommunicator::open(axis, *std::move(for_tags), nullptr,
                                             BackendCommunicator::Use::tags);
      impl->group->adopt({impl->tags});
    }
  } catch (const std::exception& error) {
    const auto* const known = dynamic_cast<const Error*>(&error);
    // Other ranks may have opened the communicator. If the backend lacks tags, every rank throws
    // this error.
    if (!known || known->code() != ErrorCode::unsupported) impl->group->abort(error.what());
    throw;
  }
  impl->handles = std::make_shared<Impl::Handles>(impl->group, impl->tags);
  return Communicator(std::move(impl));
}

Communicator Communicator::open(World& world, std::vector<int> ranks, std::string name,
                                CommunicatorOptions options) {
  const auto own = std::ranges::find(ranks, world.rank());
  require(own != ranks.end(), "Communicator::open: rank {} is not among the ranks of {}: {}",
          world.rank(), name, fmt::join(ranks, ", "));
  const int index = static_cast<int>(own - ranks.begin());
  return open(Axis{&world, std::move(name), std::move(ranks), index}, std::move(options));
}

Communicator Communicator::with_timeout(std::chrono::milliseconds timeout) const {
  require(timeout.count() > 0 || timeout.count() == -1,
          "communicator {}: a time limit of {} ms: pass at least 1 ms, or -1 for that of the "
          "communicator",
          name(), timeout.count());
  auto impl = std::make_shared<Impl>(*impl_);
  impl->timeout = timeout;
  return Communicator(std::move(impl));
}

void Communicator::check() const {
  impl_->group->world().check();
  impl_->group->check_ended();
}

void Communicator::abort(std::string_view reason) { impl_->group->abort(reason); }

int Communicator::rank() const { return impl_->group->axis().index; }
int Communicator::size() const { return impl_->group->axis().size(); }
std::string_view Communicator::name() const { return impl_->group->name(); }
std::string_view Communicator::backend() const { return impl_->group->plugin().name; }
const Device& Communicator::device() const { return impl_->group->device(); }

}  // namespace atoll_v1::atoll
