#include "fsdp/unit.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "core/errors.hpp"
#include "core/terminal_safe.hpp"
#include "fsdp/strategy.hpp"

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

bool is_plain(std::string_view name) {
  return std::ranges::none_of(name, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
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
  if (unit.empty()) throw invalid("add_unit: a unit needs a name");
  require(is_plain(unit), "add_unit: the name of a unit has a control character");
  require(!invalid_utf8(unit), "add_unit: the name of a unit is not valid UTF-8");
  if (params.empty()) throw invalid("add_unit({}): a unit needs at least one parameter", unit);
  std::set<std::string_view> names;
  std::uint64_t total = 0;
  for (const auto& param : params) {
    if (param.name.empty())
      throw invalid("add_unit({}): parameter {} needs a name", unit, &param - params.data());
    require(is_plain(param.name), "add_unit({}): the name of parameter {} has a control character",
            unit, &param - params.data());
    require(!invalid_utf8(param.name), "add_unit({}): the name of parameter {} is not valid UTF-8",
            unit, &param - params.data());
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

}  // namespace atoll_v1::atoll::fsdp
