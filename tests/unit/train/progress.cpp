// Tests of the progress line.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "report/phase.hpp"
#include "report/progress.hpp"
#include "unit/train/data_temporary.hpp"

namespace {

using train::StepRecord;
using train_test::TemporaryFolder;

StepRecord step_record(std::int64_t step, double loss) {
  return {.step = step, .loss = loss, .learning_rate = 1e-3};
}

}  // namespace

TEST_CASE("progress: the line") {
  auto step = step_record(120, 1.23456);
  step.learning_rate = 2e-4;
  train::Speed speed;
  CHECK(train::progress_line(step, 0, speed) == "step 120  loss 1.2346  lr 2.00e-04");
  speed.tokens_per_s = 12345;
  speed.padded_tokens_per_s = 64123;
  speed.mfu = 0.3123;
  speed.communication_s = 0.0301;
  speed.exposed_s = 0.0041;
  speed.exposed_comm_fraction = 0.041;
  CHECK(train::progress_line(step, 400, speed) ==
        "step 120/400  loss 1.2346  lr 2.00e-04  12.3k tok/s (+64.1k padded)  MFU 31.2 %  comm "
        "30.1 ms  exposed 4.100 ms (4.1 %)");
  speed.padded_tokens_per_s = 0;
  CHECK(train::progress_line(step, 400, speed).find("padded") == std::string::npos);
  CHECK(train::progress_line(step, 400, speed).find("skipped") == std::string::npos);
  CHECK(train::progress_line(step, 400, speed, {3, 3}).ends_with("  skipped 3"));
  // With --no-skip-nonfinite no update is skipped.
  CHECK(train::progress_line(step, 400, speed, {0, 2}).ends_with("(4.1 %)  not finite 2"));
  CHECK(train::progress_line(step, 400, speed, {3, 5}).ends_with("  skipped 3  not finite 5"));
}

TEST_CASE("progress: the summary of a run") {
  train::Speed speed;
  CHECK(train::summary_line(speed) ==
        "per step: compute -, communication -, exposed - (worst rank -)");
  speed.compute_s = 12.34;
  speed.communication_s = 0.0301;
  speed.exposed_s = 0.0002;
  speed.exposed_worst_s = 0.0003;
  speed.between_steps_s = 0.5;
  speed.axis_bytes = {{"shard", 12.3e6}, {"replicate", 2e3}};
  CHECK(train::summary_line(speed) ==
        "per step: compute 12.3 s, communication 30.1 ms, exposed 0.200 ms (worst rank 0.300 ms), "
        "between steps 500.0 ms, 0.002 MB over replicate, 12.300 MB over shard");
}

TEST_CASE("progress: a terminal is rewritten at most 5 times a second, and ends on the last step") {
  using namespace std::chrono_literals;
  train::ProgressPacer pacer(
      {.surface = train::Surface::terminal, .total_steps = 0, .columns = 30});
  const train::ProgressPacer::Clock::time_point start{};
  int writes = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto bytes = pacer.step(step_record(i + 1, 1), {}, start + i * 1ms);
    if (!bytes) continue;
    ++writes;
    CHECK(bytes->starts_with("\r\x1b[K"));
    CHECK(bytes->find('\n') == std::string::npos);
    CHECK(bytes->size() <= 4 + 29);
    // The line is cut between its figures.
    if (i == 0) CHECK(*bytes == "\r\x1b[Kstep 1  loss 1.0000");
  }
  CHECK(writes == 5);
  const auto end = pacer.finish();
  CHECK(end.find("step 1000") != std::string::npos);
  CHECK(end.ends_with("\n"));
  CHECK(pacer.finish().empty());
}

TEST_CASE("progress: a log has the first, every N-th and the last step") {
  train::ProgressPacer pacer({.surface = train::Surface::log, .total_steps = 25, .every = 10});
  std::string text;
  for (int i = 1; i <= 25; ++i) {
    if (const auto bytes = pacer.step(step_record(i, 1), {}, {})) text += *bytes;
  }
  text += pacer.finish();
  CHECK(std::count(text.begin(), text.end(), '\n') == 4);
  for (const char* step : {"step 1/25", "step 10/25", "step 20/25", "step 25/25"}) {
    CHECK(text.find(step) != std::string::npos);
  }
  CHECK(text.find('\x1b') == std::string::npos);
  // While steps are slow, the log gets a line every 30 s.
  using namespace std::chrono_literals;
  train::ProgressPacer slow({.surface = train::Surface::log, .total_steps = 100, .every = 10});
  CHECK(slow.step(step_record(1, 1), {}, {}));
  CHECK_FALSE(slow.step(step_record(2, 1), {}, train::ProgressPacer::Clock::time_point(20s)));
  CHECK(slow.step(step_record(3, 1), {}, train::ProgressPacer::Clock::time_point(40s)));
}

TEST_CASE("progress: evaluations are always shown, and stay on a terminal") {
  auto step = step_record(7, 1);
  step.eval_loss = 2.5;
  train::ProgressPacer log({.surface = train::Surface::log, .total_steps = 25, .every = 10});
  (void)log.step(step_record(1, 1), {}, {});
  CHECK_FALSE(log.step(step_record(6, 1), {}, {}));
  const auto line = log.step(step, {}, {});
  REQUIRE(line);
  CHECK(line->find("  eval 2.5000  ") != std::string::npos);
  train::ProgressPacer terminal({.surface = train::Surface::terminal, .total_steps = 25});
  (void)terminal.step(step_record(6, 1), {}, {});
  const auto shown = terminal.step(step, {}, {});
  REQUIRE(shown);
  CHECK(shown->ends_with("\n"));
  CHECK(terminal.finish().empty());
}

TEST_CASE("progress: the time left counts what lies between steps") {
  using namespace std::chrono_literals;
  train::ProgressPacer pacer({.surface = train::Surface::log, .total_steps = 100, .every = 1});
  const train::ProgressPacer::Clock::time_point start{};
  const auto line = [&](std::int64_t step, std::chrono::seconds at) {
    return pacer.step({.step = step, .seconds = 1}, {}, start + at).value_or("");
  };
  // A resumed run begins at step 11. A step takes 10 s with its evaluation, and 1 s without.
  CHECK(line(11, 0s).starts_with("step 11/100  loss"));
  CHECK(line(12, 10s).starts_with("step 12/100 (14:40 left)  loss"));
  CHECK(line(21, 100s).starts_with("step 21/100 (13:10 left)  loss"));
  CHECK(line(100, 890s).starts_with("step 100/100  loss"));
  train::ProgressPacer slow({.surface = train::Surface::log, .total_steps = 100, .every = 1});
  (void)slow.step({.step = 1}, {}, start);
  CHECK(slow.step({.step = 2}, {}, start + 100s).value_or("").find("(2:43:20 left)") !=
        std::string::npos);
}

TEST_CASE("progress: silent, and a stream that is no terminal") {
  train::ProgressPacer pacer({.surface = train::Surface::silent});
  CHECK_FALSE(pacer.step(step_record(1, 1), {}, {}));
  CHECK(pacer.finish().empty());
  const TemporaryFolder folder;
  const auto file = folder.path() / "log";
  std::FILE* stream = std::fopen(file.c_str(), "w");
  REQUIRE(stream != nullptr);
  const auto options = train::progress_options_for(stream);
  CHECK(options.surface == train::Surface::log);
  {
    train::Progress progress(stream, options);
    progress.step(step_record(1, 1), {});
    progress.step(step_record(2, 1), {});
  }
  std::fclose(stream);
  const auto text = TemporaryFolder::read(file);
  CHECK(text.find("step 1 ") != std::string::npos);
  // The line of the last step has been written by finish().
  CHECK(text.find("step 2 ") != std::string::npos);
}

TEST_CASE("phases: a terminal shows the innermost one, with its part and seconds, until it ends") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "out";
  using namespace std::chrono_literals;
  const auto shown = [&](train::Surface surface, std::chrono::milliseconds first) {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    REQUIRE(file != nullptr);
    {
      const train::PhaseDisplay display(file, surface, {first, 10min});
      const train::Phase outer("preparing the run");
      {
        train::Phase inner("evaluation");
        inner.progress(3, 8);
        // A busy machine may show the line late.
        for (int i = 0; first < 1s && surface == train::Surface::terminal && i < 1000; ++i) {
          if (TemporaryFolder::read(path).find("evaluation") != std::string::npos) break;
          std::this_thread::sleep_for(10ms);
        }
      }
      { const train::Phase quick("reading"); }
    }
    std::fclose(file);
    return TemporaryFolder::read(path);
  };
  const std::string text = shown(train::Surface::terminal, 50ms);
  CHECK(text.find("\r\x1b[Kevaluation (3 of 8, 0:00 left): ") != text.npos);
  CHECK(text.ends_with(" s\r\r\x1b[K"));  // the line is erased at the end of its phase
  CHECK(shown(train::Surface::terminal, 10min).empty());
  CHECK(shown(train::Surface::silent, 50ms).empty());
}
