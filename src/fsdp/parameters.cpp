// Engine functions that read and write the values of parameters, one shard at a time.
#include <algorithm>
#include <vector>

#include "core/hash.hpp"
#include "device/host/kernels.hpp"
#include "device/ops.hpp"
#include "fsdp/engine_impl.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

std::uint64_t hash_name(std::string_view unit, std::string_view param) {
  return fnv1a(param, fnv1a("/", fnv1a(unit)));
}

// Fills values that are not f32, in pieces, so that the f32 scratch stays small.
void fill_narrow(const Device& device, Stream& stream, View values, NormalFill fill) {
  constexpr std::uint64_t most = 1 << 16;
  const Buffer wide = device.allocate(std::min(most, values.count) * sizeof(float));
  for (std::uint64_t at = 0; at < values.count; at += most) {
    const std::uint64_t n = std::min(most, values.count - at);
    device.ops().fill_normal(stream, wide.view(DType::f32).part(0, n), fill);
    device.ops().cast(stream, values.part(at, n), wide.view(DType::f32).part(0, n));
    fill.first += n;
  }
  stream.synchronize();
}

}  // namespace

std::vector<Segment> Engine::segments() const {
  std::vector<Segment> found;
  for (const auto& unit : impl_->setup.units) {
    const UnitState& state = state_of(*unit);
    for (std::size_t p = 0; p < state.params.size(); ++p) {
      const auto& [index, slot] = state.locations[p];
      const UnitBucket& bucket = state.buckets[index];
      const std::uint64_t n = bucket.layout.shard_elements();
      const std::uint64_t begin =
          n * static_cast<std::uint64_t>(impl_->setup.scheduler.shard_index());
      const std::uint64_t first = std::max(slot.offset, begin);
      const std::uint64_t last = std::min(slot.offset + slot.count, begin + n);
      if (first >= last) continue;
      found.push_back({unit.get(), &state.params[p], first - slot.offset,
                       bucket.master.part(first - begin, last - first)});
    }
  }
  return found;
}

void Engine::initialize(std::uint64_t seed) {
  const Device& device = impl_->setup.options.device;
  Stream& stream = impl_->setup.scheduler.stream(Lane::gather);
  impl_->pass.wait_idle(stream);
  for (const Segment& segment : segments()) {
    const NormalFill fill{seed, hash_name(segment.unit->name(), segment.param->name), segment.first,
                          segment.param->init.mean, segment.param->init.deviation};
    if (segment.values.dtype == DType::f32) {
      device.ops().fill_normal(stream, segment.values, fill);
      continue;
    }
    fill_narrow(device, stream, segment.values, fill);
  }
  refresh();
}

void Engine::assign(const std::function<void(const Segment&, std::span<float>)>& fill) {
  Stream& stream = impl_->setup.scheduler.stream(Lane::gather);
  impl_->pass.wait_idle(stream);
  std::vector<float> values;
  std::vector<std::byte> stored;
  try {
    for (const Segment& segment : segments()) {
      values.resize(segment.values.count);
      fill(segment, values);
      stored.resize(segment.values.bytes());
      host::cast({stored.data(), values.size(), segment.values.dtype}, values);
      stream.copy(segment.values.data, stored.data(), stored.size());
      stream.synchronize();  // `stored` is used again
    }
  } catch (...) {
    refresh();  // some masters are written
    throw;
  }
  refresh();
}

void Engine::refresh() {
  Stream& stream = impl_->setup.scheduler.stream(Lane::gather);
  impl_->pass.wait_idle(stream);
  parameters_changed(stream);
  stream.synchronize();
}

void Engine::visit(
    const std::function<void(const Unit&, const ParamSpec&, std::span<const float>)>& visit) {
  Stream& stream = impl_->setup.scheduler.stream(Lane::gather);
  impl_->gathering.wait_updated(stream);
  std::vector<std::vector<float>> values;  // one vector per bucket of the unit
  for (const auto& unit : impl_->setup.units) {
    const UnitState& state = state_of(*unit);
    values.resize(state.buckets.size());
    for (std::size_t b = 0; b < state.buckets.size(); ++b) {
      const UnitBucket& bucket = state.buckets[b];
      const Buffer whole = impl_->setup.options.device.allocate(bucket.layout.elements *
                                                                size_of(bucket.master.dtype));
      const View view = whole.view(bucket.master.dtype);
      impl_->setup.scheduler.all_gather(bucket.master, view, {}).synchronize();
      std::vector<std::byte> stored(whole.bytes());
      stream.copy(stored.data(), whole.data(), whole.bytes());
      stream.synchronize();
      values[b].resize(view.count);
      host::cast(values[b], ConstView(stored.data(), view.count, view.dtype));
    }
    for (std::size_t p = 0; p < state.params.size(); ++p) {
      const auto& [bucket, slot] = state.locations[p];
      visit(*unit, state.params[p], std::span(values[bucket]).subspan(slot.offset, slot.count));
    }
  }
}

}  // namespace atoll_v1::atoll::fsdp
