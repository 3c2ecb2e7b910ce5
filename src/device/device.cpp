#include "atoll/device.hpp"

#include <utility>

#include "device/backend.hpp"

namespace atoll_v1::atoll {

bool Event::happened() const { return !impl_ || impl_->happened(); }

void Event::synchronize() const {
  if (impl_) impl_->synchronize();
}

Stream::Stream(std::unique_ptr<StreamBackend> impl) : impl_(std::move(impl)) {}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;
Stream::~Stream() = default;

void Stream::enqueue(std::function<void()> work) { impl_->enqueue(std::move(work)); }
void Stream::copy(void* dst, const void* src, std::size_t bytes) { impl_->copy(dst, src, bytes); }
void Stream::zero(void* dst, std::size_t bytes) { impl_->zero(dst, bytes); }
Event Stream::record() { return Event(impl_->record()); }
void Stream::wait(const Event& event, WaitReason reason) {
  if (event.backend()) impl_->wait(event.backend(), reason);
}
void Stream::synchronize() { impl_->synchronize(); }
std::chrono::nanoseconds Stream::exposed_communication() const {
  return impl_->exposed_communication();
}

Buffer::Buffer(std::shared_ptr<DeviceBackend> device, std::size_t bytes)
    : device_(std::move(device)),
      data_(bytes ? device_->allocate(bytes) : nullptr),
      bytes_(bytes) {}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::move(other.device_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (data_) device_->deallocate(data_, bytes_);
}

Device::Device(std::shared_ptr<DeviceBackend> impl) : impl_(std::move(impl)) {}
DeviceKind Device::kind() const noexcept { return impl_->kind(); }
std::string_view Device::name() const noexcept { return impl_->name(); }
Buffer Device::allocate(std::size_t bytes) const { return Buffer(impl_, bytes); }
Stream Device::stream(StreamOptions options) const { return Stream(impl_->make_stream(options)); }
DeviceOps& Device::ops() const noexcept { return impl_->ops(); }
std::size_t Device::allocated_bytes() const noexcept { return impl_->allocated_bytes(); }
std::size_t Device::peak_allocated_bytes() const noexcept { return impl_->peak_allocated_bytes(); }

}  // namespace atoll_v1::atoll
