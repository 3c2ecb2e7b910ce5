// atoll::allocate: memory that the backends of some communicators handle without copies.
#include <fmt/core.h>

#include "atoll/communicator.hpp"
#include "comm/backend_choice.hpp"
#include "comm/communicator_impl.hpp"
#include "comm/two_level.hpp"
#include "device/backend.hpp"

namespace atoll_v1::atoll {
namespace {

// One allocation and its registrations. A communicator that is gone has forgotten its own.
class RegisteredMemory {
 public:
  RegisteredMemory(const Device& device, std::size_t bytes) : device_(device), bytes_(bytes) {}
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  ~RegisteredMemory() {
    for (const auto& entry : registered_) {
      if (const auto impl = entry.lock()) impl->retire(data_);
    }
    if (!owner_ || !data_) return;
    owner_->table.mem_free(data_);
    device_.backend()->disown(data_, bytes_);
  }

  // By the first backend that has memory of its own, else by the device.
  void allocate(std::span<const std::shared_ptr<Communicator::Impl>> impls) {
    for (const auto& impl : impls) {
      if (!impl->plugin->table.mem_alloc) continue;
      check(*impl, impl->plugin->table.mem_alloc(bytes_, memory_of(device_.kind()),
                                                 device_.backend()->ordinal(), &data_));
      owner_ = impl->plugin;
      device_.backend()->adopt(data_, bytes_);
      return;
    }
    buffer_ = device_.allocate(bytes_);
    data_ = buffer_.data();
    Stream stream = device_.stream({.name = "allocate"});
    stream.zero(data_, bytes_);
    stream.synchronize();
  }

  void register_with(const std::shared_ptr<Communicator::Impl>& impl) {
    if (!impl->plugin->table.register_memory) return;
    impl->deregister_retired();
    check(*impl, impl->plugin->table.register_memory(impl->comm, data_, bytes_));
    registered_.push_back(impl);
  }

  void* data() const noexcept { return data_; }

 private:
  void check(Communicator::Impl& impl, atoll_status status) const {
    if (status == ATOLL_OK) return;
    const Error error(
        static_cast<ErrorCode>(status),
        fmt::format("rank {}: allocate {} bytes for communicator {}: {}", impl.world.rank(), bytes_,
                    impl.name, last_error(*impl.plugin, impl.comm)));
    impl.world.fail(error.what());
    throw error;
  }

  Device device_;
  std::size_t bytes_;
  const Plugin* owner_ = nullptr;  // whose memory it is; NULL: the device's
  void* data_ = nullptr;
  Buffer buffer_;
  std::vector<std::weak_ptr<Communicator::Impl>> registered_;
};

}  // namespace

Buffer allocate(const Device& device, std::size_t bytes,
                std::span<const std::reference_wrapper<Communicator>> communicators) {
  std::vector<std::shared_ptr<Communicator::Impl>> impls;
  for (const Communicator& communicator : communicators) {
    impls.push_back(communicator.impl_);
    if (!communicator.impl_->two_level) continue;
    for (auto& part : communicator.impl_->two_level->parts()) impls.push_back(std::move(part));
  }
  if (bytes == 0) return {};
  for (const auto& impl : impls) {
    impl->last_event.synchronize();  // one caller at a time per communicator
    impl->deregister_retired();      // may be what keeps memory that is wanted now
  }
  auto memory = std::make_shared<RegisteredMemory>(device, bytes);
  memory->allocate(impls);
  for (const auto& impl : impls) memory->register_with(impl);
  void* data = memory->data();
  return Buffer(std::shared_ptr<void>(std::move(memory), data), bytes);
}

}  // namespace atoll_v1::atoll
