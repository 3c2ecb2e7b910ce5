// Saves the checkpoints of a run, if possible "beside training": while the next steps run.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "atoll/checkpoint.hpp"
#include "loop/best_loss.hpp"
#include "loop/clock.hpp"
#include "loop/optimizer.hpp"
#include "loop/reporting.hpp"
#include "loop/stopping.hpp"

namespace train {

// Every call is collective, and no pass may be open in save() and finish().
class Saving {
 public:
  // `recorded` is what every checkpoint of the run records. The others must outlive this object.
  Saving(atoll::World& world, const RunOptions& options, nlohmann::json recorded, BestLoss& best,
         RunOptimizer& optimizer, Reporting& reporting, Stopping& stopping)
      : world_(world),
        options_(options),
        recorded_(std::move(recorded)),
        best_(best),
        optimizer_(optimizer),
        reporting_(reporting),
        stopping_(stopping) {}

  bool due_after(std::int64_t done) const;
  // Saves after `done` steps: at once at the end of the run, otherwise beside training. If a save
  // fails, the run goes on: the checkpoint before is whole, and a later save may succeed.
  // `is_best`: the evaluation after these steps is better than that of the checkpoint that is kept.
  void save(std::int64_t done, bool at_end, bool is_best);
  // Completes the save beside training, if there is one.
  void finish();

  bool is_beside() const noexcept { return pending_.has_value(); }
  // Whether this rank has written its file of the save beside training.
  bool is_written() const { return !pending_ || pending_->written(); }
  bool has_checkpoint() const noexcept { return saved_; }
  std::int64_t begun() const noexcept { return begun_; }
  // Seconds that training has waited for saves between steps; stall() adds the waits within steps.
  double stall_between_steps() const noexcept { return between_steps_; }
  double stall() const noexcept { return between_steps_ + within_steps_; }

 private:
  void complete(bool saved);
  void keep_newest();

  atoll::World& world_;
  const RunOptions& options_;
  nlohmann::json recorded_;
  BestLoss& best_;
  RunOptimizer& optimizer_;
  Reporting& reporting_;
  Stopping& stopping_;
  std::int64_t done_ = 0;  // number of steps done at the newest save
  Clock::time_point since_;
  double stall_of_newest_ = 0;
  double between_steps_ = 0, within_steps_ = 0;
  std::int64_t begun_ = 0;
  bool saved_ = false;
  bool is_best_ = false;  // true if the newest save is that of the best evaluation
  std::optional<atoll::fsdp::PendingSave> pending_;
};

}  // namespace train
