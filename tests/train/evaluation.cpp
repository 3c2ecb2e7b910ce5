// The loss of an evaluation, mixed data and the queue of steps in whole runs.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "job.hpp"
#include "unit/train/data_temporary.hpp"
#include "unit/train/data_token_bytes.hpp"

using namespace train_test;

namespace {

train::RunOptions base(const TemporaryFolder& folder, bool tied = false) {
  train::RunOptions options = plain_run(folder.path(), tied);
  options.samples = 40;
  options.seq = 64;
  options.global_batch = 4;
  options.steps = 6;
  options.eval_split = 0.2;
  options.eval_every = 2;
  return options;
}

std::vector<double> eval_losses(const RankResult& rank) {
  std::vector<double> losses;
  for (const auto& step : rank.run.steps) losses.push_back(step.eval_loss.value_or(-1));
  return losses;
}

// Writes documents of letters; `offset` makes files differ.
std::string letters(const TemporaryFolder& folder, const std::string& name, std::uint32_t offset) {
  TokenBytes file;
  file.vocabulary = 259;
  for (std::uint32_t d = 0; d < 20; ++d) {
    std::vector<std::uint32_t> document{256};
    for (std::uint32_t t = 0; t < 5 + d; ++t) document.push_back('a' + (offset + d * t) % 26);
    file.documents.push_back(document);
    for (std::size_t t = 0; t < document.size(); ++t) file.mask.push_back(t >= 3);
  }
  return folder.write(name, token_bytes(file)).string();
}

}  // namespace

TEST_CASE("the loss of an evaluation does not depend on the number of ranks") {
  const TemporaryFolder folder;
  for (const bool tied : {false, true}) {
    for (const char* pad_to : {"longest", "pack"}) {
      CAPTURE(tied);
      CAPTURE(pad_to);
      auto options = base(folder, tied);
      options.pad_to = pad_to;
      const auto alone = run_job(1, options).front();
      const auto expected = eval_losses(alone);
      REQUIRE(expected.size() == 6);
      for (const int ranks : {2, 4}) {
        const auto job = run_job(ranks, options);
        check_ranks_agree(job);
        const auto found = eval_losses(job.front());
        for (std::size_t i = 0; i < expected.size(); ++i) {
          CHECK((found[i] < 0) == (i % 2 == 0));
          CHECK(found[i] == doctest::Approx(expected[i]).epsilon(1e-5));
        }
      }
      CHECK(expected[5] < expected[1]);
    }
  }
}

TEST_CASE("an evaluation on the training data before they change gives the loss of training") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.eval_split = 0;
  options.eval_data = options.data;
  options.eval_samples = options.samples;
  options.global_batch = options.samples;  // each step has all samples
  options.steps = 2;
  options.eval_every = 1;
  for (const char* strategy : {"no_shard", "full_shard", "hybrid_shard_grad"}) {
    options.strategy = strategy;
    for (const int micro_batch : {1, 3}) {
      options.micro_batch = micro_batch;
      const auto steps = run_job(4, options).front().run.steps;
      // The second step begins with the weights that the first evaluation saw.
      CHECK(*steps[0].eval_loss == doctest::Approx(steps[1].loss).epsilon(1e-5));
    }
  }
}

TEST_CASE("evaluations change no weight and no figure of the training") {
  const TemporaryFolder folder;
  auto options = base(folder);
  const auto often = run_jobs(2, {options}, Order::deterministic).front().front();
  options.eval_every = 0;
  const auto once = run_jobs(2, {options}, Order::deterministic).front().front();
  const bool same = often.weights == once.weights;
  CHECK(same);
  for (std::size_t i = 0; i < once.run.steps.size(); ++i) {
    CHECK(often.run.steps[i].loss == once.run.steps[i].loss);
    CHECK(often.run.steps[i].axis_bytes == once.run.steps[i].axis_bytes);
    CHECK(once.run.steps[i].eval_loss.has_value() == (i == 5));
  }
}

TEST_CASE("the best evaluation: its checkpoint stays, and a run without a better one ends") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.lr = 1e-2;
  options.lr_schedule = "linear";
  options.lr_min_ratio = 1;
  options.steps = 40;
  options.save_checkpoint = true;
  options.keep_last = 1;
  options.keep_best = true;
  options.early_stopping = 2;
  options.group = {"*:lr_scale=40"};  // diverges after a while
  const auto job = run_job(2, options);
  check_ranks_agree(job);
  const auto losses = eval_losses(job.front());
  REQUIRE(losses.size() < 40);
  REQUIRE(losses.size() % 2 == 0);
  std::size_t best = 1;
  for (std::size_t i = 1; i < losses.size(); i += 2) best = losses[i] < losses[best] ? i : best;
  CHECK(losses.size() == best + 1 + 2 * 2);
  const std::filesystem::path out = options.out;
  CHECK(std::filesystem::read_symlink(out / "best").filename() ==
        fmt::format("step-{:08}", best + 1));
  CHECK(std::filesystem::exists(out / "best" / "index.json"));
  CHECK(std::filesystem::read_symlink(out / "checkpoint").filename() ==
        fmt::format("step-{:08}", losses.size()));
  std::size_t kept = 0;
  for ([[maybe_unused]] const auto& each :
       std::filesystem::directory_iterator(out / "checkpoints")) {
    ++kept;
  }
  CHECK(kept == 2);
  // The best checkpoint gives its loss again. A resumed run knows which evaluation was the best.
  options.resume = (out / "best").string();
  const auto again = run_job(2, options).front();
  CHECK(eval_losses(again)[1] == doctest::Approx(losses[best + 2]).epsilon(0.02));
  CHECK(again.run.steps.size() == 4);
  // A run that has ended takes no further step, unless its evaluation is on other samples.
  options.resume = (out / "checkpoint").string();
  CHECK(run_job(2, options).front().run.steps.empty());
  options.eval_split = 0;
  options.eval_data = options.data;
  options.resume_with_changes = {"data"};
  CHECK(run_job(2, options).front().run.steps.size() > 1);
}

TEST_CASE("the best evaluation: the next one takes its place if its checkpoint is not there") {
  train::BestLoss best("data");
  CHECK(best.add(3, 1));
  CHECK(best.add(1, 2));
  best.not_kept();  // the save failed
  CHECK(best.add(2, 3));
  CHECK_FALSE(best.add(2.5, 4));
  CHECK(best.step() == 2);
  CHECK(best.since() == 2);
  train::BestLoss again("data");
  again.resume(best.recorded(), 4);
  CHECK_FALSE(again.add(2, 5));
  CHECK(again.add(1.5, 6));

  // A run that goes on in another folder keeps its best checkpoint there.
  const TemporaryFolder folder;
  auto options = base(folder);
  options.steps = 2;
  options.save_checkpoint = true;
  options.keep_best = true;
  run_job(2, options);
  options.resume = (std::filesystem::path(options.out) / "best").string();
  options.out += "-other";
  options.steps = 6;
  options.lr = 0;
  run_job(2, options);
  CHECK(std::filesystem::read_symlink(std::filesystem::path(options.out) / "best").filename() ==
        "step-00000004");
}

TEST_CASE("evaluations that are not numbers are never the best, and end a run") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.lr = 1e30;  // after the first step every loss is infinite or NaN
  options.warmup_steps = 0;
  options.eval_every = 1;
  options.early_stopping = 2;
  options.save_checkpoint = true;
  options.keep_best = true;
  const auto job = run_job(2, options);
  CHECK(job.front().run.steps.size() == 2);
  CHECK_FALSE(std::filesystem::exists(std::filesystem::path(options.out) / "best"));
}

TEST_CASE("mixed token files train alike on any number of ranks") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.samples = 0;
  options.data = letters(folder, "a.tok", 0) + ":0.7," + letters(folder, "b.tok", 9) + ":0.3";
  options.steps = 25;  // more than two epochs
  options.lr = 1e-4;
  const auto alone = run_job(1, options).front();
  CHECK(alone.run.steps.back().epoch >= 2);
  for (const int ranks : {2, 4}) {
    const auto apart = distance(run_job(ranks, options).front().run.steps, alone.run.steps);
    CHECK(apart.loss < 1e-4);
  }
}

TEST_CASE("wrong flags of data are refused on every rank") {
  const TemporaryFolder folder;
  const auto refuses = [&](const auto& change, const char* reason) {
    auto options = base(folder);
    change(options);
    check_refused(2, options, {reason});
  };
  refuses([](auto& o) { o.eval_split = 1; }, "--eval-split: must be in [0, 1)");
  refuses([](auto& o) { o.eval_split = 0; }, "--eval-every: needs --eval-data");
  refuses([](auto& o) { o.eval_data = "demo"; }, "use one of them");
  refuses([](auto& o) { o.early_stopping = 2, o.eval_every = 0; },
          "--early-stopping: needs an eval");
  refuses([](auto& o) { o.keep_best = true, o.eval_every = 0; }, "--keep-best: needs an eval");
  refuses([](auto& o) { o.train_on = "some"; }, "--train-on some: use one of output, all");
  refuses([](auto& o) { o.data = "demo:0"; }, "a weight must be above 0");
  refuses([](auto& o) { o.data_type = "int8"; }, "--data-type int8: use uint16 or uint32");
}
