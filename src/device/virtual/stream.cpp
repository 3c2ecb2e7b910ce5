#include "device/virtual/stream.hpp"

#include "core/errors.hpp"
#include "device/stream_kind.hpp"
#include "device/virtual/ops.hpp"

namespace atoll_v1::atoll {

DeviceKind kind_of(const Stream& stream) {
  StreamBackend& backend = stream.backend();
  if (backend.native() != nullptr) return DeviceKind::cuda;
  const bool is_simulated = dynamic_cast<simulated::VirtualStream*>(&backend) != nullptr;
  return is_simulated ? DeviceKind::virtual_time : DeviceKind::host;
}

namespace simulated {

VirtualStream::VirtualStream(std::shared_ptr<Timeline> timeline, const DeviceOptions& options)
    : timeline_(std::move(timeline)),
      queue_(timeline_->add_queue()),
      copy_rate_(kernel_rate(options, "copy")),
      fill_rate_(kernel_rate(options, "fill")) {}

VirtualStream::~VirtualStream() {
  try {
    timeline_->remove_queue(queue_);
  } catch (const std::exception&) {
    // Streams wait for each other in a cycle; a synchronize() has reported it, or will.
  }
}

void VirtualStream::run(TimedWork work) {
  TimedTask task;
  task.work = std::move(work);
  timeline_->push(*queue_, std::move(task), true);
}

// The function is not called, since it would read memory that does not exist.
void VirtualStream::enqueue(std::function<void()>) { run({.name = "host function"}); }

void VirtualStream::copy(void*, const void*, std::size_t bytes) {
  run({.name = "copy",
       .seconds = 2 * static_cast<double>(bytes) / copy_rate_,
       .use = {.memory = 1}});
}

void VirtualStream::fill(void*, std::byte, std::size_t bytes) {
  run({.name = "fill", .seconds = static_cast<double>(bytes) / fill_rate_, .use = {.memory = 1}});
}

std::shared_ptr<TimedTask> VirtualStream::mark() { return timeline_->push(*queue_, {}, false); }

std::shared_ptr<EventBackend> VirtualStream::record() {
  return std::make_shared<VirtualEvent>(timeline_, mark());
}

std::shared_ptr<const StampBackend> VirtualStream::stamp() {
  return std::make_shared<VirtualStamp>(timeline_, mark());
}

void VirtualStream::wait(std::shared_ptr<EventBackend> event, WaitReason reason) {
  const auto* const other = dynamic_cast<const VirtualEvent*>(event.get());
  require(other != nullptr, "a simulated stream cannot wait for an event of a real device");
  TimedTask task;
  task.after.push_back(other->task());
  task.counts_as_exposed = reason == WaitReason::communication;
  timeline_->push(*queue_, std::move(task), false);
}

void VirtualStream::synchronize() { timeline_->await(*mark()); }

std::chrono::nanoseconds VirtualStream::exposed_communication() const {
  return std::chrono::nanoseconds(std::llround(timeline_->exposed(*queue_) * 1e9));
}

}  // namespace simulated
}  // namespace atoll_v1::atoll
