// The optimizer of a run: one of the library, or Muon, which is written outside the library.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "atoll/checkpoint.hpp"
#include "atoll/fsdp.hpp"
#include "atoll/mesh.hpp"
#include "loop/options.hpp"
#include "loop/rank_compute.hpp"

namespace train {

// Each function has the contract of the function of atoll::fsdp::Optimizer, or of checkpoint.hpp,
// with the same name.
class RunOptimizer {
 public:
  virtual ~RunOptimizer() = default;
  virtual void update_in_backward(float learning_rate) = 0;
  // If `blocks_beside` > 0, updates run concurrently with the next pass, on this many GPU blocks.
  virtual void step(float learning_rate, atoll::Stream& compute, unsigned blocks_beside) = 0;
  // Does nothing by default: optimizers that are written outside the library update on `compute`.
  virtual void wait_updates(atoll::Stream&) {}
  virtual float grad_norm() = 0;
  virtual void save(const std::filesystem::path& folder,
                    std::map<std::string, std::string> extra) = 0;
  // Saves while training goes on. Optimizers that are written outside the library cannot do it:
  // they save before the function returns, and return nothing.
  virtual std::optional<atoll::fsdp::PendingSave> save_beside(
      const std::filesystem::path& folder, std::map<std::string, std::string> extra) {
    save(folder, std::move(extra));
    return {};
  }
  virtual std::map<std::string, std::string> load(const std::filesystem::path& folder) = 0;
};

// Makes the optimizer of --optimizer with the groups of --group. Collective; call it after
// add_units(). `machine` computes for Muon, and must outlive the result.
std::unique_ptr<RunOptimizer> make_optimizer(const RunOptions& options, atoll::fsdp::Engine& engine,
                                             const atoll::Mesh& mesh, const Machine& machine);

}  // namespace train
