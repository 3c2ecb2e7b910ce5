// The loss on the samples of --eval-data or --eval-split, and --show-data.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "data/sources.hpp"
#include "fail.hpp"
#include "loop/engine_model.hpp"
#include "loop/model_source.hpp"
#include "loop/trainer.hpp"
#include "report/log.hpp"
#include "report/phase.hpp"

namespace train {

namespace fsdp = atoll::fsdp;

bool Trainer::evaluates_after(std::int64_t index) const {
  if (!setup_.eval) return false;
  const bool due = options_.eval_every > 0 && (index + 1) % options_.eval_every == 0;
  return due || index + 1 == options_.steps;
}

// Fills in the losses of an evaluation. Returns true if the loss is the best of the run so far.
// Collective; call it between steps.
bool Trainer::evaluate(StepRecord& record) {
  record.eval_loss = evaluation_loss();
  if (averaging_) {
    if (saving_) saving_->finish();  // the save reads the weights, which swap() writes
    averaging_->swap();
    record.eval_loss_average = evaluation_loss();
    averaging_->swap();
  }
  return best_.add(averaging_ ? *record.eval_loss_average : *record.eval_loss, record.step);
}

// Whether --early-stopping ends the run.
bool Trainer::stalls() const {
  return options_.early_stopping > 0 && best_.since() >= options_.early_stopping;
}

void Trainer::print_evaluation() {
  if (world_.rank() == 0) {
    for (const auto& line : idle_flags(options_)) log::warn("{}", line);
    for (const auto& line : setup_.eval->warnings) log::warn("{}", line);
  }
  StepRecord record;
  evaluate(record);
  if (world_.rank() != 0) return;
  const auto print = [&](const char* what, double loss) {
    fmt::print("{}: loss {:.4f}, perplexity {:.4g} on {} of {}\n", what, loss, std::exp(loss),
               counted(static_cast<std::int64_t>(setup_.eval->size()), "sample"),
               setup_.eval->name());
  };
  const std::string model =
      options_.resume.empty()
          ? setup_.model.name
          : fmt::format("{} of step {} in {}", setup_.model.name, first_step_, options_.resume);
  print(model.c_str(), *record.eval_loss);
  if (record.eval_loss_average) print("its average", *record.eval_loss_average);
}

// Returns the mean loss of all targets of the evaluation. All ranks run equally many micro batches,
// because each gathers weights. Collective; call it between steps.
double Trainer::evaluation_loss() {
  BatchOptions options = batch_options(options_, *setup_.tokenizer, setup_.model);
  options.global_batch = std::int64_t{options.micro_batch} * world_.size();
  Batches batches(*setup_.eval, options, {world_.rank(), world_.size()});
  RankFigures mine;
  std::int64_t valid = 0;
  Phase phase("evaluation");
  for (std::int64_t s = 0; s < batches.steps_per_epoch(); ++s) {
    phase.progress(s, batches.steps_per_epoch());
    const StepPlan plan = batches.step({0, s});
    valid += plan.valid;
    for (int m = 0; m < plan.micro_batches; ++m) {
      const Batch rows = upload(batches.micro_batch(plan, m), m);
      const Step step{compute_, rows, *activations_};
      if (m == 0) decoder_.begin(step);
      evaluate_micro_batch(
          engine_, engine_.begin({fsdp::PassOptions::Kind::eval, m, plan.micro_batches}, compute_),
          decoder_, step);
    }
    double loss = 0;
    compute_.copy(&loss, activations_->total().data, sizeof(loss));
    compute_.synchronize();  // the next micro batches use the same staging memory
    mine.loss += loss;
  }
  double loss = 0;
  for (const RankFigures& rank : exchange_.exchange(mine, compute_)) loss += rank.loss;
  // Drops the records and the traffic of the evaluation, so that figures of steps leave it out.
  engine_.scheduler().take_records();
  counted_ = engine_.traffic();
  return loss / static_cast<double>(std::max<std::int64_t>(valid, 1));
}

void show_data(atoll::World& world, RunOptions options) {
  check(options);
  fetch_inputs(world, options);
  const auto tokenizer = tokenizer_for(options.tokenizer, options.data, options.data_type);
  const ModelConfig model = find_model(options, tokenizer->vocab_size()).config;
  const RunData data = open_data(options, *tokenizer, model);
  if (world.rank() == 0) {
    std::string text;
    for (const auto& line : data.train.warnings) text += line + "\n";
    for (const auto& line : statistics_lines(data.train)) text += line + "\n";
    text += show_samples(data.train, *tokenizer, options.show_data, options.seed);
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }
  world.barrier();
}

}  // namespace train
