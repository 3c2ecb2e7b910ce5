#include "loop/nonfinite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "loop/optimizer.hpp"
#include "model/params.hpp"

namespace train {
namespace {

namespace fsdp = atoll::fsdp;

// Elements that are copied to CPU memory at once.
constexpr std::uint64_t checked_at_once = 1 << 20;

// A value of f32 or bf16 is not finite if all bits of its exponent are set.
template <class Bits>
bool all_finite(std::span<const Bits> values, Bits exponent) {
  return std::ranges::all_of(values, [&](Bits bits) { return (bits & exponent) != exponent; });
}

bool all_finite(const atoll::View& values, atoll::Stream& compute, std::vector<std::byte>& host) {
  for (std::uint64_t first = 0; first < values.count; first += checked_at_once) {
    const atoll::View part = values.part(first, std::min(checked_at_once, values.count - first));
    host.resize(part.bytes());
    compute.copy(host.data(), part.data, part.bytes());
    compute.synchronize();
    const bool finite =
        values.dtype == atoll::DType::bf16
            ? all_finite<std::uint16_t>(
                  {reinterpret_cast<const std::uint16_t*>(host.data()), part.count}, 0x7f80)
            : all_finite<std::uint32_t>(
                  {reinterpret_cast<const std::uint32_t*>(host.data()), part.count}, 0x7f800000);
    if (!finite) return false;
  }
  return true;
}

std::string describe(const NonFinite& found) {
  std::string text = found.gradients.tensors == 0
                         ? "all gradients are finite"
                         : fmt::format(
                               "{} of {} tensors have a gradient that is not finite, the "
                               "first {}",
                               found.gradients.tensors, found.gradients.of, found.gradients.first);
  if (found.weights.tensors > 0) {
    text += fmt::format("; {} of {} have weights that are not finite, the first {}",
                        found.weights.tensors, found.weights.of, found.weights.first);
  }
  return text;
}

// Combines the texts of all ranks: per tensor '1' if it is not finite, '-' if it was not searched.
NonFiniteTensors gathered(const std::vector<std::string>& ranks,
                          const std::vector<std::string>& names) {
  NonFiniteTensors found;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto any = [&](char letter) {
      return std::ranges::any_of(ranks, [&](const std::string& rank) { return rank[i] == letter; });
    };
    if (any('1') && found.tensors++ == 0) found.first = names[i];
    if (any('1') || any('0')) ++found.of;
  }
  return found;
}

}  // namespace

NonFinite find_nonfinite(atoll::World& world, const fsdp::Engine& engine, RunOptimizer& optimizer,
                         atoll::Stream& compute) {
  optimizer.wait_updates(compute);
  std::vector<std::string> names;
  std::map<const fsdp::ParamSpec*, std::size_t> index;
  for (const auto& unit : engine.units()) {
    for (const auto& param : unit->params()) {
      index[&param] = names.size();
      names.push_back(hf_name(unit->name(), param.name));
    }
  }
  std::string gradients(names.size(), '-'), weights(names.size(), '-');
  std::vector<std::byte> host;
  const auto search = [&](const atoll::View& values, char& letter) {
    if (values.count == 0) return;
    if (letter == '-') letter = '0';
    if (!all_finite(values, compute, host)) letter = '1';
  };
  for (const fsdp::Segment& segment : engine.segments()) {
    const std::size_t i = index.at(segment.param);
    search(segment.gradient, gradients[i]);
    search(segment.values, weights[i]);
  }
  return {gathered(world.exchange("train/nonfinite gradients", gradients), names),
          gathered(world.exchange("train/nonfinite weights", weights), names)};
}

bool NonFiniteRow::add(const StepRecord& step) {
  row_ = step.nonfinite ? row_ + 1 : 0;
  return most_ > 0 && row_ >= most_;
}

std::string NonFiniteRow::warning(const StepRecord& step, const NonFinite& found) const {
  std::string text = fmt::format("step {}: loss {}, gradient norm {}: {}; ", step.step, step.loss,
                                 step.grad_norm, describe(found));
  text += step.skipped ? "the update was skipped" : "the update was made (--no-skip-nonfinite)";
  if (most_ > 0) text += fmt::format(" ({} in a row; the run ends at {})", row_, most_);
  return text;
}

std::string NonFiniteRow::ending(const StepRecord& step, const NonFinite& found) const {
  std::string text = fmt::format(
      "--max-skipped {}: in steps {} to {} the loss or gradient norm was infinite or NaN: {}; ",
      most_, step.step - row_ + 1, step.step, describe(found));
  if (step.skipped) text += fmt::format("the weights are those of step {}; ", step.step - row_);
  return text + "lower --lr, and check the data and the weights of --init";
}

}  // namespace train
