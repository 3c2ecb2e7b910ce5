#include "atoll/planner.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "core/errors.hpp"
#include "device/backend.hpp"
#include "device/ops.hpp"
#include "simulation/timeline.hpp"

namespace atoll_v1::atoll {
namespace simulated {
namespace {

// Addresses of simulated memory begin here and grow, far from the heap, libraries and stacks of a
// process, so that an access ends the process instead of reading other memory.
constexpr std::uintptr_t first_address = std::uintptr_t{1} << 46;
constexpr std::size_t alignment = 4096;

// Returns the rate of a kernel of the library in bytes per second.
double kernel_rate(const DeviceOptions& options, const char* name) {
  const auto found = options.kernel_gbyte_s.find(std::string_view(name));
  return 1e9 * (found == options.kernel_gbyte_s.end() ? options.memory_gbyte_s : found->second);
}

// A point in the work of a stream, which serves as an event and as a time stamp.
class SimulatedMark final : public EventBackend, public StampBackend {
 public:
  SimulatedMark(std::shared_ptr<Timeline> timeline, std::shared_ptr<TimedTask> task)
      : timeline_(std::move(timeline)), task_(std::move(task)) {}
  bool happened() const override { return timeline_->poll(*task_); }
  bool peek() const override { return timeline_->end_of(*task_).has_value(); }
  void synchronize() override { timeline_->await(*task_); }
  std::optional<std::int64_t> ns() const override {
    const auto end = timeline_->end_of(*task_);
    return end ? std::optional(std::llround(*end * 1e9)) : std::nullopt;
  }
  const std::shared_ptr<TimedTask>& task() const noexcept { return task_; }

 private:
  std::shared_ptr<Timeline> timeline_;
  std::shared_ptr<TimedTask> task_;
};

class SimulatedStream final : public StreamBackend {
 public:
  SimulatedStream(std::shared_ptr<Timeline> timeline, const DeviceOptions& options)
      : timeline_(std::move(timeline)),
        queue_(timeline_->add_queue()),
        copy_rate_(kernel_rate(options, "copy")),
        fill_rate_(kernel_rate(options, "fill")) {}
  ~SimulatedStream() override {
    try {
      timeline_->remove_queue(queue_);
    } catch (const std::exception&) {
      // Streams wait for each other in a cycle, which synchronize() reports, so it is ignored here.
    }
  }
  SimulatedStream(const SimulatedStream&) = delete;
  SimulatedStream& operator=(const SimulatedStream&) = delete;

  void run(TimedWork work) { timeline_->push(*queue_, {.work = std::move(work)}, true); }

  // The function is not called, since it would read memory that does not exist.
  void enqueue(std::function<void()>) override { run({.name = "host function"}); }
  void copy(void*, const void*, std::size_t bytes) override {
    run({.name = "copy",
         .seconds = 2 * static_cast<double>(bytes) / copy_rate_,
         .use = {.memory = 1}});
  }
  void fill(void*, std::byte, std::size_t bytes) override {
    run({.name = "fill", .seconds = static_cast<double>(bytes) / fill_rate_, .use = {.memory = 1}});
  }
  std::shared_ptr<EventBackend> record() override {
    return std::make_shared<SimulatedMark>(timeline_, mark());
  }
  std::shared_ptr<const StampBackend> stamp() override {
    return std::make_shared<SimulatedMark>(timeline_, mark());
  }
  void wait(std::shared_ptr<EventBackend> event, WaitReason reason) override {
    const auto* const other = dynamic_cast<const SimulatedMark*>(event.get());
    require(other != nullptr, "a simulated stream cannot wait for an event of a real device");
    timeline_->push(
        *queue_,
        {.after = {other->task()}, .counts_as_exposed = reason == WaitReason::communication},
        false);
  }
  void synchronize() override { timeline_->await(*mark()); }
  std::chrono::nanoseconds exposed_communication() const override {
    return std::chrono::nanoseconds(std::llround(timeline_->exposed(*queue_) * 1e9));
  }
  DeviceKind kind() const noexcept override { return DeviceKind::simulated; }
  void take_time(const ModelledWork& work) override {
    run({.name = std::string(work.name),
         .latency = work.latency,
         .seconds = work.seconds,
         .use = {.compute = work.compute, .intra = work.intra, .inter = work.inter}});
  }
  void* native() noexcept override { return nullptr; }

 private:
  std::shared_ptr<TimedTask> mark() { return timeline_->push(*queue_, {}, false); }

  std::shared_ptr<Timeline> timeline_;
  std::shared_ptr<Queue> queue_;
  double copy_rate_, fill_rate_;  // bytes per second
};

// The kernels of the library. Each takes the time of the bytes that it reads and writes at the
// bandwidth of the memory.
class SimulatedOps final : public DeviceOps {
 public:
  // `options` must outlive this object.
  explicit SimulatedOps(const DeviceOptions& options) : options_(options) {}

  void cast(Stream& stream, View dst, ConstView src) override {
    move(stream, "cast", dst.bytes() + src.bytes());
  }
  void dequantize(Stream& stream, View dst, ConstView blocks) override {
    move(stream, "dequantize", dst.bytes() + blocks.bytes());
  }
  void add(Stream& stream, View dst, ConstView src) override {
    move(stream, "add", 2 * dst.bytes() + src.bytes());
  }
  void scale(Stream& stream, View dst, ConstView src, double) override {
    move(stream, "scale", dst.bytes() + src.bytes());
  }
  void pack_rows(Stream& stream, View dst, ConstView src, const RowGrid& grid, double) override {
    move(stream, "pack_rows",
         dst.bytes() + grid.rows * grid.columns * grid.count * size_of(src.dtype));
  }
  void reduce(Stream& stream, View dst, ConstView parts, ReduceOp, int) override {
    move(stream, "reduce", dst.bytes() + parts.bytes());
  }
  void sum_squares(Stream& stream, View out, ConstView src) override {
    move(stream, "sum_squares", out.bytes() + src.bytes());
  }
  void clip_factor(Stream& stream, View result, ConstView blocks, ClipRule) override {
    move(stream, "clip_factor", result.bytes() + blocks.bytes());
  }
  void adamw(Stream& stream, const AdamWStep& step) override {
    move_in_blocks(stream, "adamw",
                   2 * (step.weights.bytes() + step.moment1.bytes() + step.moment2.bytes()) +
                       step.gradient.bytes() + step.weights_low.bytes(),
                   step.most_blocks);
  }
  void sgd(Stream& stream, const SgdStep& step) override {
    move_in_blocks(stream, "sgd",
                   2 * step.weights.bytes() + step.gradient.bytes() + step.weights_low.bytes(),
                   step.most_blocks);
  }
  void fill_normal(Stream& stream, View dst, const NormalFill&) override {
    move(stream, "fill_normal", dst.bytes());
  }

 private:
  void move(Stream& stream, const char* name, std::uint64_t bytes) const {
    simulated::run(stream, {.name = name,
                            .seconds = static_cast<double>(bytes) / kernel_rate(options_, name),
                            .use = {.compute = 1, .memory = 1}});
  }
  // Enqueues a kernel of few blocks, each of which holds a compute unit. Without units, as on CPUs,
  // the number of blocks has no effect.
  void move_in_blocks(Stream& stream, const char* name, std::uint64_t bytes,
                      unsigned blocks) const {
    if (blocks == 0 || options_.units == 0) return move(stream, name, bytes);
    const double whole = kernel_rate(options_, name);
    const double rate = std::min(blocks * bytes_per_s_of_block, whole);
    constexpr double nearly_all = 0.99;  // at 1, work shares the units instead of holding them
    const double held = std::min(nearly_all, blocks / static_cast<double>(options_.units));
    simulated::run(stream, {.name = name,
                            .seconds = static_cast<double>(bytes) / rate,
                            .use = {.compute = held, .memory = rate / whole}});
  }

  const DeviceOptions& options_;
};

class SimulatedDevice final : public DeviceBackend {
 public:
  explicit SimulatedDevice(DeviceOptions options)
      : DeviceBackend({.kind = DeviceKind::simulated,
                       .name = options.name,
                       .memory_bytes = options.memory_bytes,
                       .links = options.links}),
        options_(std::move(options)),
        timeline_(std::make_shared<Timeline>(options_.launch_seconds)),
        ops_(options_) {}

  void* allocate(std::size_t bytes) override {
    const std::size_t limit = options_.memory_bytes, used = allocations().now();
    require(limit == 0 || (bytes <= limit && used <= limit - bytes), ErrorCode::out_of_memory,
            "{}: cannot allocate {} bytes: {} of {} bytes are in use", options_.name, bytes, used,
            limit);
    const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    return reinterpret_cast<void*>(next_.fetch_add(rounded));
  }
  void deallocate(void*, std::size_t) noexcept override {}
  // Real memory, filled with zeros: the CPU reads results of kernels there, such as norms.
  void* allocate_staging(std::size_t bytes) override {
    void* const data = DeviceBackend::allocate_staging(bytes);
    std::memset(data, 0, bytes);
    return data;
  }
  std::unique_ptr<StreamBackend> make_stream(const StreamOptions&) override {
    return std::make_unique<SimulatedStream>(timeline_, options_);
  }
  DeviceOps& ops() noexcept override { return ops_; }

  Timeline& timeline() noexcept { return *timeline_; }

 private:
  DeviceOptions options_;
  std::shared_ptr<Timeline> timeline_;
  SimulatedOps ops_;
  std::atomic<std::uintptr_t> next_{first_address};  // next free address
};

SimulatedDevice& device_of(const Device& device) {
  auto* const found = dynamic_cast<SimulatedDevice*>(device.backend().get());
  require(found != nullptr, "the device {} is not simulated: make it with simulated::make_device()",
          device.name());
  return *found;
}

}  // namespace

Device make_device(DeviceOptions options) {
  const auto positive = [](double value) { return std::isfinite(value) && value > 0; };
  require(positive(options.memory_gbyte_s),
          "simulated::make_device: memory_gbyte_s is {}: pass a bandwidth above 0",
          options.memory_gbyte_s);
  for (const auto& [kernel, rate] : options.kernel_gbyte_s) {
    require(positive(rate),
            "simulated::make_device: kernel_gbyte_s of {} is {}: pass a rate above 0", kernel,
            rate);
  }
  require(options.units >= 0, "simulated::make_device: units is {}: pass 0 or more", options.units);
  require(options.launch_seconds == 0 || positive(options.launch_seconds),
          "simulated::make_device: launch_seconds is {}: pass 0 or more", options.launch_seconds);
  return Device(std::make_shared<SimulatedDevice>(std::move(options)));
}

void run(Stream& stream, TimedWork work) {
  auto* const found = dynamic_cast<SimulatedStream*>(&stream.backend());
  require(found != nullptr, "simulated::run: the stream {} is not of a simulated device",
          stream.name());
  const auto valid = [](double value) { return std::isfinite(value) && value >= 0; };
  require(valid(work.latency) && valid(work.seconds),
          "simulated::run: {} takes {} s after {} s: pass finite times of 0 or more", work.name,
          work.seconds, work.latency);
  require(
      work.crowded_speed > 0 && work.crowded_speed <= 1,
      "simulated::run: the crowded_speed of {} is {}: pass a part of its speed above 0, at most 1",
      work.name, work.crowded_speed);
  found->run(std::move(work));
}

double host_time(const Device& device) { return device_of(device).timeline().host_time(); }

void spend(const Device& device, double seconds) {
  require(std::isfinite(seconds) && seconds >= 0,
          "simulated::spend: {} s: pass a finite time of 0 or more", seconds);
  device_of(device).timeline().spend(seconds);
}

}  // namespace simulated

}  // namespace atoll_v1::atoll
