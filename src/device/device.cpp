#include "atoll/device.hpp"

#include <new>
#include <string>

#include "core/errors.hpp"
#include "device/backend.hpp"

namespace atoll_v1::atoll {

std::shared_ptr<const StampBackend> StreamBackend::stamp() {
  auto stamp = std::make_shared<ClockStamp>();
  enqueue([stamp] { stamp->take(); });
  return stamp;
}

void StreamBackend::take_time(const ModelledWork& work) {
  throw Error(ErrorCode::unsupported,
              std::string(work.name) + ": only work on a simulated device takes modelled time");
}

namespace {

constexpr std::align_val_t staging_alignment{64};

void require_work(const std::function<void()>& work, const std::string& stream) {
  require(work != nullptr, "stream {}: the work to enqueue is an empty function", stream);
}

}  // namespace

void* DeviceBackend::allocate_staging(std::size_t bytes) {
  void* const data = ::operator new(bytes, staging_alignment, std::nothrow);
  if (data) return data;
  throw Error(ErrorCode::out_of_memory,
              "CPU memory: cannot allocate " + std::to_string(bytes) + " bytes");
}

void DeviceBackend::deallocate_staging(void* data) noexcept {
  ::operator delete(data, staging_alignment);
}

std::optional<std::int64_t> Stamp::ns() const { return impl_ ? impl_->ns() : std::nullopt; }

bool Event::happened() const { return !impl_ || impl_->happened(); }

void Event::synchronize() const {
  if (impl_) impl_->synchronize();
}

Stream::Stream(std::unique_ptr<StreamBackend> impl, std::string name)
    : impl_(std::move(impl), "Stream"), name_(std::move(name)) {}
Stream::Stream(Stream&& other) noexcept
    : impl_(std::move(other.impl_)), name_(std::move(other.name_)), link_(std::move(other.link_)) {
  if (link_) *link_ = this;
}
Stream& Stream::operator=(Stream&& other) noexcept {
  if (this == &other) return *this;
  if (link_) *link_ = nullptr;  // the assignment destroys the stream that *this held
  impl_ = std::move(other.impl_);
  name_ = std::move(other.name_);
  link_ = std::move(other.link_);
  if (link_) *link_ = this;
  return *this;
}
Stream::~Stream() {
  if (link_) *link_ = nullptr;
}

const StreamLink& Stream::link() {
  if (!link_) link_ = std::make_shared<Stream*>(this);
  return link_;
}

void Stream::enqueue(std::function<void()> work) {
  require_work(work, name_);
  impl_->enqueue(std::move(work));
}
void Stream::copy(void* dst, const void* src, std::size_t bytes) {
  require(bytes == 0 || (dst != nullptr && src != nullptr),
          "stream {}: copy of {} bytes: {} is null", name_, bytes, dst == nullptr ? "dst" : "src");
  impl_->copy(dst, src, bytes);
}
void Stream::zero(void* dst, std::size_t bytes) {
  require(bytes == 0 || dst != nullptr, "stream {}: zero() of {} bytes: dst is null", name_, bytes);
  impl_->fill(dst, std::byte{0}, bytes);
}
Event Stream::record() { return Event(impl_->record()); }
Event Stream::enqueue_and_record(std::function<void()> work) {
  require_work(work, name_);
  return Event(impl_->enqueue_and_record(std::move(work)));
}
Stamp Stream::stamp() { return Stamp(impl_->stamp()); }
void Stream::wait(const Event& event, WaitReason reason) {
  if (event.backend()) impl_->wait(event.backend(), reason);
}
void Stream::synchronize() { impl_->synchronize(); }
void Stream::use(const ConstView& view, Access access, std::string_view what) {
  impl_->use(view.data, view.bytes(), access, {what}, {});
}
std::chrono::nanoseconds Stream::exposed_communication() const {
  return impl_->exposed_communication();
}

Device::Device(std::shared_ptr<DeviceBackend> impl) : impl_(std::move(impl)) {
  require(impl_ != nullptr,
          "a Device of a null DeviceBackend: pass a backend, or use Device::cpu() or "
          "Device::cuda()");
}
DeviceKind Device::kind() const noexcept { return impl_->info().kind; }
std::string_view Device::name() const noexcept { return impl_->info().name; }
int Device::ordinal() const noexcept { return impl_->info().ordinal; }
std::string_view Device::uuid() const noexcept { return impl_->info().uuid; }
std::string_view Device::pci_address() const noexcept { return impl_->info().pci_address; }
Buffer Device::allocate(std::size_t bytes) const {
  if (bytes == 0) return {};
  void* const data = impl_->allocate(bytes);
  impl_->adopt(data, bytes);
  const auto free = [device = impl_, bytes](void* memory) {
    device->disown(memory, bytes);
    device->deallocate(memory, bytes);
  };
  return Buffer(std::shared_ptr<void>(data, free), bytes);
}
Buffer Device::allocate_staging(std::size_t bytes) const {
  if (bytes == 0) return {};
  const auto free = [device = impl_](void* data) { device->deallocate_staging(data); };
  return Buffer(std::shared_ptr<void>(impl_->allocate_staging(bytes), free), bytes);
}
std::uint64_t Device::memory_bytes() const noexcept { return impl_->info().memory_bytes; }
Stream Device::stream(StreamOptions options) const {
  auto stream = impl_->make_stream(options);
  return {std::move(stream), std::move(options.name)};
}
Stream Device::wrap_stream(void* native, StreamOptions options) const {
  auto stream = impl_->wrap_stream(native, options);
  return {std::move(stream), std::move(options.name)};
}
DeviceOps& Device::ops() const noexcept { return impl_->ops(); }
std::size_t Device::allocated_bytes() const noexcept { return impl_->allocations().now(); }
std::size_t Device::peak_allocated_bytes() const noexcept { return impl_->allocations().peak(); }

}  // namespace atoll_v1::atoll
