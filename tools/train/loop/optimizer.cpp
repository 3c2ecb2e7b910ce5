#include "loop/optimizer.hpp"

#include <nlohmann/json.hpp>

#include "fail.hpp"
#include "loop/parameter_groups.hpp"
#include "loop/strategy.hpp"
#include "optimizers/muon.hpp"

namespace train {
namespace {

namespace fsdp = atoll::fsdp;
using Extra = std::map<std::string, std::string>;

class LibraryOptimizer final : public RunOptimizer {
 public:
  LibraryOptimizer(fsdp::Engine& engine, fsdp::OptimizerOptions options)
      : engine_(engine), optimizer_(engine, std::move(options)) {}
  void update_in_backward(float rate) override { optimizer_.update_in_backward(rate); }
  void step(float rate, atoll::Stream& compute, unsigned blocks_beside) override {
    optimizer_.step(rate, compute,
                    {.beside_next_pass = blocks_beside > 0, .blocks_beside = blocks_beside});
  }
  void wait_updates(atoll::Stream& stream) override { optimizer_.wait_updates(stream); }
  float grad_norm() override { return optimizer_.grad_norm(); }
  void save(const std::filesystem::path& folder, Extra extra) override {
    fsdp::save(folder, engine_, optimizer_, extra);
  }
  std::optional<fsdp::PendingSave> save_beside(const std::filesystem::path& folder,
                                               Extra extra) override {
    return fsdp::save_beside(folder, engine_, optimizer_, extra);
  }
  Extra load(const std::filesystem::path& folder) override {
    return fsdp::load(folder, engine_, optimizer_);
  }

 private:
  fsdp::Engine& engine_;
  fsdp::Optimizer optimizer_;
};

class MuonOptimizer final : public RunOptimizer {
 public:
  MuonOptimizer(fsdp::Engine& engine, const atoll::Mesh& mesh, muon::Options options)
      : engine_(engine), muon_(engine, mesh, std::move(options)) {}
  void update_in_backward(float) override {}  // Muon needs the gradients of whole matrices
  void step(float rate, atoll::Stream& compute, unsigned) override { muon_.step(rate, compute); }
  float grad_norm() override { return muon_.grad_norm(); }
  void save(const std::filesystem::path& folder, Extra extra) override {
    extra[steps_key] = std::to_string(muon_.steps());
    fsdp::save(folder, engine_, extra);
  }
  Extra load(const std::filesystem::path& folder) override {
    Extra extra = fsdp::load(folder, engine_);
    const auto text = nlohmann::json::parse(extra[steps_key], nullptr, false);
    const std::int64_t steps = text.is_number_unsigned() ? text.get<std::int64_t>() : -1;
    if (steps < 0) {
      fail(ErrorCode::bad_data, "{}: the checkpoint lacks the number of Muon's steps",
           folder.string());
    }
    muon_.set_steps(steps);
    return extra;
  }

 private:
  static constexpr const char* steps_key = "muon_steps";
  fsdp::Engine& engine_;
  muon::Muon muon_;
};

muon::Options muon_options(const RunOptions& options, const fsdp::OptimizerOptions& usual,
                           const Machine& machine) {
  muon::Options muon{.momentum = static_cast<float>(options.momentum),
                     .weight_decay = usual.weight_decay,
                     .decay = usual.decay,
                     .groups = usual.groups,
                     .max_norm = usual.max_norm,
                     .beta1 = usual.beta1,
                     .beta2 = usual.beta2,
                     .epsilon = usual.epsilon,
                     .products = machine.muon_products(atoll::dtype_from_name(options.dtype)),
                     .arithmetic = machine.muon_arithmetic()};
  // Embedding and head are matrices too, but they train better with AdamW than with Muon.
  muon.is_hidden = [](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
    return unit.name().starts_with("layers.") && param.shape.size() == 2;
  };
  muon.multiply = [ops = machine.ops.get()](atoll::Stream& stream, const muon::Product& p) {
    const auto operand = [](muon::Layout layout) {
      return layout == muon::Layout::plain ? Operand::plain : Operand::transposed;
    };
    ops->multiply(stream,
                  {p.m, p.n, p.k, operand(p.a_layout), operand(p.b_layout), p.a.dtype, p.c.dtype,
                   WriteMode::overwrite},
                  p.a, p.b, p.c, {});
  };
  return muon;
}

}  // namespace

std::unique_ptr<RunOptimizer> make_optimizer(const RunOptions& options, fsdp::Engine& engine,
                                             const atoll::Mesh& mesh, const Machine& machine) {
  fsdp::OptimizerOptions usual = optimizer_options(options);
  usual.groups = param_groups(engine, options.group);
  if (options.decay == "matrices-no-embeddings") spare_embedding(engine, usual.groups);
  if (options.optimizer != "muon") {
    return std::make_unique<LibraryOptimizer>(engine, std::move(usual));
  }
  return std::make_unique<MuonOptimizer>(engine, mesh, muon_options(options, usual, machine));
}

}  // namespace train
