#include "loop/engine_model.hpp"

#include <optional>
#include <string>

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
  // The tied head reads the table in backward, which turns round here: it is gathered once.
  if (model.tied) const auto table = pass.forward(engine.unit(unit_name(model, 0)));
}

void backward(fsdp::Engine& engine, fsdp::Pass& pass, const Decoder& decoder, const Step& step) {
  const ModelConfig& model = decoder.config();
  std::optional<fsdp::BackwardScope> table;
  if (model.tied) table.emplace(pass.backward(engine.unit(unit_name(model, 0))));
  for (std::size_t u = decoder.units(); u-- > 0;) {
    {
      const auto scope = pass.backward(engine.unit(unit_name(model, u)));
      const auto owner = [&](std::string_view name) -> const fsdp::BackwardScope& {
        return table && name == table_name ? *table : scope;
      };
      decoder.backward(
          step, u, [&](std::string_view name) { return owner(name)[name]; },
          [&](std::string_view name) { return gradient_of(owner(name), name); });
    }
    table.reset();  // only the head uses it
  }
}

}  // namespace

void add_units(fsdp::Engine& engine, const ModelConfig& model) {
  std::vector<std::string> order;
  for (std::size_t u = 0; u < unit_count(model); ++u) {
    std::vector<fsdp::ParamSpec> params;
    for (const auto& spec : param_specs(model, u)) {
      params.push_back({spec.name, spec.shape, {spec.mean, spec.deviation}});
    }
    order.push_back(unit_name(model, u));
    engine.add_unit(order.back(), std::move(params));
  }
  if (model.tied) order.push_back(unit_name(model, 0));
  engine.freeze(order);
}

void train_micro_batch(fsdp::Engine& engine, const Decoder& decoder, const Step& step,
                       const fsdp::PassOptions& options) {
  auto pass = engine.begin(options, step.stream);
  forward(engine, pass, decoder, step);
  backward(engine, pass, decoder, step);
}

}  // namespace train
