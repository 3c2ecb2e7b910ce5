// The best evaluation of a run, for --keep-best and --early-stopping.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>

namespace train {

// Equal on all ranks, because the losses are.
class BestLoss {
 public:
  // `data` identifies the samples of the evaluation.
  explicit BestLoss(std::string data) : data_(std::move(data)) {}

  // Restores what a checkpoint after `done` steps recorded. Ignores losses on other samples or of
  // later steps, and values that this class did not write.
  void resume(const nlohmann::json& recorded, std::int64_t done);
  nlohmann::json recorded() const;

  // Notes the loss of an evaluation after `step` steps. Returns whether it is lower than the loss
  // of the kept checkpoint, so that --keep-best must save a new one; NaN never is.
  bool add(double loss, std::int64_t step);
  // Says that the checkpoint of the newest loss for which add() returned true is missing: its save
  // failed, or it is in another folder. Later losses are compared with that of the one before.
  void not_kept() { kept_ = kept_before_; }

  std::optional<double> loss() const noexcept { return loss_; }
  std::int64_t step() const noexcept { return step_; }
  // Number of evaluations since the best one.
  std::int64_t since() const noexcept { return since_; }

 private:
  std::string data_;
  std::optional<double> loss_;         // none before the first evaluation
  std::optional<double> kept_;         // loss of the checkpoint that is kept
  std::optional<double> kept_before_;  // loss of the checkpoint that kept_ replaced
  std::int64_t step_ = 0;
  std::int64_t since_ = 0;
};

}  // namespace train
