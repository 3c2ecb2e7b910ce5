
#include "comm/arguments.hpp"
#include "comm/communicator_impl.hpp"
#include "core/errors.hpp"

namespace atoll_v1::atoll {

void Work::State::fail(const Error& reason) {
  const std::lock_guard lock(mutex);
  if (!error) error = reason;
  failed = true;
}

void Work::State::check() {
  if (!failed) return;
  const std::lock_guard lock(mutex);
  throw *error;
}

void Work::wait(Stream& stream) const {
  if (!state_) return;
  state_->check();
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

bool Work::done() const { return !state_ || state_->event.happened(); }

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
  return *this;  // the destructor of `old` waits for its operations
}

Communicator::~Communicator() {
  if (impl_) impl_->group->wait_until_idle();
}

Communicator Communicator::open(const Axis& axis, CommunicatorOptions options) {
  const Communicator* const parent = options.parent;
  const bool levels = options.levels;
  if (parent) {
    parent->impl_->group->check_aborted();
    options.backend = std::string(parent->backend());
    options.device = parent->device();
    parent->impl_->group->settings().pass_on(options);
  }
  auto impl = std::make_shared<Impl>();
  impl->group = BackendCommunicator::open(axis, std::move(options),
                                          parent ? parent->impl_->group.get() : nullptr);
  if (levels && impl->group->lacks_levels()) impl->two_level = TwoLevel::open(*impl->group);
  return Communicator(std::move(impl));
}

void Communicator::abort(std::string_view reason) { impl_->group->abort(reason); }

int Communicator::rank() const { return impl_->group->axis().index; }
int Communicator::size() const { return impl_->group->axis().size(); }
std::string_view Communicator::name() const { return impl_->group->name(); }
std::string_view Communicator::backend() const { return impl_->group->plugin().name; }
const Device& Communicator::device() const { return impl_->group->device(); }

}  // namespace atoll_v1::atoll
