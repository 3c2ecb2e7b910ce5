// A device with the interface of a GPU, built from the CPU device. Its streams run the operations
// that the test backend `launching` enqueues. The streams do not see failures of these operations;
// a failure becomes known only when fail() of an event is called.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "device/backend.hpp"
#include "device/cuda/failure.hpp"

namespace atoll_test {

class LaunchingEvent final : public atoll::EventBackend {
 public:
  LaunchingEvent(std::shared_ptr<atoll::EventBackend> inner,
                 std::shared_ptr<atoll::cuda::Failure> failure, std::uint64_t position,
                 std::uint64_t moment)
      : inner_(std::move(inner)),
        failure_(std::move(failure)),
        position_(position),
        moment_(moment) {}
  bool happened() const override { return inner_->happened(); }
  void synchronize() override {
    inner_->synchronize();
    failure_->check(position_, moment_);
  }
  void fail(std::exception_ptr error) override { failure_->fail(position_, error); }
  const std::shared_ptr<atoll::EventBackend>& inner() const { return inner_; }
  const std::shared_ptr<atoll::cuda::Failure>& failure() const { return failure_; }
  std::uint64_t position() const { return position_; }

 private:
  std::shared_ptr<atoll::EventBackend> inner_;
  std::shared_ptr<atoll::cuda::Failure> failure_;
  std::uint64_t position_;
  std::uint64_t moment_;
};

class LaunchingStream final : public atoll::StreamBackend {
 public:
  explicit LaunchingStream(std::unique_ptr<atoll::StreamBackend> inner)
      : inner_(std::move(inner)) {}
  void enqueue(std::function<void()> work) override {
    add_work();
    inner_->enqueue(std::move(work));
  }
  void copy(void* dst, const void* src, std::size_t bytes) override {
    add_work();
    inner_->copy(dst, src, bytes);
  }
  void fill(void* dst, std::byte value, std::size_t bytes) override {
    add_work();
    inner_->fill(dst, value, bytes);
  }
  void launch(const std::function<void(void*)>& work) override {
    add_work();
    work(native());
  }
  std::shared_ptr<atoll::EventBackend> record() override {
    return std::make_shared<LaunchingEvent>(inner_->record(), failure_, ++position_, last_work_);
  }
  void wait(std::shared_ptr<atoll::EventBackend> event, atoll::WaitReason reason) override {
    const auto& known = dynamic_cast<LaunchingEvent&>(*event);
    failure_->follow(add_work(), known.failure(), known.position());
    inner_->wait(known.inner(), reason);
  }
  void synchronize() override {
    inner_->synchronize();
    failure_->check(position_, last_work_);
  }
  std::chrono::nanoseconds exposed_communication() const override {
    return inner_->exposed_communication();
  }
  void* native() noexcept override { return static_cast<atoll::StreamBackend*>(this); }

 private:
  std::unique_ptr<atoll::StreamBackend> inner_;
  std::shared_ptr<atoll::cuda::Failure> failure_ =
      std::make_shared<atoll::cuda::Failure>("launching");
  std::uint64_t add_work() {
    last_work_ = atoll::StreamFailure::now();
    return ++position_;
  }

  std::uint64_t position_ = 0, last_work_ = 0;
};

class LaunchingDevice final : public atoll::DeviceBackend {
 public:
  LaunchingDevice()
      : DeviceBackend({.kind = atoll::DeviceKind::cuda, .name = "launching", .ordinal = 0}) {}
  void* allocate(std::size_t bytes) override { return host_.backend()->allocate(bytes); }
  void deallocate(void* data, std::size_t bytes) noexcept override {
    host_.backend()->deallocate(data, bytes);
  }
  std::unique_ptr<atoll::StreamBackend> make_stream(const atoll::StreamOptions& options) override {
    return std::make_unique<LaunchingStream>(host_.backend()->make_stream(options));
  }
  atoll::DeviceOps& ops() noexcept override { return host_.ops(); }

 private:
  atoll::Device host_ = atoll::Device::cpu();
};

}  // namespace atoll_test
