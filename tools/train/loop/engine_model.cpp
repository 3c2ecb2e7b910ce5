#include "loop/engine_model.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "fail.hpp"

namespace train {
namespace {

namespace fsdp = atoll::fsdp;

constexpr std::string_view table_name = "embed_tokens.weight";

WriteMode mode_of(fsdp::WriteMode mode) {
  switch (mode) {
    case fsdp::WriteMode::overwrite:
      return WriteMode::overwrite;
    case fsdp::WriteMode::accumulate:
      return WriteMode::accumulate;
    case fsdp::WriteMode::none:
      break;
  }
  return WriteMode::none;
}

Gradient gradient_of(const fsdp::BackwardScope& scope, std::string_view name) {
  const auto gradient = scope.grad(name);
  return {gradient.view, mode_of(gradient.mode)};
}

void forward(fsdp::Engine& engine, fsdp::Pass& pass, const Decoder& decoder, const Step& step) {
  const ModelConfig& model = decoder.config();
  for (std::size_t u = 0; u < decoder.units(); ++u) {
    const auto scope = pass.forward(engine.unit(unit_name(model, u)));
    decoder.forward(step, u, [&](std::string_view name) { return scope[name]; });
  }
  // Use the unit embed once more, so that it stays gathered for backward of the tied head.
  if (model.tied) const auto table = pass.forward(engine.unit(unit_name(model, 0)));
}

void backward(fsdp::Engine& engine, fsdp::Pass& pass, const Decoder& decoder, const Step& step,
              const ObserveGradients& observe) {
  const ModelConfig& model = decoder.config();
  std::optional<fsdp::BackwardScope> table;
  if (model.tied) table.emplace(pass.backward(engine.unit(unit_name(model, 0))));
  for (std::size_t u = decoder.units(); u-- > 0;) {
    {
      fsdp::Unit& unit = engine.unit(unit_name(model, u));
      const auto scope = pass.backward(unit);
      const auto owner = [&](std::string_view name) -> const fsdp::BackwardScope& {
        return table && name == table_name ? *table : scope;
      };
      decoder.backward(
          step, u, [&](std::string_view name) { return owner(name)[name]; },
          [&](std::string_view name) { return gradient_of(owner(name), name); });
      if (observe) observe(unit, scope);
    }
    // Backward begins with the head. If the embedding is tied to the head, only the head uses its
    // table in this pass, so the table is not needed any more.
    table.reset();
  }
}

// Returns the Hugging Face names of the parameters that are not trained: those that the patterns of
// --freeze match and, if the model has adapters, all but the adapters.
std::set<std::string> frozen_names(const ModelConfig& model,
                                   const std::vector<std::string>& patterns) {
  std::vector<std::string> all;
  for (std::size_t u = 0; u < unit_count(model); ++u) {
    for (const auto& spec : param_specs(model, u)) all.push_back(spec.hf_name);
  }
  std::set<std::string> frozen;
  for (const std::string& pattern : patterns) {
    const auto matches = [&](const std::string& name) {
      return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
    };
    require(std::ranges::any_of(all, matches),
            "--freeze {}: matches no parameter of {}; {} is one of its names", pattern, model.name,
            all.front());
    std::ranges::copy_if(all, std::inserter(frozen, frozen.end()), matches);
  }
  if (model.adapters.rank > 0) {
    std::ranges::copy_if(all, std::inserter(frozen, frozen.end()),
                         [](const std::string& name) { return !is_adapter(name); });
  }
  const bool trains_none = std::ranges::find(patterns, "*") != patterns.end();
  require(trains_none || frozen.size() < all.size(),
          "--freeze: the patterns leave no parameter to train");
  return frozen;
}

bool is_quantized(const ModelConfig& model, std::string_view param) {
  return model.adapters.int8_base && can_have_adapter(param);
}

template <class Predicate>
std::uint64_t count_where(const ModelConfig& model, const Predicate& counts) {
  std::uint64_t sum = 0;
  for (std::size_t u = 0; u < unit_count(model); ++u) {
    for (const auto& spec : param_specs(model, u)) {
      if (counts(spec)) sum += static_cast<std::uint64_t>(spec.count());
    }
  }
  return sum;
}

}  // namespace

void add_units(fsdp::Engine& engine, const ModelConfig& model,
               const std::vector<std::string>& patterns) {
  const auto frozen = frozen_names(model, patterns);
  std::vector<std::string> order;
  for (std::size_t u = 0; u < unit_count(model); ++u) {
    std::vector<fsdp::ParamSpec> params;
    for (const auto& spec : param_specs(model, u)) {
      params.push_back({.name = spec.name,
                        .shape = spec.shape,
                        .init = {spec.mean, spec.deviation},
                        .trainable = !frozen.contains(spec.hf_name),
                        .quantized = is_quantized(model, spec.name)});
    }
    order.push_back(unit_name(model, u));
    engine.add_unit(order.back(), std::move(params));
  }
  if (model.tied) order.push_back(unit_name(model, 0));
  engine.seal(order);
}

std::uint64_t frozen_count(const ModelConfig& model, const std::vector<std::string>& patterns) {
  const auto frozen = frozen_names(model, patterns);
  return count_where(model, [&](const ParamSpec& spec) { return frozen.contains(spec.hf_name); });
}

std::uint64_t quantized_count(const ModelConfig& model) {
  return count_where(model, [&](const ParamSpec& spec) { return is_quantized(model, spec.name); });
}

void evaluate_micro_batch(fsdp::Engine& engine, fsdp::Pass pass, const Decoder& decoder,
                          const Step& step) {
  const ModelConfig& model = decoder.config();
  for (std::size_t u = 0; u < decoder.units(); ++u) {
    const auto scope = pass.forward(engine.unit(unit_name(model, u)));
    decoder.forward(step, u, [&](std::string_view name) { return scope[name]; });
    if (u + 1 < decoder.units()) continue;
    std::optional<fsdp::ForwardScope> table;
    if (model.tied) table.emplace(pass.forward(engine.unit(unit_name(model, 0))));
    decoder.loss(step, [&](std::string_view name) {
      return table && name == table_name ? (*table)[name] : scope[name];
    });
  }
}

void train_micro_batch(fsdp::Engine& engine, fsdp::Pass pass, const Decoder& decoder,
                       const Step& step, const ObserveGradients& observe) {
  forward(engine, pass, decoder, step);
  backward(engine, pass, decoder, step, observe);
}

}  // namespace train
