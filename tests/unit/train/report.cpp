#include <doctest/doctest.h>
#include <sys/stat.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "report/files.hpp"
#include "report/metrics.hpp"
#include "report/metrics_json.hpp"
#include "report/utilization.hpp"
#include "unit/train/data_temporary.hpp"

namespace {

using atoll::ErrorCode;
using doctest::Approx;
using nlohmann::json;
using train::Metrics;
using train::SpeedBase;
using train::StepRecord;
using train_test::failure_of;
using train_test::TemporaryFolder;

// Returns a step of 2 s on 4 ranks with 300 real, 100 padded and 200 valid positions and 6.4e12
// FLOPs.
StepRecord record(std::int64_t step, double loss) {
  return {.step = step,
          .epoch = 0,
          .seconds = 2,
          .loss = loss,
          .learning_rate = 1e-3,
          .grad_norm = 0.5,
          .samples = 8,
          .valid = 200,
          .real = 300,
          .padded = 100,
          .compute_seconds = 1.5,
          .enqueue_seconds = 0.125,
          .communication_seconds = 0.5,
          .exposed_comm_seconds = 0.25,
          .exposed_worst_seconds = 0.375,
          .axis_bytes = {{"shard", 1'500'000}},
          .flops = 6.4e12};
}

const SpeedBase base{.untimed_steps = 0,
                     .parameters = 1'000'000'000,
                     .peak_flops = 4e12,
                     .measured_flops = 2e12,
                     .world_size = 4};

}  // namespace

TEST_CASE("a loss that rises is named once") {
  train::LossWatch watch;
  for (int i = 0; i < 50; ++i) CHECK(watch.step(11 - 0.2 * i).empty());  // 1.2 at the end
  for (const double loss : {1.3, 1.9, 1.2, 2.1, 1.6, std::nan("")}) CHECK(watch.step(loss).empty());
  std::string line;
  int steps = 0;
  while (line.empty() && ++steps < 10) line = watch.step(69);
  CHECK(steps == 1);
  CHECK(line.starts_with("the loss has risen from 1."));
  CHECK(line.find("lower --lr") != line.npos);
  CHECK(watch.step(100).empty());
  train::LossWatch small;
  for (int i = 0; i < 50; ++i) CHECK(small.step(0.01 + 0.005 * i).empty());
}

TEST_CASE("two steps that are faster than the measured peak raise it") {
  SpeedBase low = base;
  low.measured_flops = 0.5e12;  // the step reaches 0.8 TFLOP/s
  train::Metrics published(low);
  published.add(record(1, 3));
  CHECK(published.base().measured_flops == 0.5e12);
  published.add(record(2, 3));
  CHECK(*published.summary().speed.mfu == Approx(0.2));
  CHECK(*published.summary().speed.mfu_measured == Approx(1));
  low.peak_flops = low.measured_flops;
  train::Metrics measured(low);
  for (int i = 1; i <= 2; ++i) measured.add(record(i, 3));
  auto outlier = record(3, 3);
  outlier.seconds = 0.2;
  measured.add(outlier);
  CHECK(measured.base().peak_flops == Approx(0.8e12));
  measured.set_peak(0.6e12, 0.6e12);
  CHECK(measured.base().peak_flops == Approx(0.8e12));
  train::Metrics usual(base);
  for (int i = 1; i <= 2; ++i) usual.add(record(i, 3));
  CHECK(usual.base().measured_flops == base.measured_flops);
}

TEST_CASE("speed: hand-computed figures of one step") {
  const auto speed = train::speed_of(record(1, 3), base);
  CHECK(*speed.steps_per_s == Approx(0.5));
  CHECK(*speed.samples_per_s == Approx(4));
  CHECK(*speed.tokens_per_s == Approx(150));
  CHECK(*speed.padded_tokens_per_s == Approx(50));
  CHECK(*speed.valid_tokens_per_s == Approx(100));
  CHECK(*speed.tflops == Approx(0.8));  // 6.4e12 FLOPs / 2 s / 4 ranks = 0.8 TFLOP/s
  CHECK(*speed.mfu == Approx(0.2));     // 0.8 TFLOP/s / peak of 4 TFLOP/s
  // 6 * 1e9 parameters * 400 tokens / 2 s / 4 ranks = 0.3 TFLOP/s.
  CHECK(*speed.tflops_6n == Approx(0.3));
  CHECK(*speed.mfu_6n == Approx(0.075));
  CHECK(*speed.mfu_real == Approx(0.15));
  CHECK(*speed.exposed_comm_fraction == Approx(0.125));
  CHECK(*speed.compute_fraction == Approx(0.75));
  CHECK(*speed.compute_s == Approx(1.5));
  CHECK(*speed.enqueue_s == Approx(0.125));
  CHECK(*speed.communication_s == Approx(0.5));
  CHECK(*speed.exposed_s == Approx(0.25));
  CHECK(*speed.exposed_worst_s == Approx(0.375));
  CHECK(speed.axis_bytes == std::map<std::string, double>{{"shard", 1.5e6}});
  CHECK(*speed.padding_fraction == Approx(0.25));
}

TEST_CASE("speed: the time between steps is a figure, and only the overall rate counts it") {
  train::Metrics metrics(base);
  auto step = record(1, 3);
  metrics.add(step);
  step.between_seconds = 2;
  metrics.add(step);
  const auto speed = metrics.summary().speed;
  CHECK(*speed.tokens_per_s == Approx(150));
  CHECK(*speed.overall_tokens_per_s == Approx(100));  // 600 tokens in 2 x 2 s and 2 s
  CHECK(*speed.between_steps_s == Approx(1));
  CHECK(*speed.mfu == Approx(0.2));
  const auto line = train::step_json(step, base);
  CHECK(line["between_steps_s"].get<double>() == Approx(2));
  CHECK(line["overall_tokens_per_s"].get<double>() == Approx(75));
}

TEST_CASE("speed: unknown figures are absent, not zero") {
  auto step = record(1, 3);
  step.flops = 0;
  const auto unknown = train::speed_of(step, {});
  CHECK_FALSE(unknown.tflops);
  CHECK_FALSE(unknown.mfu);
  CHECK_FALSE(unknown.tflops_6n);
  CHECK_FALSE(unknown.mfu_real);
  CHECK(unknown.tokens_per_s);
  step.seconds = 0;
  CHECK_FALSE(train::speed_of(step, base).tokens_per_s);
}

TEST_CASE("summary: untimed steps count in totals and losses, not in rates") {
  auto with_untimed = base;
  with_untimed.untimed_steps = 2;
  Metrics metrics(with_untimed);
  for (int i = 1; i <= 5; ++i) {
    auto step = record(i, 10 - i);
    if (i <= 2) step.seconds = 100;
    metrics.add(step);
  }
  const auto summary = metrics.summary();
  CHECK(summary.steps == 5);
  CHECK(summary.timed_steps == 3);
  CHECK(summary.totals.real == 1500);
  CHECK(summary.totals.padded == 500);
  CHECK(summary.totals.valid == 1000);
  CHECK(summary.totals.samples == 40);
  CHECK(summary.totals.seconds == Approx(206));
  CHECK(summary.speed.seconds == Approx(6));
  CHECK(*summary.speed.tokens_per_s == Approx(150));
  CHECK(*summary.speed.steps_per_s == Approx(0.5));
  CHECK(*summary.speed.mfu == Approx(0.2));
  CHECK(*summary.loss_first == Approx(9));
  CHECK(*summary.loss_last == Approx(7));  // mean of the losses 9, 8, 7, 6 and 5
}

TEST_CASE("summary: loss_last is the mean of the last 20") {
  Metrics metrics(base);
  for (int i = 1; i <= 50; ++i) metrics.add(record(i, i));
  CHECK(*metrics.summary().loss_first == Approx(1));
  CHECK(*metrics.summary().loss_last == Approx(40.5));  // mean of the losses 31 to 50
  CHECK(*metrics.summary().loss_min == Approx(1));
}

TEST_CASE("summary: steps that are not finite are counted, and their losses left out") {
  Metrics metrics(base);
  metrics.add(record(1, 4));
  auto step = record(2, std::numeric_limits<double>::infinity());
  step.nonfinite = step.skipped = true;
  metrics.add(step);
  step = record(3, 2);
  step.nonfinite = true;
  metrics.add(step);
  const auto summary = metrics.summary();
  CHECK(summary.nonfinite_steps == 2);
  CHECK(summary.skipped_steps == 1);
  CHECK(metrics.bad_steps().skipped == 1);
  CHECK(metrics.bad_steps().nonfinite == 2);
  CHECK(*summary.loss_last == Approx(3));
  CHECK(*summary.loss_min == Approx(2));
}

TEST_CASE("summary: no step, or no timed step") {
  auto with_untimed = base;
  with_untimed.untimed_steps = 3;
  Metrics metrics(with_untimed);
  CHECK_FALSE(metrics.summary().loss_first);
  metrics.add(record(1, 2));
  CHECK(metrics.summary().timed_steps == 0);
  CHECK_FALSE(metrics.summary().speed.tokens_per_s);
  CHECK(*metrics.summary().loss_last == Approx(2));
}

TEST_CASE("metrics.json: the figures of a typical run") {
  Metrics metrics(base);
  for (int i = 1; i <= 10; ++i) metrics.add(record(i, 4 - 0.1 * i));
  const train::RunInfo run{.run_name = "try",
                           .model = "mistral-tiny",
                           .dataset = "demo",
                           .tokenizer = "bytes",
                           .strategy = "hybrid_shard",
                           .replicate = 2,
                           .shard = 2,
                           .dtype = "bf16",
                           .gpu = "NVIDIA H100 80GB HBM3",
                           .peak_source = "datasheet",
                           .peak_detail = "products",
                           .transports = "network IB",
                           .wall_time_s = 25};
  const json out = train::metrics_json(run, base, metrics.summary());
  CHECK(out["mesh"] == "2x2");
  CHECK(out["gpu0"] == "NVIDIA H100 80GB HBM3");
  CHECK(out["bf16"] == true);
  CHECK(out["fsdp"] == true);
  CHECK(out["peak_source"] == "datasheet");
  CHECK(out["mfu_measured"].get<double>() == Approx(0.4));
  CHECK(out["approx_tokens_per_rank"] == 1000);  // 10 steps * 400 positions / 4 ranks
  CHECK(out["approx_tokens_per_s_per_rank"].get<double>() == Approx(40));
  CHECK(out["axis_bytes"] == json{{"shard", 1'500'000}});
}

TEST_CASE("metrics.json: a run that diverged or never ran is still JSON") {
  Metrics metrics({});
  auto out = train::metrics_json({}, metrics.base(), metrics.summary());
  CHECK(out["loss_first"].is_null());
  CHECK(out["mfu"].is_null());
  CHECK(out["gpu0"].is_null());
  train::RunInfo replicated;
  replicated.strategy = "no_shard";
  CHECK(train::metrics_json(replicated, {}, {})["fsdp"] == false);
  CHECK(out["approx_tokens_per_s_per_rank"].is_null());
  metrics.add(record(1, std::numeric_limits<double>::quiet_NaN()));
  out = train::metrics_json({}, metrics.base(), metrics.summary());
  CHECK(out["loss_last"].is_null());
  CHECK(json::parse(out.dump()) == out);
}

TEST_CASE("metrics.json and steps.jsonl: README explains every figure") {
  const std::filesystem::path source = ATOLL_TEST_SOURCE_DIR;
  const auto readme = TemporaryFolder::read(source / "tools/train/report/README.md");
  Metrics metrics(base);
  metrics.add(record(1, 3));
  auto keys = train::metrics_json({}, base, metrics.summary());
  keys.update(train::step_json(record(1, 3), base));
  for (const auto& [name, value] : keys.items()) {
    CAPTURE(name);
    CHECK(readme.find("`" + name + "`") != std::string::npos);
  }
}

TEST_CASE("steps.jsonl: each line is flushed at once") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "steps.jsonl";
  train::StepLog log(file, 1);
  log.add(record(1, 3), base);
  log.add(record(2, 2.5), base);
  std::istringstream in(TemporaryFolder::read(file));
  std::vector<json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  REQUIRE(lines.size() == 2);
  CHECK(lines[1]["step"] == 2);
  CHECK(lines[1]["loss"] == 2.5);
  CHECK(lines[1]["learning_rate"] == 1e-3);
  CHECK(lines[1]["tokens"] == 300);
  CHECK(lines[1]["exposed_worst_s"] == 0.375);
  CHECK(lines[1]["axis_bytes"] == json{{"shard", 1'500'000}});
}

TEST_CASE("steps.jsonl: a resumed run replaces the steps that it repeats") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "steps.jsonl";
  {
    train::StepLog log(file, 1);
    for (int i = 1; i <= 5; ++i) log.add(record(i, i), base);
  }
  // Simulates a crash in the middle of writing a line.
  std::ofstream(file, std::ios::app) << "{\"step\": 6, \"lo";
  {
    train::StepLog log(file, 4);
    log.add(record(4, 44), base);
  }
  std::istringstream in(TemporaryFolder::read(file));
  std::vector<double> losses;
  for (std::string line; std::getline(in, line);) losses.push_back(json::parse(line)["loss"]);
  CHECK(losses == std::vector<double>{1, 2, 3, 44});
  train::StepLog fresh(file, 1);
  CHECK(TemporaryFolder::read(file).empty());
}

TEST_CASE("steps.jsonl: damaged lines are told, and the file is kept beside it") {
  const TemporaryFolder folder;
  const std::string damaged =
      "{\"step\":1,\"loss\":1}\n{\"step\":1e400}\n[2]\n{\"step\":3,\"loss\":3}\n";
  const auto file = folder.write("steps.jsonl", damaged);
  train::StepLog log(file, 4);
  std::istringstream in(TemporaryFolder::read(file));
  std::vector<int> steps;
  for (std::string line; std::getline(in, line);) steps.push_back(json::parse(line)["step"]);
  CHECK(steps == std::vector{1, 3});
  CHECK(TemporaryFolder::read(folder.path() / "steps.jsonl.damaged") == damaged);
}

TEST_CASE("files: a link is followed; pipes are not replaced") {
  const TemporaryFolder folder;
  const auto file = folder.write("real", "old"), link = folder.path() / "link";
  std::filesystem::create_symlink("real", link);
  train::write_file_atomic(link, "new");
  CHECK(std::filesystem::is_symlink(link));
  CHECK(TemporaryFolder::read(file) == "new");
  const auto pipe = folder.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const auto& failure : {failure_of([&] { train::write_file_atomic(pipe, "x"); }),
                              failure_of([&] { train::check_writable(pipe); })}) {
    CHECK(failure.code == ErrorCode::io);
    CHECK(failure.says("pipe: is a pipe, and only a regular file may be replaced"));
  }
  CHECK(std::filesystem::is_fifo(pipe));
}

TEST_CASE("files: atomic writes leave no temporary file") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "run_args.json";
  train::write_json_atomic(file, {{"seed", 1}});
  train::write_json_atomic(file, {{"seed", 2}, {"name", "bad \xff utf-8"}});
  CHECK(json::parse(TemporaryFolder::read(file))["seed"] == 2);
  std::size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path()))
    ++entries;
  CHECK(entries == 1);
  const auto failure =
      failure_of([&] { train::write_file_atomic(folder.path() / "none" / "x", "y"); });
  CHECK(failure.code == ErrorCode::io);
  CHECK(failure.says("none"));
}

TEST_CASE("files: check_writable() finds an unwritable file") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "trace.json";
  train::check_writable(file);
  CHECK(std::filesystem::is_empty(folder.path()));
  train::write_file_atomic(file, "x");
  train::check_writable(file);
  CHECK(TemporaryFolder::read(file) == "x");
  CHECK(failure_of([&] { train::check_writable(folder.path()); }).code == ErrorCode::io);
  // make_directory() can make the folder "no", but none below a file.
  train::check_writable(folder.path() / "no" / "x");
  CHECK_FALSE(std::filesystem::exists(folder.path() / "no"));
  const auto failure = failure_of([&] { train::check_writable(file / "no" / "x"); });
  CHECK(failure.code == ErrorCode::io);
  CHECK(failure.says("Not a directory"));
}

TEST_CASE("files: a name may be long") {
  const TemporaryFolder folder;
  train::write_file_atomic(folder.path() / std::string(223, 'x'), "y");
}

TEST_CASE("files: the results folder of a run") {
  CHECK(train::run_directory("", "try") == std::filesystem::path("results/training/try"));
  CHECK(train::run_directory("/elsewhere", "a/b") == std::filesystem::path("/elsewhere"));
  for (const std::string name : {"", ".", "..", "a/b", "../x"}) {
    CHECK(failure_of([&] { (void)train::run_directory("", name); }).code ==
          ErrorCode::invalid_argument);
  }
  const TemporaryFolder folder;
  train::make_directory(folder.path() / "a" / "b");
  CHECK(std::filesystem::is_directory(folder.path() / "a" / "b"));
  const auto file = folder.write("file", "x");
  CHECK(failure_of([&] { train::make_directory(file / "b"); }).code == ErrorCode::io);
}

TEST_CASE("metrics: the last and the lowest loss of evaluations, and the time that data took") {
  train::Metrics metrics({});
  CHECK_FALSE(metrics.summary().eval_loss);
  auto step = record(1, 1);
  step.data_wait_seconds = 0.5;
  for (const auto loss : {3.0, 2.0, 2.5}) {
    step.eval_loss = loss;
    metrics.add(step);
  }
  step.eval_loss.reset();
  step.data_wait_seconds = 0.1;
  metrics.add(step);
  const auto summary = metrics.summary();
  CHECK(summary.eval_loss == 2.5);
  CHECK(summary.eval_loss_min == 2.0);
  CHECK(*summary.speed.data_wait_s == doctest::Approx(0.4));
}
