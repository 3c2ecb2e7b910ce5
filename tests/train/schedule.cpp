// Tests of the learning rate of each step.
#include "loop/schedule.hpp"

#include <doctest/doctest.h>

#include <cmath>
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
  options.lr_warmup = 10;
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
  options.lr_warmup = 0;
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

// get_wsd_schedule(optimizer, num_warmup_steps=10, num_decay_steps=5, num_training_steps=50,
// decay_type="linear", min_lr_ratio=0.1) of transformers begins at the least rate; its schedules of
// cosines do not.
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
  CHECK(error_of(options) == "--lr-decay-steps 45: with --lr-warmup 10 it exceeds --steps 50");
}
