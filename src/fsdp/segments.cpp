// This rank's parts of the parameters, their values, and the states that Engine::add_state() adds
// to them.

#include <fmt/core.h>

#include <algorithm>
#include <cctype>

#include "atoll/rank_set.hpp"
#include "core/errors.hpp"
#include "core/parse.hpp"
#include "device/cpu/kernels.hpp"
#include "device/int8_blocks.hpp"
#include "device/ops.hpp"
#include "fsdp/pass_state.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

static_assert(bucket_alignment % int8_block == 0 && bucket_granularity % int8_block == 0,
              "a block of 8-bit integers must not span two parameters or two shards");

// The elements of a bucket that this rank owns.
struct Shard {
  std::uint64_t begin, end;
  bool overlaps(const BucketSlot& slot) const {
    return std::max(slot.offset, begin) < std::min(slot.offset + slot.count, end);
  }
};

Shard shard_of(const EngineSetup& setup, const UnitBucket& bucket) {
  const std::uint64_t n = bucket.layout.shard_elements();
  const auto index = static_cast<std::uint64_t>(setup.scheduler.shard_index());
  return {n * index, n * (index + 1)};
}

void check_state_name(const EngineSetup& setup, std::string_view name) {
  setup.check_planned("add_state");
  require(!name.empty(), "add_state: a state needs a name");
  const auto is_allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  };
  require(std::ranges::all_of(name, is_allowed),
          "add_state({}): a name may contain only letters, digits, '_', '-' and '.'", name);
  require(!setup.states.contains(name), "add_state({}): the name is already in use", name);
}

using Counts = std::vector<std::vector<std::uint64_t>>;

constexpr std::uint64_t most_param_elements = std::uint64_t{1} << 44;  // 64 TiB of f32

Counts counts_of(const EngineSetup& setup, std::string_view name,
                 const std::function<std::uint64_t(const Unit&, const ParamSpec&)>& elements) {
  Counts counts;
  for (const auto& unit : setup.units) {
    auto& of_unit = counts.emplace_back();
    for (const ParamSpec& param : unit->params()) {
      of_unit.push_back(elements(*unit, param));
      require(of_unit.back() <= most_param_elements,
              "add_state({}): {} elements for parameter {} of unit {} are too many", name,
              of_unit.back(), param.name, unit->name());
    }
  }
  return counts;
}

// Allocates f32 memory for a state, with zeros. If a rank lacks memory, all ranks throw its error.
Buffer allocate_on_all(EngineSetup& setup, std::uint64_t elements) {
  Buffer memory;
  agree(setup.ranks, "add_state", [&]() -> std::vector<Declaration> {
    memory = setup.options.device.allocate(elements * sizeof(float));
    return {};
  });
  setup.set_zero(memory);
  return memory;
}

// Calls visit(unit, parameter) for each parameter of which this rank has trainable elements.
template <class Visit>
void each_trained(const EngineSetup& setup, const Visit& visit) {
  for (const auto& unit : setup.units) {
    const UnitState& state = state_of(*unit);
    for (std::size_t p = 0; p < state.params.size(); ++p) {
      const UnitBucket& bucket = state.buckets[state.locations[p].bucket];
      if (bucket.trainable && shard_of(setup, bucket).overlaps(state.locations[p].slot))
        visit(state.index, p);
    }
  }
}

// Sets the elements of a segment that the engine does not keep in f32 to initial values, `most`
// elements at a time.
void initialize_narrow(const Device& device, Stream& stream, const Segment& segment,
                       NormalFill fill) {
  // A multiple of the number of values in a block of 8-bit integers.
  constexpr std::uint64_t most = 1 << 16;
  static_assert(most % int8_block == 0);
  const Buffer wide = device.allocate(std::min(most, segment.count) * sizeof(float));
  std::vector<float> values;
  SegmentWriter writer(stream);
  for (std::uint64_t at = 0; at < segment.count; at += most) {
    const std::uint64_t n = std::min(most, segment.count - at);
    device.ops().fill_normal(stream, wide.view(DType::f32).part(0, n), fill);
    fill.first += n;
    values.resize(n);
    stream.copy(values.data(), wide.data(), n * sizeof(float));
    stream.synchronize();
    writer.write(segment, at, values);
  }
}

}  // namespace

std::uint64_t gradient_elements(const EngineSetup& setup) {
  std::uint64_t sum = 0;
  for (const auto& unit : setup.units) {
    for (const UnitBucket& bucket : state_of(*unit).buckets) sum += bucket.gradient_elements();
  }
  return sum;
}

BucketParts cut_by_bucket(const EngineSetup& setup, const Buffer& memory, DType dtype) {
  BucketParts parts;
  std::uint64_t offset = 0;
  for (const auto& unit : setup.units) {
    auto& of_unit = parts.emplace_back();
    for (const UnitBucket& bucket : state_of(*unit).buckets) {
      of_unit.push_back(memory.view(dtype).part(offset, bucket.gradient.count));
      offset += bucket.gradient.count;
    }
  }
  return parts;
}

std::vector<Segment> Engine::segments() const {
  const EngineSetup& setup = EngineAccess::setup(*this);
  setup.check_sealed("segments");
  std::vector<Segment> found;
  for (const auto& unit : setup.units) {
    const UnitState& state = state_of(*unit);
    for (std::size_t p = 0; p < state.params.size(); ++p) {
      const auto& [index, slot] = state.locations[p];
      const UnitBucket& bucket = state.buckets[index];
      const auto [begin, end] = shard_of(setup, bucket);
      const std::uint64_t first = std::max(slot.offset, begin);
      const std::uint64_t last = std::min(slot.offset + slot.count, end);
      if (first >= last) continue;
      Segment segment{unit.get(), &state.params[p], first - slot.offset, last - first, {}, {}, {}};
      if (bucket.quantized) {
        // Slots and shards begin at block boundaries, so element counts convert to whole blocks.
        segment.blocks = bucket.master.part(int8_bytes(first - begin), int8_bytes(segment.count));
      } else {
        segment.values = bucket.master.part(first - begin, segment.count);
      }
      if (bucket.trainable) segment.gradient = bucket.gradient.part(first - begin, segment.count);
      found.push_back(segment);
    }
  }
  return found;
}

void Engine::add_state(std::string_view name) {
  EngineSetup& setup = EngineAccess::setup(*this);
  const OneThread one(setup.calling, "add_state");
  agree(setup.ranks, "add_state", [&]() -> std::vector<Declaration> {
    check_state_name(setup, name);
    return {{"the name of the state", "\"" + std::string(name) + "\""}};
  });
  OwnState state;
  const std::uint64_t elements = gradient_elements(setup);
  if (!setup.options.plan_only) {
    state.memory = allocate_on_all(setup, elements);
    state.parts = cut_by_bucket(setup, state.memory, DType::f32);
  }
  memory().optimizer += elements * sizeof(float);
  setup.states.emplace(name, std::move(state));
}

void Engine::add_state(
    std::string_view name,
    const std::function<std::uint64_t(const Unit&, const ParamSpec&)>& elements) {
  EngineSetup& setup = EngineAccess::setup(*this);
  const OneThread one(setup.calling, "add_state");
  OwnState state;
  agree(setup.ranks, "add_state", [&] {
    check_state_name(setup, name);
    require(elements != nullptr, "add_state({}): `elements` is an empty function", name);
    state.counts = counts_of(setup, name, elements);
    std::vector<Declaration> all{{"the name of the state", "\"" + std::string(name) + "\""}};
    for (const auto& unit : setup.units) {
      for (std::size_t p = 0; p < unit->params().size(); ++p) {
        all.push_back({fmt::format("the elements of state {} for parameter {} of unit {}", name,
                                   unit->params()[p].name, unit->name()),
                       std::to_string(state.counts[state_of(*unit).index][p])});
      }
    }
    return all;
  });
  std::uint64_t sum = 0;
  each_trained(setup, [&](std::size_t unit, std::size_t p) { sum += state.counts[unit][p]; });
  if (!setup.options.plan_only) {
    state.memory = allocate_on_all(setup, sum);
    for (const auto& unit : setup.units) state.wholes.emplace_back(unit->params().size());
    std::uint64_t offset = 0;
    each_trained(setup, [&](std::size_t unit, std::size_t p) {
      state.wholes[unit][p] = state.memory.view(DType::f32).part(offset, state.counts[unit][p]);
      offset += state.counts[unit][p];
    });
  }
  memory().optimizer += sum * sizeof(float);
  setup.states.emplace(name, std::move(state));
}

View Engine::state(const Segment& segment, std::string_view name) const {
  const EngineSetup& setup = EngineAccess::setup(*this);
  const auto found = setup.states.find(name);
  require(found != setup.states.end(), ErrorCode::not_found,
          "the engine has no state \"{}\": call Engine::add_state() first", name);
  require(segment.unit != nullptr && segment.param != nullptr,
          "state({}): the segment is empty: pass a segment of Engine::segments()", name);
  require(
      setup.has_unit(*segment.unit),
      "state({}): the segment is not one of this engine, or its engine has been destroyed: pass "
      "a segment of Engine::segments() of this engine",
      name);
  const UnitState& unit = state_of(*segment.unit);
  const std::size_t param = unit.find(segment.param->name);
  if (!found->second.wholes.empty()) return found->second.wholes[unit.index][param];
  const auto& [index, slot] = unit.locations[param];
  const UnitBucket& bucket = unit.buckets[index];
  if (!bucket.trainable) return {};
  return found->second.parts[unit.index][index].part(
      slot.offset + segment.first - shard_of(setup, bucket).begin, segment.count);
}

void SegmentWriter::write(const Segment& segment, std::uint64_t at, std::span<const float> values) {
  if (values.empty()) return;
  if (!segment.param->quantized) return write(segment.values.part(at, values.size()), values);
  const View into = segment.blocks.part(int8_bytes(at), int8_bytes(values.size()));
  stored_.resize(into.bytes());
  cpu::quantize(stored_.data(), values);
  stream_.copy(into.data, stored_.data(), stored_.size());
  stream_.synchronize();  // the copy must end before the next call overwrites `stored_`
}

void SegmentWriter::write(View into, std::span<const float> values) {
  const void* source = values.data();
  if (into.dtype != DType::f32) {
    stored_.resize(into.bytes());
    cpu::cast({stored_.data(), into.count, into.dtype}, values);
    source = stored_.data();
  }
  stream_.copy(into.data, source, into.bytes());
  stream_.synchronize();
}

void Engine::initialize(std::uint64_t seed) {
  EngineSetup& setup = EngineAccess::setup(*this);
  const OneThread one(setup.calling, "initialize");
  agree(setup.ranks, "initialize", [&]() -> std::vector<Declaration> {
    setup.check_sealed("initialize");
    return {{"the seed", fmt::format("{}", seed)}};
  });
  Stream& stream = setup.scheduler.stream(Lane::gather);
  EngineAccess::pass(*this).wait_idle(stream);
  setup.end_live_save();
  for (const Segment& segment : segments()) {
    const auto [mean, deviation] = segment.param->init;
    const std::string_view unit = segment.unit->name();
    const NormalFill fill{seed, fnv1a(segment.param->name, fnv1a("/", fnv1a(unit))), segment.first,
                          mean, deviation};
    if (segment.values.count > 0 && segment.values.dtype == DType::f32) {
      setup.ops().fill_normal(stream, segment.values, fill);
    } else {
      initialize_narrow(device(), stream, segment, fill);
    }
  }
  refresh();
}

}  // namespace atoll_v1::atoll::fsdp
