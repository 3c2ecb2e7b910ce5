#include "device/checked/device.hpp"

#include <initializer_list>
#include <mutex>
#include <set>
#include <utility>

#include "core/limits.hpp"
#include "device/backend.hpp"
#include "device/checked/guard.hpp"
#include "device/checked/lifetimes.hpp"
#include "device/ops.hpp"

namespace atoll_v1::atoll {
namespace checked {
namespace {

// True while this thread runs a task of a checked stream. Calls made by a task do not count as
// calls of the host, because a task runs at no defined point of the host's order.
thread_local bool in_task = false;

class TaskMark {
 public:
  TaskMark() : before_(std::exchange(in_task, true)) {}
  TaskMark(const TaskMark&) = delete;
  TaskMark& operator=(const TaskMark&) = delete;
  ~TaskMark() { in_task = before_; }

 private:
  bool before_;
};

// The host counts as synchronized with a point of a stream even if the stream failed, because no
// work before the point is still running.
template <class Waitable>
void synchronize_host(Waitable& inner, Lifetimes& lifetimes, const Clock& clock) {
  try {
    inner.synchronize();
  } catch (...) {
    lifetimes.synchronized(clock);
    throw;
  }
  lifetimes.synchronized(clock);
  lifetimes.check();
}

class CheckedEvent final : public EventBackend {
 public:
  CheckedEvent(std::shared_ptr<EventBackend> inner, std::shared_ptr<Lifetimes> lifetimes,
               Clock clock)
      : inner_(std::move(inner)), lifetimes_(std::move(lifetimes)), clock_(std::move(clock)) {}
  bool happened() const override {
    if (!inner_->happened()) return false;
    if (!in_task) lifetimes_->synchronized(clock_);
    return true;
  }
  bool peek() const override { return inner_->peek(); }
  bool then(std::function<void()> callback) override { return inner_->then(std::move(callback)); }
  void synchronize() override {
    if (in_task) return inner_->synchronize();
    synchronize_host(*inner_, *lifetimes_, clock_);
  }
  void fail(std::exception_ptr error) override { inner_->fail(std::move(error)); }
  void delay_native(void* stream) override { inner_->delay_native(stream); }
  const std::shared_ptr<EventBackend>& inner() const noexcept { return inner_; }
  const Clock& clock() const noexcept { return clock_; }
  bool is_of(const std::shared_ptr<Lifetimes>& lifetimes) const { return lifetimes_ == lifetimes; }

 private:
  std::shared_ptr<EventBackend> inner_;
  std::shared_ptr<Lifetimes> lifetimes_;
  Clock clock_;
};

class CheckedStream final : public StreamBackend {
 public:
  CheckedStream(std::unique_ptr<StreamBackend> inner, std::shared_ptr<Lifetimes> lifetimes,
                const std::string& name)
      : StreamBackend(true),
        inner_(std::move(inner)),
        lifetimes_(std::move(lifetimes)),
        party_(lifetimes_->add_stream(name)) {}
  ~CheckedStream() override {
    inner_.reset();
    lifetimes_->synchronized(lifetimes_->record(party_));
  }

  void enqueue(std::function<void()> work) override {
    lifetimes_->check();
    inner_->enqueue([work = std::move(work)] {
      const TaskMark mark;
      work();
    });
  }
  void copy(void* dst, const void* src, std::size_t bytes) override {
    use(src, bytes, Access::read, {"copy"}, {});
    use(dst, bytes, Access::write, {"copy"}, {});
    inner_->copy(dst, src, bytes);
  }
  void fill(void* dst, std::byte value, std::size_t bytes) override {
    use(dst, bytes, Access::write, {value == std::byte{0} ? "zero" : "fill"}, {});
    inner_->fill(dst, value, bytes);
  }
  std::shared_ptr<EventBackend> record() override { return event(inner_->record()); }
  std::shared_ptr<EventBackend> enqueue_and_record(Task work) override {
    lifetimes_->check();
    return event(inner_->enqueue_and_record([work = std::move(work)]() mutable {
      const TaskMark mark;
      work();
    }));
  }
  void wait(std::shared_ptr<EventBackend> event, WaitReason reason) override {
    const auto* known = dynamic_cast<const CheckedEvent*>(event.get());
    if (!known || !known->is_of(lifetimes_)) {
      lifetimes_->report(
          "a stream waits for an event of another device: take all streams from Engine::device() "
          "or Scheduler::device()");
    }
    inner_->wait(known->inner(), reason);
    lifetimes_->wait(party_, known->clock());
  }
  void synchronize() override {
    synchronize_host(*inner_, *lifetimes_, lifetimes_->record(party_));
  }
  std::chrono::nanoseconds exposed_communication() const override {
    return inner_->exposed_communication();
  }
  void* native() noexcept override { return inner_->native(); }
  void launch(const std::function<void(void*)>& work) override {
    lifetimes_->check();
    inner_->launch(work);
  }
  void record_native(void* event) override { inner_->record_native(event); }
  void wait_native(void* event) override {
    inner_->wait_native(event);
    lifetimes_->wait_for_unknown(party_);
  }
  std::uint64_t begin_range(const Label& label) override { return inner_->begin_range(label); }
  void end_range(std::uint64_t number) noexcept override { inner_->end_range(number); }
  void use(const void* data, std::size_t bytes, Access access, Label by, Label content) override {
    lifetimes_->use(party_, {data, bytes}, access, by, content);
  }
  bool is_behind(const Clock& event) const { return lifetimes_->record(party_).includes(event); }
  void hold(void* data, std::size_t bytes, Label content) override {
    lifetimes_->hold(party_, {data, bytes}, content);
    if (content.what.empty() && bytes > 0) inner_->fill(data, std::byte{0xff}, bytes);
  }

 private:
  std::shared_ptr<EventBackend> event(std::shared_ptr<EventBackend> inner) {
    return std::make_shared<CheckedEvent>(std::move(inner), lifetimes_, lifetimes_->record(party_));
  }

  std::unique_ptr<StreamBackend> inner_;
  std::shared_ptr<Lifetimes> lifetimes_;
  Party party_;
};

void declare(Stream& stream, std::string_view kernel, std::initializer_list<ConstView> reads,
             std::initializer_list<ConstView> writes) {
  for (const ConstView& view : reads) stream.use(view, Access::read, kernel);
  for (const ConstView& view : writes) stream.use(view, Access::write, kernel);
}

ConstView one(const double* value) { return {value, value ? std::uint64_t{1} : 0, DType::f64}; }

// Declares the memory of each kernel to the checker, then starts the kernel on `inner`.
class CheckedOps final : public DeviceOps {
 public:
  explicit CheckedOps(DeviceOps& inner) : inner_(inner) {}

  void cast(Stream& stream, View dst, ConstView src) override {
    declare(stream, "cast", {src}, {dst});
    inner_.cast(stream, dst, src);
  }
  void dequantize(Stream& stream, View dst, ConstView blocks) override {
    declare(stream, "dequantize", {blocks}, {dst});
    inner_.dequantize(stream, dst, blocks);
  }
  void add(Stream& stream, View dst, ConstView src) override {
    declare(stream, "add", {src}, {dst});
    inner_.add(stream, dst, src);
  }
  void scale(Stream& stream, View dst, ConstView src, double factor) override {
    declare(stream, "scale", {src}, {dst});
    inner_.scale(stream, dst, src, factor);
  }
  void pack_rows(Stream& stream, View dst, ConstView src, const RowGrid& grid,
                 double factor) override {
    declare(stream, "pack_rows", {src}, {dst});
    inner_.pack_rows(stream, dst, src, grid, factor);
  }
  void reduce(Stream& stream, View dst, ConstView parts, ReduceOp op, int block) override {
    declare(stream, "reduce", {parts}, {dst});
    inner_.reduce(stream, dst, parts, op, block);
  }
  void sum_squares(Stream& stream, View out, ConstView src) override {
    declare(stream, "sum_squares", {src}, {out});
    inner_.sum_squares(stream, out, src);
  }
  void clip_factor(Stream& stream, View result, ConstView blocks, ClipRule rule) override {
    declare(stream, "clip_factor", {blocks}, {result});
    inner_.clip_factor(stream, result, blocks, rule);
  }
  void adamw(Stream& stream, const AdamWStep& step) override {
    declare(stream, "adamw", {step.gradient, one(step.steps), one(step.scale)},
            {step.weights, step.moment1, step.moment2, step.weights_low});
    inner_.adamw(stream, step);
  }
  void sgd(Stream& stream, const SgdStep& step) override {
    declare(stream, "sgd", {step.gradient, one(step.scale)}, {step.weights, step.weights_low});
    inner_.sgd(stream, step);
  }
  void fill_normal(Stream& stream, View dst, const NormalFill& fill) override {
    declare(stream, "fill_normal", {}, {dst});
    inner_.fill_normal(stream, dst, fill);
  }

 private:
  DeviceOps& inner_;
};

class CheckedDevice final : public DeviceBackend {
 public:
  CheckedDevice(std::shared_ptr<DeviceBackend> inner, std::optional<int> rank)
      : DeviceBackend(inner->info()),
        inner_(std::move(inner)),
        lifetimes_(std::make_shared<Lifetimes>(rank)),
        ops_(inner_->ops()) {}

  void* allocate(std::size_t bytes) override {
    if (is_host()) require_free_memory(bytes);
    void* data = is_host() ? allocate_shared(bytes) : inner_->allocate(bytes);
    const auto stream = inner_->make_stream({.name = "fill"});
    stream->fill(data, std::byte{0xff}, bytes);  // bytes that are NaN in every floating-point type
    stream->synchronize();
    return data;
  }
  void deallocate(void* data, std::size_t bytes) noexcept override {
    if (is_kept(data)) return;
    is_host() ? free_shared(data, bytes) : inner_->deallocate(data, bytes);
  }
  void* allocate_staging(std::size_t bytes) override { return inner_->allocate_staging(bytes); }
  void deallocate_staging(void* data) noexcept override { inner_->deallocate_staging(data); }
  void adopt(void* data, std::size_t bytes) override {
    inner_->adopt(data, bytes);
    lifetimes_->allocated({data, bytes});
  }
  void disown(void* data, std::size_t bytes) noexcept override {
    if (!lifetimes_->freed(data, in_task ? Lifetimes::By::task : Lifetimes::By::host)) keep(data);
    inner_->disown(data, bytes);
  }
  std::shared_ptr<GuardedMapping> guard(void* data, std::size_t bytes, GuardRule rule) override {
    if (!is_host() || bytes == 0) return nullptr;
    return map_guarded({data, bytes}, std::move(rule), lifetimes_);
  }
  AllocationCount& allocations() noexcept override { return inner_->allocations(); }
  std::unique_ptr<StreamBackend> make_stream(const StreamOptions& options) override {
    return std::make_unique<CheckedStream>(inner_->make_stream(options), lifetimes_, options.name);
  }
  std::unique_ptr<StreamBackend> wrap_stream(void* native, const StreamOptions& options) override {
    return std::make_unique<CheckedStream>(inner_->wrap_stream(native, options), lifetimes_,
                                           options.name);
  }
  DeviceOps& ops() noexcept override { return ops_; }

 private:
  bool is_host() const noexcept { return info().kind == DeviceKind::cpu; }
  // Memory that is freed too early stays mapped, so that the running use ends normally and the
  // process lives to report the error.
  void keep(void* data) noexcept {
    const std::lock_guard lock(mutex_);
    kept_.insert(data);
  }
  bool is_kept(void* data) const noexcept {
    const std::lock_guard lock(mutex_);
    return kept_.contains(data);
  }

  mutable std::mutex mutex_;
  std::set<const void*> kept_;  // memory that a stream may have used when the host freed it
  std::shared_ptr<DeviceBackend> inner_;
  std::shared_ptr<Lifetimes> lifetimes_;
  CheckedOps ops_;
};

}  // namespace
}  // namespace checked

Device checked_device(const Device& device, std::optional<int> rank) {
  if (dynamic_cast<const checked::CheckedDevice*>(device.backend().get())) return device;
  return Device(std::make_shared<checked::CheckedDevice>(device.backend(), rank));
}

bool is_behind(const StreamBackend& stream, const EventBackend& event) {
  return dynamic_cast<const checked::CheckedStream&>(stream).is_behind(
      dynamic_cast<const checked::CheckedEvent&>(event).clock());
}

bool is_behind(const EventBackend& later, const EventBackend& event) {
  return dynamic_cast<const checked::CheckedEvent&>(later).clock().includes(
      dynamic_cast<const checked::CheckedEvent&>(event).clock());
}

}  // namespace atoll_v1::atoll
