#include "fsdp/setup.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <optional>

namespace atoll_v1::atoll::fsdp {
namespace {

// Collects the values that must be equal on all ranks; `about` is appended to the name of each.
class List {
 public:
  template <class Value>
  void add(std::string_view subject, const Value& value) {
    all_.push_back({fmt::format("{}{}", subject, about_), fmt::format("{}", value)});
  }
  void about(std::string text) { about_ = std::move(text); }
  std::vector<Declaration> take() { return std::move(all_); }

 private:
  std::string about_;
  std::vector<Declaration> all_;
};

std::string_view name(ComputeUnits units) {
  return units == ComputeUnits::any ? "any" : units == ComputeUnits::few ? "few" : "none";
}

std::string yes_or_no(bool value) { return value ? "yes" : "no"; }

void add_param(List& list, const UnitState& unit, std::size_t index) {
  const ParamSpec& param = unit.params[index];
  list.about(fmt::format(" of parameter {} of unit {}", index, unit.name));
  list.add("the name", fmt::format("\"{}\"", param.name));
  list.about(fmt::format(" of parameter {} of unit {}", param.name, unit.name));
  list.add("the shape", fmt::format("{}", fmt::join(param.shape, " x ")));
  list.add("the dtype", name(unit.buckets[unit.locations[index].bucket].dtype));
  list.add("the trainable flag", yes_or_no(param.trainable));
  list.add("the quantized flag", yes_or_no(param.quantized));
  list.add("the initial mean", param.init.mean);
  list.add("the initial deviation", param.init.deviation);
}

std::string setting(std::optional<float> value) {
  return value ? fmt::format("{}", *value) : "that of the optimizer";
}

}  // namespace

std::vector<Declaration> declarations_of(const Mesh& mesh, const Options& options) {
  List list;
  list.add("the mesh", mesh.to_string());
  list.add("the order of ranks in the mesh",
           fmt::format("{}", fmt::join(mesh.axis("world").ranks, " ")));
  list.add("Options::strategy", name(options.strategy));
  list.add("Options::accumulation", name(options.accumulation));
  list.add("Options::gradients", options.gradients == GradientScale::average ? "average" : "sum");
  list.add("Precision::param", name(options.precision.param));
  list.add("Precision::reduce", name(options.precision.reduce));
  list.add("Options::secondary_shards", options.secondary_shards);
  list.add("Options::prefetch", options.prefetch);
  list.add("Options::reduce_buffers", options.reduce_buffers);
  list.add("Options::memory_bytes", options.memory_bytes);
  list.add("Options::axes.replicate", fmt::format("\"{}\"", options.axes.replicate));
  list.add("Options::axes.shard", fmt::format("\"{}\"", options.axes.shard));
  list.add("Options::synchronous", yes_or_no(options.synchronous));
  list.add("ATOLL_CHECK", fmt::format("\"{}\"", mesh.world().config().check));
  list.add("Options::gather_units", name(options.gather_units));
  list.add("Options::backend", fmt::format("\"{}\"", options.backend));
  return list.take();
}

std::vector<Declaration> declarations_of(const std::vector<std::unique_ptr<Unit>>& units,
                                         const std::vector<std::string>& order) {
  List list;
  list.add("the number of units", units.size());
  for (const auto& unit : units) {
    const UnitState& state = state_of(*unit);
    list.about("");
    list.add(fmt::format("the name of unit {}", state.index), fmt::format("\"{}\"", state.name));
    list.add(fmt::format("the number of parameters of unit {}", state.name), state.params.size());
    for (std::size_t p = 0; p < state.params.size(); ++p) add_param(list, state, p);
  }
  list.about(" of the order of units");
  list.add("the length", order.size());
  for (std::size_t i = 0; i < order.size(); ++i) list.add(fmt::format("position {}", i), order[i]);
  return list.take();
}

std::vector<Declaration> declarations_of(const OptimizerOptions& options) {
  List list;
  list.add("OptimizerOptions::kind",
           options.kind == OptimizerOptions::Kind::adamw ? "adamw" : "sgd");
  list.add("OptimizerOptions::beta1", options.beta1);
  list.add("OptimizerOptions::beta2", options.beta2);
  list.add("OptimizerOptions::epsilon", options.epsilon);
  list.add("OptimizerOptions::weight_decay", options.weight_decay);
  list.add("OptimizerOptions::max_norm", options.max_norm);
  list.add("OptimizerOptions::skip_nonfinite", yes_or_no(options.skip_nonfinite));
  list.add("OptimizerOptions::moment_dtype", name(options.moment_dtype));
  list.add("OptimizerOptions::stochastic_rounding", yes_or_no(options.stochastic_rounding));
  list.add("OptimizerOptions::seed", options.seed);
  list.add("OptimizerOptions::decay", name(options.decay));
  list.add("the number of OptimizerOptions::groups", options.groups.size());
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    const ParamGroup& group = options.groups[g];
    list.about(fmt::format(" of OptimizerOptions::groups[{}]", g));
    list.add("the pattern", fmt::format("\"{}\"", group.pattern));
    list.add("the learning rate scale", group.learning_rate_scale);
    list.add("the weight decay", setting(group.weight_decay));
    list.add("beta1", setting(group.beta1));
    list.add("beta2", setting(group.beta2));
  }
  return list.take();
}

}  // namespace atoll_v1::atoll::fsdp
