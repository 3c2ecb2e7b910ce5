// A second device that proves the interface: CPU memory and worker threads again, but every task of
// a stream first waits for a random while, and fresh memory is full of NaN. What an event edge does
// not order comes out in the wrong order here sooner or later, and what nobody wrote poisons the
// sums.
#pragma once

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "device/backend.hpp"
#include "device/host/ops.hpp"
#include "device/host/stream.hpp"

namespace atoll_test {

class JitterStream final : public atoll::StreamBackend {
 public:
  JitterStream(const atoll::StreamOptions& options, unsigned seed)
      : stream_(options), random_(seed) {}

  void enqueue(std::function<void()> work) override {
    // Mostly nothing, sometimes a few hundred microseconds.
    const int dice = pick_(random_);
    const auto delay = std::chrono::microseconds(dice < 8 ? 0 : (dice - 7) * 200);
    stream_.enqueue([delay, work = std::move(work)] {
      if (delay.count() > 0) std::this_thread::sleep_for(delay);
      work();
    });
  }
  void copy(void* dst, const void* src, std::size_t bytes) override {
    enqueue([=] { std::memmove(dst, src, bytes); });
  }
  void zero(void* dst, std::size_t bytes) override {
    enqueue([=] { std::memset(dst, 0, bytes); });
  }
  std::shared_ptr<atoll::EventBackend> record() override { return stream_.record(); }
  void wait(std::shared_ptr<atoll::EventBackend> event, atoll::WaitReason reason) override {
    stream_.wait(std::move(event), reason);
  }
  void synchronize() override { stream_.synchronize(); }
  std::chrono::nanoseconds exposed_communication() const override {
    return stream_.exposed_communication();
  }
  void* native() noexcept override { return nullptr; }

 private:
  atoll::host::HostStream stream_;
  std::mt19937 random_;
  std::uniform_int_distribution<int> pick_{0, 9};
};

class JitterDevice final : public atoll::DeviceBackend {
 public:
  explicit JitterDevice(unsigned seed) : seed_(seed) {}
  atoll::DeviceKind kind() const noexcept override { return atoll::DeviceKind::host; }
  std::string_view name() const noexcept override { return "jitter"; }
  void* allocate(std::size_t bytes) override {
    auto* data = static_cast<std::byte*>(::operator new(bytes, std::align_val_t(4096)));
    std::memset(data, 0xff, bytes);  // NaN in every floating point type
    const std::size_t now = allocated_ += bytes;
    if (now > peak_) peak_ = now;
    return data;
  }
  void deallocate(void* data, std::size_t bytes) noexcept override {
    ::operator delete(data, std::align_val_t(4096));
    allocated_ -= bytes;
  }
  std::unique_ptr<atoll::StreamBackend> make_stream(const atoll::StreamOptions& options) override {
    return std::make_unique<JitterStream>(options, seed_++);
  }
  atoll::DeviceOps& ops() noexcept override { return ops_; }
  std::size_t allocated_bytes() const noexcept override { return allocated_; }
  std::size_t peak_allocated_bytes() const noexcept override { return peak_; }

 private:
  atoll::host::HostOps ops_;
  std::atomic<unsigned> seed_;
  std::atomic<std::size_t> allocated_{0}, peak_{0};
};

}  // namespace atoll_test
