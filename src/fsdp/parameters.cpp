// Values of parameters going in and out, a shard at a time.
#include <algorithm>
#include <vector>

#include "core/hash.hpp"
#include "device/ops.hpp"
#include "fsdp/engine_impl.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

std::uint64_t hash_name(std::string_view unit, std::string_view param) {
  return fnv1a(param, fnv1a("/", fnv1a(unit)));
}

}  // namespace

std::vector<Segment> Engine::segments() const {
  std::vector<Segment> found;
  for (const auto& unit : impl_->units) {
    const Unit::State& state = unit->state();
    const std::uint64_t n = state.layout.shard_elements();
    const std::uint64_t begin = n * static_cast<std::uint64_t>(impl_->scheduler.shard_index());
    for (std::size_t p = 0; p < state.params.size(); ++p) {
      const BucketSlot& slot = state.layout.slots[p];
      const std::uint64_t first = std::max(slot.offset, begin);
      const std::uint64_t last = std::min(slot.offset + slot.count, begin + n);
      if (first >= last) continue;
      found.push_back({unit.get(), &state.params[p], first - slot.offset,
                       state.master.part(first - begin, last - first)});
    }
  }
  return found;
}

void Engine::initialize(std::uint64_t seed) {
  Stream& stream = impl_->scheduler.stream(Lane::gather);
  impl_->wait_idle_parameters(stream);
  for (const Segment& segment : segments()) {
    const NormalFill fill{seed, hash_name(segment.unit->name(), segment.param->name), segment.first,
                          segment.param->init.mean, segment.param->init.deviation};
    impl_->options.device.ops().fill_normal(stream, segment.values, fill);
  }
  refresh();
}

void Engine::assign(const std::function<void(const Segment&, std::span<float>)>& fill) {
  Stream& stream = impl_->scheduler.stream(Lane::gather);
  impl_->wait_idle_parameters(stream);
  std::vector<float> values;
  for (const Segment& segment : segments()) {
    values.resize(segment.values.count);
    fill(segment, values);
    stream.copy(segment.values.data, values.data(), segment.values.bytes());
    stream.synchronize();  // `values` is used again
  }
  refresh();
}

void Engine::refresh() {
  Stream& stream = impl_->scheduler.stream(Lane::gather);
  impl_->wait_idle_parameters(stream);
  for (const auto& unit : impl_->units) {
    const Unit::State& state = unit->state();
    if (state.low.count) impl_->options.device.ops().cast(stream, state.low, state.master);
  }
  stream.synchronize();
}

void Engine::visit(
    const std::function<void(const Unit&, const ParamSpec&, std::span<const float>)>& visit) {
  Stream& stream = impl_->scheduler.stream(Lane::gather);
  stream.wait(impl_->parameters_ready);
  std::vector<float> values;
  for (const auto& unit : impl_->units) {
    const Unit::State& state = unit->state();
    const Buffer whole = impl_->options.device.allocate(state.layout.elements * sizeof(float));
    impl_->scheduler.all_gather(state.master, whole.view(DType::f32), {}).synchronize();
    values.resize(state.layout.elements);
    stream.copy(values.data(), whole.data(), whole.bytes());
    stream.synchronize();
    for (std::size_t p = 0; p < state.params.size(); ++p) {
      const BucketSlot& slot = state.layout.slots[p];
      visit(*unit, state.params[p], std::span(values).subspan(slot.offset, slot.count));
    }
  }
}

}  // namespace atoll_v1::atoll::fsdp
