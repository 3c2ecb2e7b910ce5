#include "fsdp/setup.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cmath>
#include <set>

#include "core/log.hpp"
#include "core/terminal_safe.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

constexpr std::uint64_t most_unit_elements = std::uint64_t{1} << 48;

// Returns the number of elements, or more than most_unit_elements for an impossible shape.
std::uint64_t checked_count(const ParamSpec& param) {
  std::uint64_t count = 1;
  for (const std::int64_t extent : param.shape) {
    const bool fits =
        extent >= 0 &&
        (extent == 0 || count <= most_unit_elements / static_cast<std::uint64_t>(extent));
    if (!fits) return most_unit_elements + 1;
    count *= static_cast<std::uint64_t>(extent);
  }
  return count;
}

// Throws Error(invalid_argument) for a name that `what` cannot have.
void check_name(std::string_view call, std::string_view what, std::string_view name) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  require(!name.empty(), "{}: {} needs a name", call, what);
  require(std::ranges::none_of(name, is_control), "{}: the name of {} has a control character",
          call, what);
  require(!invalid_utf8(name), "{}: the name of {} is not valid UTF-8", call, what);
}

// Throws Error(invalid_argument) for initial values that no parameter can have.
void check_init(std::string_view unit, const ParamSpec& param) {
  const auto [mean, deviation] = param.init;
  require(
      std::isfinite(mean) && std::isfinite(deviation) && deviation >= 0,
      "add_unit({}): parameter {} has the initial mean {} and deviation {}: both must be finite, "
      "and the deviation 0 or above",
      unit, param.name, mean, deviation);
}

void check_params(std::string_view unit, const std::vector<ParamSpec>& params) {
  check_name("add_unit", "a unit", unit);
  const std::string call = fmt::format("add_unit({})", unit);
  if (params.empty()) throw invalid("add_unit({}): a unit needs at least one parameter", unit);
  std::set<std::string_view> names;
  std::uint64_t total = 0;
  for (const auto& param : params) {
    check_name(call, fmt::format("parameter {}", &param - params.data()), param.name);
    require(names.insert(param.name).second,
            "add_unit({}): two parameters have the name {}: choose another name for one of them",
            unit, param.name);
    check_init(unit, param);
    const std::uint64_t count = checked_count(param);
    total += count;
    if (param.dtype && !computes_in(*param.dtype)) {
      throw make_error(ErrorCode::unsupported,
                       "add_unit({}): parameter {} has dtype {}: use f32, bf16 or f16", unit,
                       param.name, atoll::name(*param.dtype));
    }
    require(!param.quantized || !param.trainable,
            "add_unit({}): parameter {} is quantized and trainable: only a frozen parameter can be "
            "kept in 8 bits",
            unit, param.name);
    require(
        count <= most_unit_elements && total <= most_unit_elements,
        "add_unit({}): parameter {} has the impossible shape {}: extents must be 0 or above, and "
        "a unit has at most {} elements",
        unit, param.name, fmt::join(param.shape, " x "), most_unit_elements);
  }
}

// Backends of GPUs leave sums of 16 bits and sums in a fixed order to the library. Then the lanes
// of reductions only move data, so they need no compute units if gathers need none.
ComputeUnits reduce_units(const Options& options, const Config& config) {
  const bool library_sums =
      size_of(options.precision.reduce) < sizeof(float) || config.deterministic != 0;
  const bool none = library_sums && options.gather_units == ComputeUnits::none;
  return none ? ComputeUnits::none : ComputeUnits::few;
}

}  // namespace

std::uint64_t ParamSpec::count() const noexcept {
  std::uint64_t product = 1;
  for (const std::int64_t extent : shape) product *= static_cast<std::uint64_t>(extent);
  return product;
}

Unit::Unit(std::unique_ptr<UnitState> state) : state_(std::move(state)) {}
Unit::~Unit() = default;
const std::string& Unit::name() const noexcept { return state_->name; }
const std::vector<ParamSpec>& Unit::params() const noexcept { return state_->params; }

std::uint64_t Unit::count() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& param : state_->params) sum += param.count();
  return sum;
}

std::string UnitBucket::label() const {
  return fmt::format("{}{}{}", trainable ? "" : "frozen ", atoll::name(dtype),
                     quantized ? " in int8" : "");
}

std::size_t UnitState::find(std::string_view param) const {
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i].name == param) return i;
  }
  throw make_error(ErrorCode::not_found, "unit {} has no parameter \"{}\"", name, param);
}

UnitState::UnitState(std::string_view name_, std::size_t index_, std::vector<ParamSpec> params_,
                     DType param_dtype, std::uint64_t shards)
    : name(name_), index(index_), params(std::move(params_)) {
  check_params(name, params);
  // Buckets are ordered by the first parameter of each.
  std::vector<std::vector<std::uint64_t>> counts;
  std::vector<std::size_t> index_in_bucket;
  for (const ParamSpec& param : params) {
    const DType dtype = param.dtype.value_or(param_dtype);
    const auto found = std::ranges::find_if(buckets, [&](const UnitBucket& bucket) {
      return bucket.dtype == dtype && bucket.trainable == param.trainable &&
             bucket.quantized == param.quantized;
    });
    const auto bucket_index = static_cast<std::size_t>(found - buckets.begin());
    if (found == buckets.end()) {
      UnitBucket& bucket = buckets.emplace_back();
      bucket.dtype = dtype;
      bucket.trainable = param.trainable;
      bucket.quantized = param.quantized;
      counts.emplace_back();
    }
    locations.push_back({bucket_index, {}});
    index_in_bucket.push_back(counts[bucket_index].size());
    counts[bucket_index].push_back(param.count());
  }
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    UnitBucket& bucket = buckets[b];
    bucket.layout = plan_bucket(counts[b], shards);
    bucket.gathered_offset = size.gathered;
    bucket.gradient_offset = size.gradient / sizeof(float);
    size.gathered += bucket.layout.elements * size_of(bucket.dtype);
    if (bucket.trainable) size.gradient += bucket.layout.elements * sizeof(float);
  }
  for (std::size_t p = 0; p < locations.size(); ++p) {
    Location& location = locations[p];
    location.slot = buckets[location.bucket].layout.slots[index_in_bucket[p]];
  }
}

EngineSetup::EngineSetup(const Mesh& mesh, Options options_)
    : options(std::move(options_)),
      ranks(mesh.world(), mesh.axis("world").ranks),
      sharding(sharding_of(mesh, options)),
      scheduler(sharding.shard, sharding.replicate,
                {.device = options.device,
                 .secondary = sharding.secondary,
                 .backend = options.backend,
                 .root = mesh.axis("world"),
                 .gather_units = options.gather_units,
                 .reduce_units = reduce_units(options, mesh.world().config())}) {
  options.device = scheduler.device();
  if (!world().config().check.empty() && world().rank() == 0) {
    log::info("ATOLL_CHECK={}: every use of device memory is checked, so steps take longer",
              world().config().check);
  }
}

void EngineSetup::set_zero(const Buffer& buffer) {
  Stream& stream = scheduler.stream(Lane::gather);
  stream.zero(buffer.data(), buffer.bytes());
  stream.synchronize();
}

void EngineSetup::check_planned(std::string_view call) const {
  require(sealed, "{}: call Engine::seal() first", call);
}

void EngineSetup::check_sealed(std::string_view call) const {
  check_planned(call);
  require(!options.plan_only, "{}: the engine plans memory alone (Options::plan_only)", call);
}

void EngineSetup::begin_fill(const Segment& segment) {
  unfilled = fmt::format("parameter {} of unit {}", segment.param->name, segment.unit->name());
}

void EngineSetup::check_no_live_save(std::string_view call) const {
  require(!is_saving,
          "{}: the save that save_beside() has begun is not over: call finish() of its PendingSave "
          "first",
          call);
}

void EngineSetup::end_live_save() {
  if (!live_save) return;
  try {
    live_save->wait();
  } catch (...) {
    return;  // PendingSave::finish() throws the error
  }
}

void EngineSetup::end_saving() {
  live_save.reset();
  is_saving = false;
}

void EngineSetup::check_values(std::string_view call) const {
  require(has_values,
          "{}: {} no values: call initialize(), assign(), load() or import_weights() first, or "
          "refresh() after writing Segment::values",
          call, unfilled.empty() ? "the parameters have" : unfilled + " has");
}

}  // namespace atoll_v1::atoll::fsdp
