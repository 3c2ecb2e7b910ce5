#include "loop/engine_model.hpp"

#include <fmt/core.h>
#include <fnmatch.h>

#include <optional>

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
    table.reset();  // The head is computed first, and no other unit needs the table.
  }
}

// Matches parameters against the patterns of --freeze, and checks that the patterns make sense.
class Frozen {
 public:
  explicit Frozen(const std::vector<std::string>& patterns) {
    for (const std::string& pattern : patterns) patterns_.push_back({pattern});
  }
  bool has(const std::string& hf_name) {
    bool frozen = false;
    for (Pattern& pattern : patterns_) {
      if (::fnmatch(pattern.text.c_str(), hf_name.c_str(), 0) != 0) continue;
      frozen = pattern.used = true;
    }
    trained_ += frozen ? 0 : 1;
    return frozen;
  }
  void check(const ModelConfig& model) const {
    const auto refuse = [](const std::string& why) {
      throw atoll::Error(atoll::ErrorCode::invalid_argument, "--freeze" + why);
    };
    for (const Pattern& pattern : patterns_) {
      if (!pattern.used) {
        refuse(fmt::format(" {}: matches no parameter of {}; {} is one of its names", pattern.text,
                           model.name, param_specs(model, 0).front().hf_name));
      }
    }
    if (trained_ == 0) refuse(": the patterns leave no parameter to train");
  }

 private:
  struct Pattern {
    std::string text;
    bool used = false;
  };
  std::vector<Pattern> patterns_;
  int trained_ = 0;
};

}  // namespace

void add_units(fsdp::Engine& engine, const ModelConfig& model,
               const std::vector<std::string>& patterns) {
  Frozen frozen(patterns);
  std::vector<std::string> order;
  for (std::size_t u = 0; u < unit_count(model); ++u) {
    std::vector<fsdp::ParamSpec> params;
    for (const auto& spec : param_specs(model, u)) {
      params.push_back(
          {spec.name, spec.shape, {spec.mean, spec.deviation}, !frozen.has(spec.hf_name)});
    }
    order.push_back(unit_name(model, u));
    engine.add_unit(order.back(), std::move(params));
  }
  frozen.check(model);
  if (model.tied) order.push_back(unit_name(model, 0));
  engine.freeze(order);
}

std::uint64_t frozen_count(const ModelConfig& model, const std::vector<std::string>& patterns) {
  Frozen frozen(patterns);
  std::uint64_t count = 0;
  for (std::size_t u = 0; u < unit_count(model); ++u) {
    for (const auto& spec : param_specs(model, u)) {
      if (frozen.has(spec.hf_name)) count += static_cast<std::uint64_t>(spec.count());
    }
  }
  frozen.check(model);
  return count;
}

void train_micro_batch(fsdp::Engine& engine, fsdp::Pass pass, const Decoder& decoder,
                       const Step& step) {
  forward(engine, pass, decoder, step);
  backward(engine, pass, decoder, step);
}

}  // namespace train
