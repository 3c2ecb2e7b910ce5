// The functions of engine.h: the training engine.
#include "atoll/engine.h"

#include <list>
#include <variant>

#include "atoll/optimizer.hpp"
#include "c/handles.hpp"

using namespace atoll::c;
namespace fsdp = atoll::fsdp;

struct atoll_unit {
  fsdp::Unit& unit;
};
struct atoll_engine {
  atoll_engine(const atoll::Mesh& mesh, fsdp::Options options) : engine(mesh, std::move(options)) {}
  fsdp::Engine engine;
  std::list<atoll_unit> units{};
};
struct atoll_pass {
  fsdp::Pass pass;
};
struct atoll_scope {
  std::variant<fsdp::ForwardScope, fsdp::BackwardScope> scope;
};
struct atoll_optimizer {
  fsdp::Optimizer optimizer;
};

namespace atoll_v1::atoll::c {
namespace {

fsdp::Options engine_options(const atoll_engine_options& wanted) {
  fsdp::Options result;
  if (wanted.strategy != nullptr) result.strategy = fsdp::strategy_from_name(wanted.strategy);
  if (wanted.device != nullptr) result.device = wanted.device->device;
  result.backend = text_or_empty(wanted.backend);
  result.memory_bytes = wanted.memory_bytes;
  if (wanted.average != 0) result.gradients = fsdp::GradientScale::average;
  result.precision = {.param = static_cast<DType>(wanted.param_dtype),
                      .reduce = static_cast<DType>(wanted.reduce_dtype)};
  result.synchronous = wanted.synchronous != 0;
  return result;
}

fsdp::OptimizerOptions optimizer_options(const atoll_optimizer_options& wanted) {
  fsdp::OptimizerOptions result;
  if (wanted.sgd != 0) result.kind = fsdp::OptimizerOptions::Kind::sgd;
  if (wanted.beta1 != 0) result.beta1 = wanted.beta1;
  if (wanted.beta2 != 0) result.beta2 = wanted.beta2;
  if (wanted.epsilon != 0) result.epsilon = wanted.epsilon;
  result.weight_decay = wanted.weight_decay;
  if (wanted.max_norm != 0) result.max_norm = std::max(wanted.max_norm, 0.0f);
  return result;
}

fsdp::ParamSpec spec(const atoll_param& param) {
  fsdp::ParamSpec result{.name = text(param.name, "params")};
  if (param.dimensions > 0) at(param.shape, "params");
  result.shape.assign(param.shape, param.shape + param.dimensions);
  result.init = {.mean = param.mean, .deviation = param.deviation};
  result.trainable = param.frozen == 0;
  return result;
}

}  // namespace
}  // namespace atoll_v1::atoll::c

atoll_status atoll_engine_open(const atoll_mesh* mesh, const atoll_engine_options* given,
                               atoll_engine** engine) {
  return guard([&] {
    auto& result = at(engine, "engine");
    auto wanted = engine_options(options(given, "options"));
    result = std::make_unique<atoll_engine>(at(mesh, "mesh").mesh, std::move(wanted)).release();
  });
}
void atoll_engine_close(atoll_engine* engine) { release(engine); }
atoll_status atoll_engine_add_unit(atoll_engine* engine, const char* name,
                                   const atoll_param* params, size_t n, atoll_unit** unit) {
  return guard([&] {
    auto& result = at(unit, "unit");
    std::vector<fsdp::ParamSpec> specs;
    if (n > 0) at(params, "params");
    for (std::size_t i = 0; i < n; ++i) specs.push_back(spec(params[i]));
    auto& owner = at(engine, "engine");
    owner.units.push_back({owner.engine.add_unit(text(name, "name"), std::move(specs))});
    result = &owner.units.back();
  });
}
atoll_status atoll_engine_seal(atoll_engine* engine, const char* const* order, size_t n) {
  return guard([&] {
    std::vector<std::string> names;
    if (n > 0) at(order, "order");
    for (std::size_t i = 0; i < n; ++i) names.push_back(text(order[i], "order"));
    at(engine, "engine").engine.seal(names);
  });
}
atoll_status atoll_engine_initialize(atoll_engine* engine, uint64_t seed) {
  return guard([&] { at(engine, "engine").engine.initialize(seed); });
}
atoll_status atoll_engine_visit(atoll_engine* engine, atoll_visit_fn visit, void* context) {
  return guard([&] {
    at(visit, "visit");
    at(engine, "engine").engine.visit([&](const auto& unit, const auto& param, auto values) {
      visit(context, unit.name().c_str(), param.name.c_str(), values.data(), values.size());
    });
  });
}

atoll_status atoll_engine_begin(atoll_engine* engine, int32_t micro, int32_t of, int32_t evaluate,
                                atoll_stream* compute, atoll_pass** pass) {
  return create(pass, "pass", [&] {
    using Kind = fsdp::PassOptions::Kind;
    return at(engine, "engine")
        .engine.begin({.kind = evaluate != 0 ? Kind::eval : Kind::train, .micro = micro, .of = of},
                      at(compute, "compute").stream);
  });
}
void atoll_pass_close(atoll_pass* pass) { release(pass); }
atoll_status atoll_pass_forward(atoll_pass* pass, atoll_unit* unit, atoll_scope** scope) {
  return create(scope, "scope",
                [&] { return at(pass, "pass").pass.forward(at(unit, "unit").unit); });
}
atoll_status atoll_pass_backward(atoll_pass* pass, atoll_unit* unit, atoll_scope** scope) {
  return create(scope, "scope",
                [&] { return at(pass, "pass").pass.backward(at(unit, "unit").unit); });
}
atoll_status atoll_scope_param(const atoll_scope* scope, const char* param, void** data,
                               uint64_t* count) {
  return guard([&] {
    const auto name = text(param, "param");
    at(data, "data"), at(count, "count");
    const auto view =
        std::visit([&](const auto& one) { return one[name]; }, at(scope, "scope").scope);
    *data = view.data;
    *count = view.count;
  });
}
atoll_status atoll_scope_gradient(const atoll_scope* scope, const char* param, float** data,
                                  int32_t* accumulate) {
  return guard([&] {
    const auto* const backward = std::get_if<fsdp::BackwardScope>(&at(scope, "scope").scope);
    if (backward == nullptr) throw BadArgument{"scope", "is one of forward, without gradients"};
    at(data, "data"), at(accumulate, "accumulate");
    const auto gradient = backward->grad(text(param, "param"));
    *data = gradient.view.as<float>();
    *accumulate = gradient.mode == fsdp::WriteMode::accumulate ? 1 : 0;
  });
}
void atoll_scope_close(atoll_scope* scope) { release(scope); }

atoll_status atoll_optimizer_open(atoll_engine* engine, const atoll_optimizer_options* given,
                                  atoll_optimizer** optimizer) {
  return create(optimizer, "optimizer", [&] {
    return fsdp::Optimizer(at(engine, "engine").engine,
                           optimizer_options(options(given, "options")));
  });
}
void atoll_optimizer_close(atoll_optimizer* optimizer) { release(optimizer); }
atoll_status atoll_optimizer_step(atoll_optimizer* optimizer, float learning_rate,
                                  atoll_stream* compute) {
  return guard([&] {
    at(optimizer, "optimizer").optimizer.step(learning_rate, at(compute, "compute").stream);
  });
}
atoll_status atoll_optimizer_norm(atoll_optimizer* optimizer, float* norm) {
  return guard([&] { at(norm, "norm") = at(optimizer, "optimizer").optimizer.grad_norm(); });
}
