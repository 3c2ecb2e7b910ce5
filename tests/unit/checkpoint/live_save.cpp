// Tests of saves beside training: the file has the values of the time of the call, whatever steps
// do meanwhile, and steps do not wait for a disk as long as there is memory for copies.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <latch>
#include <optional>
#include <thread>
#include <vector>

#include "checkpoint/content.hpp"
#include "unit/checkpoint/checkpoint.hpp"
#include "unit/fsdp/toy.hpp"

using namespace atoll_test::checkpoint;
using namespace std::chrono_literals;
using atoll_test::run_thread_ranks;
using train_test::failure_of;
using train_test::TemporaryFolder;

namespace {

constexpr std::uint64_t gibibyte = std::uint64_t{1} << 30;

// Runs a training step with gradients of 1 for all parameters, which changes every weight and both
// moments.
void step(Job& job, atoll::Stream& compute, bool beside = false) {
  atoll_test::run_pass(job.engine, compute, 1.0f);
  job.optimizer.step(0.5f, compute, {.beside_next_pass = beside});
}

// Trains while a save of the state after one step goes on, and returns whether the checkpoint has
// exactly the state of a run that stopped after one step. `copies`: maximum number of bytes of
// copies. `beside`: updates run beside the next pass, and thus beside the beginning of the save.
bool saves_first_step(int ranks, std::uint64_t copies, int steps_meanwhile, bool beside = false) {
  const TemporaryFolder folder;
  const fs::path live = folder.path() / "live", still = folder.path() / "still";
  run_thread_ranks(ranks, [&](atoll::World& world) {
    Job job(world);
    job.fill(1.0f);
    auto compute = job.engine.device().stream();
    step(job, compute, beside);
    fsdp::save(still, job.engine, job.optimizer);
    auto save = fsdp::save_beside(live, job.engine, job.optimizer, {{"k", "v"}}, copies);
    CHECK(save.stalled_seconds() == 0);
    for (int i = 0; i < steps_meanwhile; ++i) step(job, compute, beside);
    compute.synchronize();
    save.finish();
  });
  bool same = true;
  run_thread_ranks(ranks, [&](atoll::World& world) {
    Job first(world), second(world);
    CHECK(fsdp::load(live, first.engine, first.optimizer) ==
          std::map<std::string, std::string>{{"k", "v"}});
    fsdp::load(still, second.engine, second.optimizer);
    if (first.optimizer.steps() != 1) same = false;
    // Equal states give equal weights after another step, which uses the moments.
    for (Job* job : {&first, &second}) {
      auto compute = job->engine.device().stream();
      step(*job, compute);
      compute.synchronize();
    }
    std::vector<std::vector<float>> weights;
    first.engine.visit([&](const auto&, const auto&, std::span<const float> values) {
      weights.emplace_back(values.begin(), values.end());
    });
    std::size_t next = 0;
    second.engine.visit([&](const auto&, const auto&, std::span<const float> values) {
      if (!std::ranges::equal(weights[next++], values)) same = false;
    });
  });
  return same;
}

}  // namespace

TEST_CASE("a save beside training has the state of the time of the call") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    CHECK(saves_first_step(ranks, gibibyte, 3));
    CHECK(saves_first_step(ranks, 0, 3));  // without copies, updates wait for the saving thread
    CHECK(saves_first_step(ranks, gibibyte, 0));
  }
}

TEST_CASE("a save begins while updates run beside the next pass") {
  CHECK(saves_first_step(2, gibibyte, 3, true));
  CHECK(saves_first_step(2, 0, 3, true));
}

TEST_CASE("misuse of a save beside training") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  const std::string pending = ": the save that save_beside() has begun is not over: call finish()";
  const std::string over = "this PendingSave is over: finish() was called, or it was moved from";
  CHECK(message_of([&](atoll::World&, Job& job) {
          auto save = fsdp::save_beside(path, job.engine, job.optimizer);
          const auto again = [&] { return fsdp::save_beside(path, job.engine, job.optimizer); };
          CHECK(failure_of([&] { (void)again(); }).says("save_beside" + pending));
          CHECK(failure_of([&] {
                  fsdp::save(path, job.engine, job.optimizer);
                }).says("save" + pending));
          job.fill(7.0f);  // waits for the saving thread
          CHECK(save.written());
          save.finish();
          CHECK(failure_of([&] { save.finish(); }).message == over);
          CHECK(failure_of([&] { (void)save.written(); }).message == over);
          fsdp::save(path, job.engine, job.optimizer);
        }) == "");
}

TEST_CASE("a save that is given up leaves the old checkpoint and nothing else") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  save(2, path, 1.0f);
  CHECK(message_of([&](atoll::World& world, Job& job) {
          job.fill(2.0f);
          { const auto given_up = fsdp::save_beside(path, job.engine, job.optimizer); }
          world.barrier();
          CHECK(!fs::exists(folder.path() / "checkpoint.partial"));
        }) == "");
  CHECK(refusal(2, path, 1.0f) == "");
}

TEST_CASE("a PendingSave gives up its save when another one is assigned to it") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "checkpoint", second = folder.path() / "second";
  CHECK(message_of([&](atoll::World& world, Job& job) {
          Job other(world, few);
          auto save = fsdp::save_beside(path, job.engine, job.optimizer);
          save = fsdp::save_beside(second, other.engine, other.optimizer);
          world.barrier();
          CHECK(!fs::exists(folder.path() / "checkpoint.partial"));
          fsdp::save(path, job.engine, job.optimizer);
          auto& same = save;
          save = std::move(same);
          save.finish();
          CHECK(fs::exists(second / "index.json"));
        }) == "");
}

TEST_CASE("a failure of one rank's file is the error of all, and training goes on") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  CHECK(message_of([&](atoll::World& world, Job& job) {
          auto compute = job.engine.device().stream();
          auto save = fsdp::save_beside(path, job.engine, job.optimizer);
          while (!save.written()) std::this_thread::sleep_for(1ms);
          world.barrier();
          if (world.rank() == 1) fs::remove(folder.path() / "checkpoint.partial" / shard(1, 2));
          world.barrier();
          const auto failure = failure_of([&] { save.finish(); });
          CHECK(failure.message.find(shard(1, 2)) != std::string::npos);
          step(job, compute);
          compute.synchronize();
          fsdp::save(path, job.engine, job.optimizer);
        }) == "");
}

// A LiveSave of one unit whose thread does not read before release().
struct Held {
  explicit Held(std::uint64_t copies, bool early = false) : job(world) {
    job.fill(3.0f);
    auto tensors = fsdp::tensors_of(job.engine, &job.optimizer);
    auto stream = job.engine.device().stream();
    stream.enqueue([this] { held.wait(); });
    save.emplace(folder.path(), std::move(tensors), fsdp::ShardIdentity{"id", 0, 0, 1},
                 job.engine.device(), std::move(stream), fsdp::LiveSave::Limits{copies, early});
  }
  void release() { held.count_down(); }
  // Reads the first and the last weight of unit a from the file.
  std::pair<float, float> weights() {
    const auto file = fsdp::SafetensorsFile::open(folder.path() / shard(0, 1));
    const auto& data = file.at("a/f32/weights").data;
    std::vector<float> values(data.count);
    std::memcpy(values.data(), data.data, data.bytes());
    return {values.front(), values[999'999]};
  }
  // The file has the values of the time when the save began.
  void check_weights() {
    CHECK(weights().first == 3.0f);
    CHECK(weights().second == 3.0f + 999.0f / 4096.0f);
  }
  void change(atoll::Stream& stream) {
    for (const auto& segment : job.engine.segments()) {
      stream.enqueue([view = segment.values] { std::fill_n(view.as<float>(), view.count, 9.0f); });
    }
  }

  TemporaryFolder folder;
  atoll::World world = atoll::World::single();
  Job job;
  std::latch held{1};
  std::optional<fsdp::LiveSave> save;
};

TEST_CASE("a unit that is updated before the thread has read it is copied") {
  for (const bool early : {false, true}) {
    CAPTURE(early);
    Held held(gibibyte, early);
    auto stream = held.job.engine.device().stream();
    for (const std::size_t unit : {0U, 1U}) held.save->before_update(unit, stream);
    held.change(stream);
    stream.synchronize();  // does not wait for the saving thread
    CHECK(!held.save->is_over());
    held.release();
    held.save->wait();
    CHECK(held.save->stalled_seconds() > 0);
    held.check_weights();
  }
}

TEST_CASE("an update waits for the thread if there is no memory for a copy") {
  for (const bool early : {false, true}) {
    CAPTURE(early);
    Held held(100, early);
    std::atomic<bool> updated = false;
    std::jthread training([&] {
      auto stream = held.job.engine.device().stream();
      for (const std::size_t unit : {0U, 1U}) held.save->before_update(unit, stream);
      held.change(stream);
      stream.synchronize();
      updated = true;
    });
    std::this_thread::sleep_for(50ms);
    CHECK(!updated);
    held.release();
    training.join();
    CHECK(held.save->stalled_seconds() > 0);
    held.save->wait();
    held.check_weights();
  }
}

TEST_CASE("an update may come at any moment of the save") {
  std::vector<bool> modes{false};
#ifndef ATOLL_SANITIZE_THREAD  // reports torn reads, which the save drops
  modes.push_back(true);
#endif
  for (const bool early : modes) {
    for (int i = 0; i < 60; ++i) {
      CAPTURE(i);
      Held held(gibibyte, early);
      auto stream = held.job.engine.device().stream();
      held.release();
      std::this_thread::sleep_for(std::chrono::microseconds(i * 200));
      for (const std::size_t unit : {0U, 1U}) held.save->before_update(unit, stream);
      held.change(stream);
      stream.synchronize();
      held.save->wait();
      held.check_weights();
    }
  }
}

TEST_CASE("a save that is given up while updates wait for it lets them go on") {
  for (const bool early : {false, true}) {
    CAPTURE(early);
    Held held(gibibyte, early);
    auto stream = held.job.engine.device().stream();
    for (const std::size_t unit : {0U, 1U}) held.save->before_update(unit, stream);
    held.release();
    held.save.reset();
    held.change(stream);
    stream.synchronize();
  }
}
