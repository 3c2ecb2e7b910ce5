#include "loop/saving.hpp"

#include "loop/checkpoints.hpp"
#include "loop/resume.hpp"
#include "report/log.hpp"
#include "report/phase.hpp"

namespace train {

bool Saving::due_after(std::int64_t done) const {
  if (!options_.save_checkpoint) return false;
  const bool due = options_.checkpoint_every > 0 && done % options_.checkpoint_every == 0;
  return due || done == options_.steps;
}

void Saving::save(std::int64_t done, bool at_end, bool is_best) {
  finish();
  done_ = done;
  is_best_ = is_best;
  since_ = Clock::now();
  ++begun_;
  const Phase phase("saving the checkpoint");
  const bool begun = reporting_.results().attempt("checkpoint", [&] {
    const auto folder = checkpoint_folder(reporting_.folder(), done);
    Extra extra = recorded_by(recorded_, done);
    extra["best"] = best_.recorded().dump();
    if (at_end || !options_.checkpoint_beside) {
      optimizer_.save(folder, std::move(extra));
    } else {
      pending_ = optimizer_.save_beside(folder, std::move(extra));
    }
  });
  stall_of_newest_ = seconds_since(since_);
  between_steps_ += stall_of_newest_;
  if (!pending_) complete(begun);
}

void Saving::finish() {
  if (!pending_) return;
  const auto begin = Clock::now();
  std::optional<atoll::fsdp::PendingSave> pending = std::exchange(pending_, std::nullopt);
  const double of_steps = pending->stalled_seconds();
  const bool saved = reporting_.results().attempt("checkpoint", [&] { pending->finish(); });
  const double here = seconds_since(begin);
  stall_of_newest_ += of_steps + here;
  between_steps_ += here;
  within_steps_ += of_steps;
  complete(saved);
}

void Saving::complete(bool saved) {
  stopping_.limit().add_save(seconds_since(since_));
  if (saved) return keep_newest();
  if (is_best_) best_.not_kept();
}

// After a save, rank 0 points the links to the new checkpoint and deletes old ones.
void Saving::keep_newest() {
  saved_ = true;
  if (world_.rank() != 0) return;
  reporting_.results().attempt("old checkpoints", [&] {
    link_checkpoint(reporting_.folder(), "checkpoint", done_);
    if (is_best_) link_checkpoint(reporting_.folder(), "best", done_);
    delete_old_checkpoints(reporting_.folder(), options_.keep_last, options_.keep_every);
  });
  reporting_.end_line();
  log::info("the checkpoint of step {} took {:.2f} s and stalled training for {:.3f} s", done_,
            seconds_since(since_), stall_of_newest_);
}

}  // namespace train
