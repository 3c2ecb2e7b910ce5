#include "comm/communicator_impl.hpp"

namespace atoll_v1::atoll {

Communicator::Communicator(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&& other) noexcept {
  Communicator old(std::move(other));
  std::swap(impl_, old.impl_);
  return *this;  // `old` waits for its operations
}

Communicator::~Communicator() {
  if (impl_) impl_->group->wait_until_idle();
}

Communicator Communicator::open(const Axis& axis, CommunicatorOptions options) {
  if (!axis.world || axis.ranks.empty()) {
    throw Error(ErrorCode::invalid_argument, "Communicator::open: the axis is empty");
  }
  axis.world->check();
  const Communicator* const parent = options.parent;
  if (parent) {
    options.backend = std::string(parent->backend());
    options.device = parent->device();
  }
  auto impl = std::make_shared<Impl>();
  impl->group =
      BackendGroup::open(axis, std::move(options), parent ? parent->impl_->group.get() : nullptr);
  if (impl->group->lacks_levels()) impl->two_level = TwoLevel::open(*impl->group);
  return Communicator(std::move(impl));
}

int Communicator::rank() const noexcept { return impl_->group->axis().index; }
int Communicator::size() const noexcept { return impl_->group->axis().size(); }
std::string_view Communicator::name() const noexcept { return impl_->group->name(); }
std::string_view Communicator::backend() const noexcept { return impl_->group->plugin().name; }
const Device& Communicator::device() const noexcept { return impl_->group->device(); }

}  // namespace atoll_v1::atoll
