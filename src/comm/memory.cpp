// atoll::allocate: memory that the backends of some communicators handle without copies.
#include <fmt/core.h>

#include "atoll/communicator.hpp"
#include "comm/registry/backend_choice.hpp"
#include "comm/communicator_impl.hpp"
#include "comm/two_level.hpp"
#include "core/log.hpp"
#include "device/backend.hpp"

namespace atoll_v1::atoll {
namespace {

// One allocation: of the first backend that has memory of its own, else of the device.
class Memory {
 public:
  Memory(const Device& device, std::size_t bytes,
         std::span<const std::shared_ptr<Communicator::Impl>> impls)
      : device_(device), bytes_(bytes) {
    for (const auto& impl : impls) {
      if (!impl->plugin->table.mem_alloc) continue;
      check(*impl, bytes,
            impl->plugin->table.mem_alloc(bytes, memory_of(device.kind()),
                                          device.backend()->ordinal(), &data_));
      owner_ = impl->plugin;
      device.backend()->adopt(data_, bytes);
      return;
    }
    buffer_ = device.allocate(bytes);
    data_ = buffer_.data();
    Stream stream = device.stream({.name = "allocate"});
    stream.zero(data_, bytes);
    stream.synchronize();
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (!owner_) return;
    if (owner_->table.mem_free(data_) == ATOLL_OK) return;
    log::warn("{} bytes are not freed: {}", bytes_, last_error(*owner_, nullptr));
  }

  // Nobody uses it any more; backends may still know it.
  void leave() const noexcept {
    if (owner_) device_.backend()->disown(data_, bytes_);
  }

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

  static void check(Communicator::Impl& impl, std::size_t bytes, atoll_status status) {
    if (status == ATOLL_OK) return;
    const Error error(
        static_cast<ErrorCode>(status),
        fmt::format("rank {}: allocate {} bytes for communicator {}: {}", impl.world.rank(), bytes,
                    impl.name, last_error(*impl.plugin, impl.comm)));
    impl.world.fail(error.what());
    throw error;
  }

 private:
  Device device_;
  std::size_t bytes_;
  const Plugin* owner_ = nullptr;  // whose memory it is; NULL: the device's
  void* data_ = nullptr;
  Buffer buffer_;
};

// Memory and its registrations. Communicators that are gone have forgotten theirs; the others keep
// the memory until they have deregistered it, or are closed.
class RegisteredMemory {
 public:
  explicit RegisteredMemory(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  ~RegisteredMemory() {
    memory_->leave();
    for (const auto& entry : registered_) {
      if (const auto impl = entry.lock()) impl->retire({memory_, memory_->data()});
    }
  }

  void register_with(const std::shared_ptr<Communicator::Impl>& impl) {
    if (!impl->plugin->table.register_memory) return;
    Memory::check(
        *impl, memory_->bytes(),
        impl->plugin->table.register_memory(impl->comm, memory_->data(), memory_->bytes()));
    registered_.push_back(impl);
  }

 private:
  std::shared_ptr<Memory> memory_;
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
  const auto memory = std::make_shared<Memory>(device, bytes, impls);
  auto registered = std::make_shared<RegisteredMemory>(memory);
  for (const auto& impl : impls) registered->register_with(impl);
  return Buffer(std::shared_ptr<void>(std::move(registered), memory->data()), bytes);
}

}  // namespace atoll_v1::atoll
