// A device that plants one fault: it hides one chosen wait of a stream from the checked device
// below. The stream still waits for the event, in an ordinary task, so the order stays correct, but
// the checked device cannot prove the order.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/backend.hpp"
#include "device/checked/device.hpp"

namespace atoll_test {

struct Waits {
  // Number of the wait that is hidden from the checked device; -1: no wait is hidden.
  int deaf_to = -1;
  bool slow = false;  // if true, record() returns only after the stream has reached the event
  // For each wait: the name of the waiting stream, and whether the wait adds order. A wait adds no
  // order if the stream is already ordered after the event. It also adds none if the stream's next
  // action is a wait for a second event that comes after the first event.
  std::vector<std::string> streams{};
  std::vector<bool> adds{};
};

class DeafStream final : public atoll::StreamBackend {
 public:
  DeafStream(std::unique_ptr<atoll::StreamBackend> inner, std::string name, Waits& waits)
      : StreamBackend(inner->checks_lifetimes()),
        inner_(std::move(inner)),
        name_(std::move(name)),
        waits_(waits) {}
  void enqueue(std::function<void()> work) override { after_waits().enqueue(std::move(work)); }
  void copy(void* dst, const void* src, std::size_t bytes) override {
    after_waits().copy(dst, src, bytes);
  }
  void fill(void* dst, std::byte value, std::size_t bytes) override {
    after_waits().fill(dst, value, bytes);
  }
  std::shared_ptr<atoll::EventBackend> record() override {
    auto event = after_waits().record();
    while (waits_.slow && !event->peek()) std::this_thread::yield();
    return event;
  }
  void wait(std::shared_ptr<atoll::EventBackend> event, atoll::WaitReason reason) override {
    if (last_ && atoll::is_behind(*event, *last_)) waits_.adds[last_wait_] = false;
    last_ = event;
    last_wait_ = waits_.streams.size();
    waits_.streams.push_back(name_);
    waits_.adds.push_back(!atoll::is_behind(*inner_, *event));
    if (static_cast<int>(last_wait_) != waits_.deaf_to) return inner_->wait(event, reason);
    inner_->enqueue([event = std::move(event)] { event->synchronize(); });
  }
  // Taking a time stamp touches no memory, so it needs no wait.
  std::shared_ptr<const atoll::StampBackend> stamp() override { return inner_->stamp(); }
  void synchronize() override { inner_->synchronize(); }
  std::chrono::nanoseconds exposed_communication() const override {
    return inner_->exposed_communication();
  }
  void* native() noexcept override { return inner_->native(); }
  void use(const void* data, std::size_t bytes, atoll::Access access, atoll::Label by,
           atoll::Label content) override {
    after_waits().use(data, bytes, access, by, content);
  }
  void hold(void* data, std::size_t bytes, atoll::Label content) override {
    after_waits().hold(data, bytes, content);
  }

 private:
  atoll::StreamBackend& after_waits() {
    last_.reset();
    return *inner_;
  }

  std::unique_ptr<atoll::StreamBackend> inner_;
  // Event of the stream's last action, if that was a wait; otherwise null.
  std::shared_ptr<atoll::EventBackend> last_;
  std::size_t last_wait_ = 0;
  std::string name_;
  Waits& waits_;
};

class DeafDevice final : public atoll::DeviceBackend {
 public:
  // The object `waits` must outlive the device.
  DeafDevice(const atoll::Device& inner, Waits& waits)
      : DeviceBackend(inner.backend()->info()), inner_(inner.backend()), waits_(waits) {}
  void* allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  void deallocate(void* data, std::size_t bytes) noexcept override {
    inner_->deallocate(data, bytes);
  }
  void adopt(void* data, std::size_t bytes) override { inner_->adopt(data, bytes); }
  void disown(void* data, std::size_t bytes) noexcept override { inner_->disown(data, bytes); }
  std::unique_ptr<atoll::StreamBackend> make_stream(const atoll::StreamOptions& options) override {
    return std::make_unique<DeafStream>(inner_->make_stream(options), options.name, waits_);
  }
  atoll::DeviceOps& ops() noexcept override { return inner_->ops(); }
  atoll::AllocationCount& allocations() noexcept override { return inner_->allocations(); }

 private:
  std::shared_ptr<atoll::DeviceBackend> inner_;
  Waits& waits_;
};

}  // namespace atoll_test
