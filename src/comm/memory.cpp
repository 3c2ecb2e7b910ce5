// atoll::allocate: memory that the backends of some communicators use without a copy.
#include <fmt/core.h>

#include "atoll/communicator.hpp"
#include "comm/communicator_impl.hpp"
#include "comm/registry/backend_choice.hpp"
#include "core/log.hpp"
#include "device/backend.hpp"

namespace atoll_v1::atoll {
namespace {

std::string allocation(const BackendGroup& group, std::size_t bytes) {
  return fmt::format("allocate {} bytes for communicator {}", bytes, group.name());
}

// One allocation. The first backend that has an allocator allocates the memory; without such
// a backend, the device does.
class Memory {
 public:
  Memory(const Device& device, std::size_t bytes,
         std::span<const std::shared_ptr<BackendGroup>> groups)
      : device_(device), bytes_(bytes) {
    for (const auto& group : groups) {
      if (!group->plugin().table.mem_alloc) continue;
      group->check(group->plugin().table.mem_alloc(bytes, memory_of(device.kind()),
                                                   device.ordinal(), &data_),
                   allocation(*group, bytes));
      owner_ = &group->plugin();
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
    log::warn("cannot free {} bytes: {}", bytes_, last_error(*owner_, nullptr));
  }

  // Call this when the user has destroyed the Buffer, while backends may still have the memory
  // registered.
  void leave() const noexcept {
    if (owner_) device_.backend()->disown(data_, bytes_);
  }

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  Device device_;
  std::size_t bytes_;
  const Plugin* owner_ = nullptr;  // backend that allocated the memory; null for the device
  void* data_ = nullptr;
  Buffer buffer_;
};

// Memory and its registrations. When the user destroys the Buffer, every open communicator keeps
// the memory alive until the memory is deregistered or the communicator is closed.
class RegisteredMemory {
 public:
  explicit RegisteredMemory(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  ~RegisteredMemory() {
    memory_->leave();
    for (const auto& entry : registered_) {
      if (const auto group = entry.lock()) group->retire({memory_, memory_->data()});
    }
  }

  void register_with(const std::shared_ptr<BackendGroup>& group) {
    const auto register_memory = group->plugin().table.register_memory;
    if (!register_memory) return;
    group->check(register_memory(group->handle(), memory_->data(), memory_->bytes()),
                 allocation(*group, memory_->bytes()));
    registered_.push_back(group);
  }

 private:
  std::shared_ptr<Memory> memory_;
  std::vector<std::weak_ptr<BackendGroup>> registered_;
};

}  // namespace

Buffer allocate(const Device& device, std::size_t bytes,
                std::span<const std::reference_wrapper<Communicator>> communicators) {
  std::vector<std::shared_ptr<BackendGroup>> groups;
  for (const Communicator& communicator : communicators) {
    groups.push_back(communicator.impl_->group);
    if (!communicator.impl_->two_level) continue;
    for (auto& part : communicator.impl_->two_level->parts()) groups.push_back(std::move(part));
  }
  if (bytes == 0) return {};
  for (const auto& group : groups) {
    group->wait_for_last();       // a backend accepts one caller at a time, so no operation may run
    group->deregister_retired();  // frees memory that the new allocation may need
  }
  const auto memory = std::make_shared<Memory>(device, bytes, groups);
  auto registered = std::make_shared<RegisteredMemory>(memory);
  for (const auto& group : groups) registered->register_with(group);
  return Buffer(std::shared_ptr<void>(std::move(registered), memory->data()), bytes);
}

}  // namespace atoll_v1::atoll
