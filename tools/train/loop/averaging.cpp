#include "loop/averaging.hpp"

#include <algorithm>
#include <utility>

namespace train {
namespace {

namespace fsdp = atoll::fsdp;

constexpr const char* state_name = "average";
// Elements that swap() exchanges at once.
constexpr std::uint64_t averaged_at_once = std::uint64_t{1} << 22;

}  // namespace

Averaging::Averaging(fsdp::Engine& engine, std::shared_ptr<muon::Arithmetic> arithmetic,
                     double decay)
    : engine_(engine),
      arithmetic_(std::move(arithmetic)),
      decay_(decay),
      stream_(engine.device().stream({.name = "average"})) {
  engine.add_state(state_name);
}

template <class Visit>
void Averaging::each(const Visit& visit) const {
  for (const fsdp::Segment& segment : engine_.segments()) {
    const atoll::View average = engine_.state(segment, state_name);
    if (average.count > 0) visit(segment.values, average);
  }
}

void Averaging::start() {
  each([&](const atoll::View& weights, const atoll::View& average) {
    stream_.copy(average.data, weights.data, weights.bytes());
  });
  stream_.synchronize();
}

void Averaging::update(atoll::Stream& compute, std::int64_t steps) {
  const auto n = static_cast<double>(steps);
  const double keep = std::min(decay_, (1 + n) / (10 + n));
  each([&](const atoll::View& weights, const atoll::View& average) {
    arithmetic_->combine(compute, average, static_cast<float>(keep), weights,
                         static_cast<float>(1 - keep));
  });
  updated_ = compute.record();
}

void Averaging::swap() {
  const atoll::Buffer scratch = engine_.device().allocate(averaged_at_once * sizeof(float));
  stream_.wait(updated_);
  each([&](const atoll::View& weights, const atoll::View& average) {
    for (std::uint64_t first = 0; first < weights.count; first += averaged_at_once) {
      const std::uint64_t count = std::min(averaged_at_once, weights.count - first);
      const atoll::View one = weights.part(first, count), other = average.part(first, count);
      stream_.copy(scratch.data(), one.data, one.bytes());
      stream_.copy(one.data, other.data, one.bytes());
      stream_.copy(other.data, scratch.data(), one.bytes());
    }
  });
  stream_.synchronize();
  engine_.refresh();
}

}  // namespace train
