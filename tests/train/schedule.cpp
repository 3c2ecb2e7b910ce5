// Tests of the learning rate of each step.
#include "loop/schedule.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>

#include "unit/train/data_temporary.hpp"

using doctest::Approx;
using train::learning_rate;

namespace {

// 10 steps of warm-up and 40 steps after it.
train::RunOptions scheduled(const std::string& schedule) {
  train::RunOptions options;
  options.lr = 2;
  options.lr_schedule = schedule;
  options.warmup_steps = 10;
  options.steps = 50;
  options.seq = 8;
  return options;
}

std::string error_of(const train::RunOptions& options) {
  return train_test::failure_of([&] { train::check(options); }).message;
}

}  // namespace

TEST_CASE("schedules: the warm-up rises from 0") {
  for (const char* schedule : {"constant", "linear", "cosine", "wsd"}) {
    CAPTURE(schedule);
    const auto options = scheduled(schedule);
    CHECK(learning_rate(options, 0) == 0);
    CHECK(learning_rate(options, 1) == Approx(0.2));
    CHECK(learning_rate(options, 9) == Approx(1.8));
    CHECK(learning_rate(options, 10) == Approx(2));
  }
  auto options = scheduled("constant");
  options.warmup_steps = 0;
  CHECK(learning_rate(options, 0) == 2);
}

// The expected values are those of transformers.get_*_schedule.
TEST_CASE("schedules: the decay ends at --lr-min-ratio, which is 0") {
  CHECK(learning_rate(scheduled("constant"), 49) == 2);
  CHECK(learning_rate(scheduled("linear"), 30) == Approx(1));
  CHECK(learning_rate(scheduled("linear"), 50) == Approx(0));
  CHECK(learning_rate(scheduled("cosine"), 20) ==
        Approx(2 * 0.5 * (1 + std::cos(std::numbers::pi * 0.25))));
  CHECK(learning_rate(scheduled("cosine"), 30) == Approx(1));
  CHECK(learning_rate(scheduled("cosine"), 50) == Approx(0));
  for (const char* schedule : {"linear", "cosine", "wsd"}) {
    CAPTURE(schedule);
    auto options = scheduled(schedule);
    options.lr_min_ratio = 0.1;
    CHECK(learning_rate(options, 10) == Approx(2));
    CHECK(learning_rate(options, 50) == Approx(0.2));
    CHECK(learning_rate(options, 60) == Approx(0.2));
  }
}

// In transformers, get_wsd_schedule(optimizer, num_warmup_steps=10, num_decay_steps=5,
// num_training_steps=50, decay_type="linear", min_lr_ratio=0.1) begins the warm-up at the minimum
// rate; its cosine schedules do not.
TEST_CASE("schedules: wsd with a least rate begins at it") {
  auto options = scheduled("wsd");
  options.lr_min_ratio = 0.1;
  CHECK(learning_rate(options, 0) == Approx(0.2));
  CHECK(learning_rate(options, 1) == Approx(0.38));
  CHECK(learning_rate(options, 9) == Approx(1.82));
  CHECK(learning_rate(options, 10) == Approx(2));
  CHECK(learning_rate(options, 47) == Approx(1.28));
  options.lr_schedule = "cosine";
  CHECK(learning_rate(options, 0) == 0);
  CHECK(learning_rate(options, 1) == Approx(0.2));
}

TEST_CASE("schedules: wsd decays in its last steps") {
  auto options = scheduled("wsd");
  CHECK(learning_rate(options, 45) == Approx(2));  // a tenth of 50 steps
  CHECK(learning_rate(options, 46) == Approx(1.6));
  options.lr_decay_steps = 20;
  CHECK(learning_rate(options, 30) == Approx(2));
  CHECK(learning_rate(options, 40) == Approx(1));
  CHECK(learning_rate(options, 50) == Approx(0));
}

TEST_CASE("schedules: wrong flags") {
  CHECK(error_of(scheduled("wsd")).empty());
  CHECK(error_of(scheduled("polynomial")) ==
        "--lr-schedule polynomial: use one of constant, linear, cosine, wsd");
  auto options = scheduled("constant");
  options.lr_min_ratio = 0.1;
  CHECK(error_of(options) == "--lr-min-ratio: needs --lr-schedule linear, cosine or wsd");
  options = scheduled("cosine");
  options.lr_min_ratio = 1.5;
  CHECK(error_of(options) == "--lr-min-ratio: must be in [0, 1], for example 0.4 for 40 %");
  options = scheduled("cosine");
  options.lr_decay_steps = 5;
  CHECK(error_of(options) == "--lr-decay-steps: needs --lr-schedule wsd");
  options = scheduled("wsd");
  options.lr_decay_steps = 45;
  CHECK(error_of(options) == "--lr-decay-steps 45: with --warmup-steps 10 it exceeds --steps 50");
}

TEST_CASE("--epochs and --warmup-ratio become steps when the samples are known") {
  auto options = scheduled("cosine");
  options.epochs = 1.5;
  options.global_batch = 8;
  options.warmup_ratio = 0.1;
  CHECK(error_of(options).empty());
  train::count_steps(options, 100);  // 13 steps in an epoch
  CHECK(options.steps == 20);
  CHECK(options.warmup_steps == 2);
  options = scheduled("wsd");
  options.epochs = 1;
  options.lr_decay_steps = 10;
  CHECK(train_test::failure_of([&] { train::count_steps(options, 100); }).message ==
        "--lr-decay-steps 10: with --warmup-steps 10 it exceeds --steps 13");
}

TEST_CASE("--lr: what is usual for the weights, unless it is given") {
  const auto chosen = [](std::int64_t lora_rank, bool loads) {
    train::RunOptions options;
    options.lora_rank = lora_rank;
    CHECK(!train::choose_rate(options, loads).empty());
    return options.lr;
  };
  CHECK(chosen(0, false) == 1e-3);
  CHECK(chosen(0, true) == 2e-5);
  CHECK(chosen(8, true) == 2e-4);
  auto options = scheduled("constant");
  CHECK(train::choose_rate(options, true).empty());
  CHECK(options.lr == 2);
}

TEST_CASE("a resumed run keeps its rate, and says where its schedule jumps") {
  auto options = scheduled("cosine");
  const nlohmann::json saved = nlohmann::json::parse(train::schedule_of(options).dump());
  CHECK(train::resume_rate(options, saved, 50).empty());
  options.lr = train::usual_rate;
  CHECK(train::resume_rate(options, saved, 30).empty());
  CHECK(options.lr == 2);
  options.steps = 100;  // at the end of the first run the rate was 0
  const std::string line = train::resume_rate(options, saved, 50);
  CHECK(
      line ==
      "--resume: --steps was 50 and is 100: the learning rate of step 51 is 1.17, and was to be 0");
  options = scheduled("constant");
  options.steps = 100;
  CHECK(train::resume_rate(options, train::schedule_of(scheduled("constant")), 50).empty());
  // A warm-up that was shortened for a short run stays as it was.
  train::RunOptions brief;
  brief.lr = 1;
  brief.steps = 12;
  brief.usual_warmup = true;
  brief = train::resolved(brief);
  CHECK(brief.warmup_steps == 1);
  auto longer = brief;
  longer.steps = 40;
  longer.warmup_steps = 20;
  CHECK(train::resume_rate(longer, train::schedule_of(brief), 12).empty());
  CHECK(longer.warmup_steps == 1);
  // Checkpoints of earlier versions, and damaged ones, have no schedule, so the usual rate applies.
  options.lr = train::usual_rate;
  CHECK(train::resume_rate(options, nullptr, 50).empty());
  CHECK(options.lr == 1e-3);
  CHECK(train::resume_rate(options, {{"steps", "many"}, {"lr", true}}, 50).empty());
}
