#include "loop/nonfinite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "model/params.hpp"

namespace train {
namespace {

namespace fsdp = atoll::fsdp;

// Elements that are copied to the host at once.
constexpr std::uint64_t chunk = 1 << 20;

bool all_finite(const atoll::View& gradient, atoll::Stream& compute, std::vector<float>& host) {
  for (std::uint64_t first = 0; first < gradient.count; first += chunk) {
    const std::uint64_t count = std::min(chunk, gradient.count - first);
    const atoll::View part = gradient.part(first, count);
    compute.copy(host.data(), part.data, part.bytes());
    compute.synchronize();
    const auto finite = [](float value) { return std::isfinite(value); };
    if (!std::ranges::all_of(std::span(host).first(count), finite)) return false;
  }
  return true;
}

std::string tell(const NonFiniteGradients& found) {
  if (found.tensors == 0) return "all gradients are finite";
  return fmt::format("{} of {} tensors have a gradient that is not finite, the first {}",
                     found.tensors, found.of, found.first);
}

}  // namespace

NonFiniteGradients find_nonfinite(atoll::World& world, const fsdp::Engine& engine,
                                  atoll::Stream& compute) {
  std::vector<std::string> names;
  std::map<const fsdp::ParamSpec*, std::size_t> index;
  for (const auto& unit : engine.units()) {
    for (const auto& param : unit->params()) {
      if (!param.trainable) continue;
      index[&param] = names.size();
      names.push_back(hf_name(unit->name(), param.name));
    }
  }
  std::string mine(names.size(), '0');  // '1' for each tensor that is not finite on this rank
  std::vector<float> host(chunk);
  for (const fsdp::Segment& segment : engine.segments()) {
    if (segment.gradient.count == 0) continue;
    if (!all_finite(segment.gradient, compute, host)) mine[index.at(segment.param)] = '1';
  }
  NonFiniteGradients found{.of = static_cast<std::int64_t>(names.size())};
  const auto all = world.exchange("train/nonfinite", mine);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto bad = [&](const std::string& rank) { return rank[i] == '1'; };
    if (!std::ranges::any_of(all, bad)) continue;
    if (found.tensors++ == 0) found.first = names[i];
  }
  return found;
}

bool NonFiniteRow::add(const StepRecord& step) {
  row_ = step.nonfinite ? row_ + 1 : 0;
  return most_ > 0 && row_ >= most_;
}

std::string NonFiniteRow::warning(const StepRecord& step, const NonFiniteGradients& found) const {
  std::string text = fmt::format("step {}: loss {}, gradient norm {}: {}; ", step.step, step.loss,
                                 step.grad_norm, tell(found));
  text += step.skipped ? "the update was skipped" : "the update was made (--no-skip-nonfinite)";
  if (most_ > 0) text += fmt::format(" ({} in a row; the run ends at {})", row_, most_);
  return text;
}

std::string NonFiniteRow::ending(const StepRecord& step, const NonFiniteGradients& found) const {
  std::string text = fmt::format(
      "--max-skipped {}: in steps {} to {} the loss or gradient norm was infinite or NaN: {}; ",
      most_, step.step - row_ + 1, step.step, tell(found));
  if (step.skipped) text += fmt::format("the weights are those of step {}; ", step.step - row_);
  return text + "lower --lr, and check the data and the weights of --init";
}

}  // namespace train
