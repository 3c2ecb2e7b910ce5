// Tests that the checker of ATOLL_CHECK=lifetimes finds two kinds of planted faults: missing waits
// between the streams of the engine, and wrong uses of the engine by a caller. The other tests of
// the engine also run under the checker, which must find nothing.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "fsdp/setup.hpp"
#include "thread_ranks.hpp"
#include "unit/deaf_device.hpp"
#include "unit/error_text.hpp"
#include "unit/fsdp/toy.hpp"

using namespace atoll_test;
namespace fsdp = atoll::fsdp;
using fsdp::Strategy;

namespace {

struct Outcome {
  std::string finding;  // the error that the checker reported on rank 0; "" if none
  Waits waits;          // all waits that the streams of rank 0 made
};

// Runs the toy model, in which the streams of rank 0 skip the waits that `of_rank_0` selects.
// Returns what the checker of rank 0 found.
Outcome run_deaf(atoll::MeshShape shape, const ToyRun& run, const Waits& of_rank_0) {
  Outcome outcome;
  const auto body = [&](atoll::World& world) {
    Waits waits;
    if (world.rank() == 0) waits = of_rank_0;
    const auto checked = atoll::checked_device(atoll::Device::cpu());
    const atoll::Device device(std::make_shared<DeafDevice>(checked, waits));
    const auto keep = [&](std::string_view what) {
      if (world.rank() == 0) outcome = {std::string(what), waits};
    };
    try {
      run_toy(atoll::Mesh::make(world, shape), run, device);
    } catch (const atoll::Error& error) {
      keep(error.what());
      throw;
    }
    keep("");
  };
  try {
    run_thread_ranks(shape.replicate * shape.shard, body);
  } catch (const atoll::Error&) {
    CHECK(outcome.finding != "");
  }
  return outcome;
}

// Leaves out each wait in turn; the checker must report the missing wait. Redundant waits are not
// tried. A wait is redundant if its stream is already ordered after the event or if the next wait
// implies the same order. For example, a reduction waits for the last step's reduction and then for
// compute; compute has itself waited for that reduction unless the step was skipped.
void check_every_edge(atoll::MeshShape shape, const ToyRun& run, bool slow = false) {
  const Outcome clean = run_deaf(shape, run, {.slow = slow});
  REQUIRE(clean.finding == "");
  std::map<std::string, int> found;  // number of missing waits that the checker found, by stream
  for (std::size_t n = 0; n < clean.waits.streams.size(); ++n) {
    if (!clean.waits.adds[n]) continue;
    CAPTURE(n);
    CAPTURE(clean.waits.streams[n]);
    const std::string finding =
        run_deaf(shape, run, {.deaf_to = static_cast<int>(n), .slow = slow}).finding;
    CAPTURE(finding);
    CHECK(finding.starts_with("ATOLL_CHECK=lifetimes: "));
    if (finding.find(", unordered: ") != std::string::npos) ++found[clean.waits.streams[n]];
  }
  MESSAGE(fsdp::name(run.engine.strategy), ": of ", clean.waits.streams.size(), " waits, ",
          found["compute"], " by compute, ", found["gather"], " by gather, ", found["reduce"],
          " by reduce, ", found["replicate"], " by replicate and ", found["update"],
          " by update are missed when left out");
  int sum = 0;
  for (const auto& [stream, count] : found) sum += count;
  CHECK(sum > 0);
}

ToyRun toy_run(Strategy strategy) {
  ToyRun run;
  run.units = toy_units();
  run.order = toy_order();
  run.steps = run.micro = 2;
  // The host must not wait, because that would order streams and hide missing waits.
  run.figures = false;
  run.engine.strategy = strategy;
  return run;
}

// Runs `misuse` on two ranks, with an engine that has the units "a" and "b". Returns the checker's
// finding on rank 0.
std::string finding_of(const std::function<void(fsdp::Engine&, atoll::Stream&)>& misuse,
                       Strategy strategy = Strategy::full_shard) {
  std::string finding;
  const auto body = [&](atoll::World& world) {
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 2}),
                        {.strategy = strategy, .prefetch = 0, .reduce_buffers = 1});
    for (const char* name : {"a", "b"}) engine.add_unit(name, {{"w", {8192}}});
    engine.seal({"a", "b"});
    engine.initialize(1);
    auto compute = engine.device().stream({.name = "compute"});
    try {
      misuse(engine, compute);
    } catch (const atoll::Error& error) {
      if (world.rank() == 0) finding = error.what();
      throw;
    }
  };
  try {
    run_thread_ranks(2, body, [](atoll::Config& config) { config.check = "lifetimes"; });
  } catch (const atoll::Error&) {
    CHECK(finding != "");
  }
  return finding;
}

// Reads memory as a debugger does, even if it is protected because its scope has ended.
float read_protected(const float* address) {
  float value = 0;
  const int memory = ::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  const auto bytes = ::pread(memory, &value, sizeof value, reinterpret_cast<off_t>(address));
  ::close(memory);
  if (bytes != sizeof value) throw std::runtime_error("cannot read /proc/self/mem");
  return value;
}

}  // namespace

TEST_CASE("the checker reports each wait of a step that is left out") {
  SUBCASE("with every strategy") {
    for (const auto strategy : fsdp::every_strategy()) check_every_edge({2, 2}, toy_run(strategy));
  }
  SUBCASE("when the host never runs ahead of its streams") {
    check_every_edge({2, 2}, toy_run(Strategy::hybrid_shard), true);
  }
  SUBCASE("with updates in backward, and when steps are skipped") {
    for (const auto strategy : {Strategy::no_shard, Strategy::hybrid_shard}) {
      ToyRun run = toy_run(strategy);
      run.updates = false;
      check_every_edge({2, 2}, run);
      run.updates = run.in_backward = true;
      run.optimizer = {.max_norm = 0, .skip_nonfinite = false};
      check_every_edge({2, 2}, run);
    }
  }
  SUBCASE("with secondary shards, two dtypes and frozen units") {
    ToyRun run = toy_run(Strategy::full_shard);
    run.units = toy_mixed_units();
    run.engine.secondary_shards = 2;
    run.engine.prefetch = 2;
    run.engine.precision.param = atoll::DType::bf16;
    check_every_edge({1, 4}, run);
  }
}

TEST_CASE("the checker reports a use of a unit after its scope") {
  const std::string text = finding_of([](fsdp::Engine& engine, atoll::Stream& compute) {
    auto pass = engine.begin({fsdp::PassOptions::Kind::eval, 0, 1}, compute);
    { const auto w = pass.forward(engine.unit("a")); }
    atoll::View late;
    {
      const auto w = pass.forward(engine.unit("b"));  // last unit: no other reuses its buffer
      late = w["w"];
      compute.use(late, atoll::Access::read, "matmul");
    }
    compute.use(late, atoll::Access::read, "matmul");
  });
  CHECK(has(text, "matmul on stream compute reads \"parameters of b\" (bytes 0 to 32768 of the "));
  CHECK(has(text, "after its lifetime has ended on stream compute"));
}

TEST_CASE("the checker reports a use of a unit after another unit has taken its slot") {
  const std::string text = finding_of([](fsdp::Engine& engine, atoll::Stream& compute) {
    auto pass = engine.begin({fsdp::PassOptions::Kind::eval, 0, 1}, compute);
    atoll::View late;
    {
      const auto w = pass.forward(engine.unit("a"));
      late = w["w"];
    }
    const auto w = pass.forward(engine.unit("b"));
    CHECK(w["w"].data != late.data);  // each scope maps the buffer at another address
    compute.backend().use(late.data, late.bytes(), atoll::Access::read, {"matmul"},
                          {"parameters of", "a"});
  });
  CHECK(has(text, "reads \"parameters of a\", but the memory holds \"parameters of b\""));
}

TEST_CASE("the checker reports a write to a gradient after its reduction has started") {
  for (const bool tells : {true, false}) {
    CAPTURE(tells);
    bool poisoned = false;
    const std::string text = finding_of([&](fsdp::Engine& engine, atoll::Stream& compute) {
      atoll::View late;
      {
        auto pass = engine.begin({}, compute);
        for (const auto& unit : engine.units()) const auto w = pass.forward(*unit);
        const auto w = pass.backward(engine.unit("b"));
        late = w.grad("w").view;
        compute.zero(late.data, late.bytes());
      }
      if (tells) compute.use(late, atoll::Access::write, "matmul");
      // A kernel whose use is not reported to the checker reads NaN.
      engine.scheduler().synchronize();
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      poisoned = std::isnan(read_protected(late.as<float>()));
    });
    if (tells) {
      CHECK(has(text, "matmul on stream compute writes \"gradient of b\""));
      CHECK(has(text, "after its lifetime has ended on stream reduce"));
    } else {
      CHECK(text == "");
      CHECK(poisoned);
    }
  }
}

TEST_CASE("the checker reports a read of a gradient shard without a wait for the reduction") {
  const auto read_shard = [](fsdp::Engine& engine, atoll::Stream& compute, bool waits) {
    run_pass(engine, compute, 0.0f);
    if (waits) engine.wait_gradients(compute);
    const auto shard = fsdp::state_of(engine.unit("a")).buckets[0].gradient;
    compute.use(shard, atoll::Access::read, "norm");
  };
  using namespace std::placeholders;
  CHECK(finding_of(std::bind(read_shard, _1, _2, true)) == "");
  const std::string text = finding_of(std::bind(read_shard, _1, _2, false));
  CHECK(has(text, "norm on stream compute reads \"gradient shard of a\""));
  CHECK(has(text, "reduce_scatter on stream reduce writes it, unordered"));
}

TEST_CASE("passes may use different streams of one device, but no stream of another device") {
  const auto passes = [](fsdp::Engine& engine, atoll::Stream& compute, atoll::Stream& other) {
    for (int micro = 0; micro < 4; ++micro) {
      atoll::Stream& stream = micro % 2 == 0 ? compute : other;
      run_pass(engine, stream, 0.0f, {fsdp::PassOptions::Kind::train, micro, 4});
    }
  };
  const auto on_two = [&](fsdp::Engine& engine, atoll::Stream& compute) {
    auto other = engine.device().stream({.name = "other"});
    passes(engine, compute, other);
  };
  for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad, Strategy::no_shard}) {
    CAPTURE(fsdp::name(strategy));
    CHECK(finding_of(on_two, strategy) == "");
  }
  CHECK(has(finding_of([&](fsdp::Engine& engine, atoll::Stream& compute) {
              auto stranger = atoll::Device::cpu().stream();
              passes(engine, compute, stranger);
            }),
            "an event of another device: take all streams from Engine::device()"));
}
