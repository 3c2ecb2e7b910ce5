// Wrong calls of engines, passes and optimizers: values that differ between ranks, callbacks that
// throw, objects that outlive their engine, calls at the wrong time or from two threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <latch>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/fsdp.hpp"
#include "atoll/log.hpp"
#include "atoll/optimizer.hpp"
#include "thread_ranks.hpp"
#include "unit/fsdp/misuse.hpp"
#include "unit/rank_reports.hpp"

namespace fsdp = atoll::fsdp;
using atoll_test::disagree;
using atoll_test::elements;
using atoll_test::error_of;
using atoll_test::Messages;
using atoll_test::on_threads;
using atoll_test::train;
using Kind = fsdp::PassOptions::Kind;
using Reports = std::vector<std::string>;

namespace {

// Runs `body` on two ranks, with an engine whose unit "a" has the parameter "w" = 1.
Reports on_engines(
    fsdp::Strategy strategy,
    const std::function<void(int rank, fsdp::Engine& engine, atoll::Stream& compute)>& body) {
  return on_threads(2, [&](atoll::World& world) {
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 2}), {.strategy = strategy});
    atoll_test::add_units(engine, {"a"}, elements);
    atoll_test::set_all(engine, 1.0f);
    auto compute = engine.device().stream();
    body(world.rank(), engine, compute);
    compute.synchronize();
    world.barrier();
    return std::string("done");
  });
}

void check(const Reports& reports, const Reports& expected) {
  REQUIRE(reports.size() == expected.size());
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    CAPTURE(rank);
    CHECK(reports[rank] == expected[rank]);
  }
}
void check_both(const Reports& reports, const std::string& text) { check(reports, {text, text}); }

}  // namespace

TEST_CASE("misuse of steps: another learning rate on one rank changes no parameter") {
  const auto reports =
      on_engines(fsdp::Strategy::no_shard, [](int rank, auto& engine, auto& compute) {
        fsdp::Optimizer optimizer(engine, atoll_test::plain_sgd);
        train(engine, compute);
        try {
          optimizer.step(rank == 0 ? 0.2f : 0.1f, compute);
        } catch (...) {
          compute.synchronize();
          if (engine.segments()[0].values.template as<float>()[0] != 1.0f)
            throw std::logic_error("the step has changed a parameter");
          throw;
        }
      });
  check_both(reports, disagree("Optimizer::step",
                               "the learning rate of step 1: 0.2 on rank 0, 0.1 on rank 1"));
}

TEST_CASE("misuse of steps: another gradient scale, and a rate of an earlier step") {
  const auto steps = [](const std::function<float(int, int)>& rate,
                        const std::function<float(int, int)>& scale) {
    return on_engines(fsdp::Strategy::full_shard, [&](int rank, auto& engine, auto& compute) {
      fsdp::Optimizer optimizer(engine);
      for (int step = 1; step <= 4; ++step) {
        train(engine, compute);
        optimizer.step(rate(rank, step), compute, {.gradient_scale = scale(rank, step)});
      }
    });
  };
  const auto equal = [](int, int step) { return 0.5f / static_cast<float>(step); };
  check_both(steps(equal, equal), "done");
  check_both(steps(equal, [](int rank, int) { return rank == 0 ? 2.0f : 1.0f; }),
             disagree("Optimizer::step",
                      "StepOptions::gradient_scale of step 1: 2 on rank 0, 1 on rank 1"));
  // Step 3 does not compare, and step 4 does.
  const auto third = [](int rank, int step) { return rank == 1 && step == 3 ? 0.25f : 0.5f; };
  check_both(
      steps(third, equal),
      disagree("Optimizer::step", "the learning rate of step 3: 0.5 on rank 0, 0.25 on rank 1"));
}

TEST_CASE("misuse of steps: a step that one rank cannot make") {
  const auto reports =
      on_engines(fsdp::Strategy::no_shard, [](int rank, auto& engine, auto& compute) {
        fsdp::Optimizer optimizer(engine);
        train(engine, compute);
        optimizer.step(rank == 0 ? 0.1f : -0.1f, compute);
      });
  const std::string text = "Optimizer::step: the learning rate -0.1 is not finite and 0 or above";
  check(reports, {"invalid argument: rank 1: " + text, "invalid argument: " + text});
}

TEST_CASE("misuse of steps: numbers of steps, and rates that are no numbers") {
  check_both(on_engines(fsdp::Strategy::no_shard,
                        [](int rank, auto& engine, auto&) {
                          fsdp::Optimizer(engine).set_steps(rank * 1000);
                        }),
             disagree("set_steps", "the number of steps: 0 on rank 0, 1000 on rank 1"));
  CHECK(error_of([](fsdp::Engine& e, auto&) { fsdp::Optimizer(e).set_steps(-1); }) ==
        "set_steps: the number of steps -1 is negative");
  CHECK(error_of([](fsdp::Engine& e, atoll::Stream& compute) {
          fsdp::Optimizer optimizer(e);
          train(e, compute);
          optimizer.step(std::numeric_limits<float>::quiet_NaN(), compute);
        }) == "Optimizer::step: the learning rate nan is not finite and 0 or above");
  CHECK(error_of([](fsdp::Engine& e, auto&) {
          fsdp::Optimizer optimizer(e, {.max_norm = 0, .skip_nonfinite = false});
          optimizer.update_in_backward(-1);
        }) == "update_in_backward: the learning rate -1 is not finite and 0 or above");
}

TEST_CASE("misuse of passes: one rank trains and the other evaluates") {
  check_both(on_engines(fsdp::Strategy::full_shard,
                        [](int rank, auto& engine, auto& compute) {
                          const auto pass =
                              engine.begin({.kind = rank == 0 ? Kind::train : Kind::eval}, compute);
                        }),
             disagree("begin", "PassOptions::kind: train on rank 0, eval on rank 1"));
}

TEST_CASE("misuse of passes: kinds that differ after the first step end the job at once") {
  const auto start = std::chrono::steady_clock::now();
  const Reports reports = on_engines(fsdp::Strategy::full_shard,
                                     [](int rank, fsdp::Engine& engine, atoll::Stream& compute) {
                                       train(engine, compute);
                                       engine.wait_gradients(compute);
                                       engine.parameters_changed(compute);
                                       if (rank == 0) return train(engine, compute);
                                       auto pass = engine.begin({.kind = Kind::eval}, compute);
                                       const auto w = pass.forward(engine.unit("a"));
                                     });
  CHECK(std::chrono::steady_clock::now() - start <
        std::chrono::seconds(10));  // the timeout is 20 s
  for (const std::string& report : reports) {
    CAPTURE(report);
    CHECK(report.find("\"train a\")") != std::string::npos);
    CHECK(report.find("\"eval a\")") != std::string::npos);
  }
}

TEST_CASE("misuse of callbacks: an exception on one rank is an error on all") {
  const auto fails = [](const std::function<void(fsdp::Engine&)>& call) {
    return on_engines(fsdp::Strategy::full_shard, [&](int rank, auto& engine, auto&) {
      if (rank == 0) return call(engine);
      try {
        call(engine);
      } catch (const std::runtime_error& error) {
        if (std::string(error.what()) != "no data") throw;
        throw atoll::Error(atoll::ErrorCode::internal, "its own exception");
      }
    });
  };
  const auto on_one = [](fsdp::Engine& engine) {
    if (engine.scheduler().shard_index() == 1) throw std::runtime_error("no data");
  };
  const std::string text = ": the callback threw an exception: no data";
  check(fails([&](fsdp::Engine& engine) {
          engine.assign([&](const auto&, auto) { on_one(engine); });
        }),
        {"invalid argument: rank 1: assign" + text, "internal error: its own exception"});
  check(fails([&](fsdp::Engine& engine) {
          engine.visit([&](const auto&, const auto&, auto) { on_one(engine); });
        }),
        {"invalid argument: rank 1: visit" + text, "internal error: its own exception"});
  CHECK(error_of([](fsdp::Engine& e, auto&) { e.assign(nullptr); }) ==
        "assign: the callback is an empty function");
  CHECK(error_of([](fsdp::Engine& e, auto&) { e.visit(nullptr); }) ==
        "visit: the callback is an empty function");
}

TEST_CASE("misuse of gradients: they are read before they are complete") {
  const std::string incomplete =
      "wait_gradients: called before all micro batches of the step are complete, so gradients are "
      "not sums over all ranks";
  CHECK(error_of([](fsdp::Engine& e, atoll::Stream& compute) { e.wait_gradients(compute); }) ==
        incomplete);
  CHECK(error_of([](fsdp::Engine& e, atoll::Stream& compute) {
          train(e, compute, {.micro = 0, .of = 2});
          e.wait_gradients(compute);
        }) == incomplete);
  CHECK(error_of([](fsdp::Engine& e, atoll::Stream& compute) {
          const auto pass = e.begin({}, compute);
          e.wait_gradients(compute);
        }) == incomplete);
  CHECK(error_of([](fsdp::Engine& e, atoll::Stream& compute) {
          const auto pass = e.begin({}, compute);
          e.parameters_changed(compute);
        }) == "parameters_changed: a pass is in progress and uses the parameters: end it first");
  CHECK(error_of([](fsdp::Engine& e, atoll::Stream& compute) {
          train(e, compute);
          for (int optimizer = 0; optimizer < 2; ++optimizer) {
            e.wait_gradients(compute);
            e.parameters_changed(compute);
          }
        }) == "no error");
}

TEST_CASE("misuse of gradients: an optimizer that does not wait for them") {
  const auto unwaited = [](fsdp::Engine& e, atoll::Stream& compute) {
    train(e, compute);
    e.wait_gradients(compute);
    e.parameters_changed(compute);
    train(e, compute);
    e.parameters_changed(compute);
  };
  CHECK(error_of(unwaited) ==
        "parameters_changed: called without wait_gradients() after the last micro batch, so an "
        "optimizer could read gradients that are not sums over all ranks yet: call "
        "wait_gradients() before the work that reads Segment::gradient, or refresh() if no work "
        "has read it");
  CHECK(error_of([](fsdp::Engine& e, atoll::Stream& compute) {
          train(e, compute);
          e.refresh();
          fsdp::Optimizer optimizer(e);
          train(e, compute);
          optimizer.step(0.1f, compute);
          e.parameters_changed(compute);
        }) == "no error");
}

TEST_CASE("misuse of gradients: a step without parameters_changed() is logged once") {
  const auto warnings = [](bool changes) {
    Messages messages;
    error_of([&](fsdp::Engine& e, atoll::Stream& compute) {
      for (int step = 0; step < 3; ++step) {
        train(e, compute);
        e.wait_gradients(compute);
        if (changes) e.parameters_changed(compute);
      }
    });
    return messages.count("without parameters_changed()");
  };
  CHECK(warnings(true) == 0);
  CHECK(warnings(false) == 1);
}

TEST_CASE("misuse of gradients: a gradient that backward does not ask for is logged once") {
  const auto warnings = [](bool asks, int micros) {
    Messages messages;
    error_of([&](fsdp::Engine& e, atoll::Stream& compute) {
      for (int micro = 0; micro < micros; ++micro) {
        auto pass = e.begin({.micro = micro, .of = micros}, compute);
        { const auto w = pass.forward(e.unit("a")); }
        const auto w = pass.backward(e.unit("a"));
        if (asks && micro == 0) static_cast<void>(w.grad("w"));
      }
    });
    return messages.count("a backward scope of unit a ended without grad(\"w\")");
  };
  CHECK(warnings(false, 3) == 1);
  CHECK(warnings(true, 1) == 0);
}

TEST_CASE("misuse of passes: a unit of another engine, a write during a pass") {
  CHECK(error_of([](fsdp::Engine& e, atoll::Stream& compute) {
          atoll::World world = atoll::World::single();
          auto other = std::make_unique<fsdp::Engine>(atoll::Mesh::make(world, {1, 1}));
          atoll_test::add_units(*other, {"a"}, elements);
          fsdp::Unit& unit = other->unit("a");
          auto pass = e.begin({}, compute);
          other.reset();
          const auto scope = pass.forward(unit);
        }) ==
        "forward: the unit is not one of this engine, or its engine has been destroyed: use "
        "Engine::unit() of the engine of this pass");
  CHECK(error_of([](fsdp::Engine& e, atoll::Stream& compute) {
          const auto pass = e.begin({}, compute);
          e.refresh();
        }) ==
        "Engine: a pass is in progress, so parameters cannot be written or loaded: end the Pass "
        "first");
}

TEST_CASE("misuse of passes: the lifetime checker finds a stream of another device") {
  const auto body = [](atoll::World& world) {
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 2}), {.strategy = fsdp::Strategy::full_shard});
    atoll_test::add_units(engine, {"a"}, elements);
    atoll_test::set_all(engine, 1.0f);
    auto compute = atoll::Device::cpu().stream();
    train(engine, compute);
    const std::string text =
        "rank " + std::to_string(world.rank()) +
        ": ATOLL_CHECK=lifetimes: a stream waits for an event of another device: take all streams "
        "from Engine::device() or Scheduler::device()";
    CHECK_THROWS_WITH_AS(engine.wait_gradients(compute), text.c_str(), atoll::Error);
  };
  atoll_test::run_thread_ranks(2, body, [](atoll::Config& c) { c.check = "lifetimes"; });
}

TEST_CASE("misuse of passes: unknown kinds") {
  CHECK(error_of([](fsdp::Engine& e, atoll::Stream& compute) {
          const auto pass = e.begin({.kind = static_cast<Kind>(9)}, compute);
        }) == "Engine::begin: PassOptions::kind = 9 is not a Kind");
}

TEST_CASE("misuse of optimizers: a use after a move") {
  CHECK(error_of([](fsdp::Engine& e, atoll::Stream& compute) {
          fsdp::Optimizer optimizer(e);
          fsdp::Optimizer moved = std::move(optimizer);
          train(e, compute);
          moved.step(0.1f, compute);
          optimizer.step(0.1f, compute);  // NOLINT(bugprone-use-after-move): the test is about it
        }) == "this Optimizer was moved from: use the Optimizer that it was moved to");
}

TEST_CASE("misuse of engines: an optimizer, a pass and a scope outlive their engine") {
  Messages messages;
  atoll::World world = atoll::World::single();
  auto compute = atoll::Device::cpu().stream();
  auto engine = std::make_unique<fsdp::Engine>(atoll::Mesh::make(world, {1, 1}));
  atoll_test::add_units(*engine, {"a"}, elements);
  atoll_test::set_all(*engine, 1.0f);
  std::optional<fsdp::Optimizer> optimizer(std::in_place, *engine);
  train(*engine, compute);
  optimizer->step(0.1f, compute);
  std::optional<fsdp::Pass> pass(engine->begin({}, compute));
  std::optional<fsdp::ForwardScope> scope(pass->forward(engine->unit("a")));
  engine.reset();
  CHECK(messages.count("an Engine was destroyed while a Pass of it exists: destroy every Pass") ==
        1);
  CHECK(messages.count("an Engine was destroyed before its Optimizer: destroy the Optimizer") == 1);
  CHECK_THROWS_WITH_AS(
      optimizer->step(0.1f, compute),
      "the engine of this Optimizer has been destroyed: destroy the Optimizer before its Engine",
      atoll::Error);
  CHECK_THROWS_WITH_AS((*scope)["w"],
                       "parameter w is used after its engine has been destroyed: destroy every "
                       "scope before its Engine",
                       atoll::Error);
  scope.reset();
  pass.reset();
  optimizer.reset();
  REQUIRE(world.failure().has_value());
  CHECK(std::string(world.failure()->what()).find("destroy every Pass before its Engine") !=
        std::string::npos);
}

TEST_CASE("misuse of passes: the compute stream is destroyed first") {
  atoll::World world = atoll::World::single();
  fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
  atoll_test::add_units(engine, {"a", "b"}, elements);
  atoll_test::set_all(engine, 1.0f);
  const std::string text =
      "the compute stream of this pass has been destroyed: destroy every Pass before the Stream "
      "that was passed to Engine::begin()";
  auto compute = std::make_unique<atoll::Stream>(engine.device().stream());
  {
    fsdp::Pass pass = engine.begin({}, *compute);
    static_cast<void>(pass.forward(engine.unit("a")));
    compute.reset();
    CHECK_THROWS_WITH_AS(static_cast<void>(pass.forward(engine.unit("b"))), text.c_str(),
                         atoll::Error);
  }
  CHECK_FALSE(world.failure().has_value());
  compute = std::make_unique<atoll::Stream>(engine.device().stream());
  train(engine, *compute);  // the engine works with another stream
  {
    fsdp::Pass pass = engine.begin({}, *compute);
    const fsdp::ForwardScope scope = pass.forward(engine.unit("a"));
    compute.reset();
  }
  REQUIRE(world.failure().has_value());
  CHECK(std::string(world.failure()->what()).find("at the end of a scope of unit a: " + text) !=
        std::string::npos);
}

TEST_CASE("a pass follows its compute stream when the stream is moved") {
  atoll::World world = atoll::World::single();
  fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
  atoll_test::add_units(engine, {"a"}, elements);
  atoll_test::set_all(engine, 1.0f);
  atoll::Stream first = engine.device().stream(), last = engine.device().stream();
  {
    fsdp::Pass pass = engine.begin({.kind = fsdp::PassOptions::Kind::eval}, first);
    const fsdp::ForwardScope scope = pass.forward(engine.unit("a"));
    atoll::Stream second = std::move(first);
    last = std::move(second);
    first = engine.device().stream();
  }
  CHECK_FALSE(world.failure().has_value());
}

TEST_CASE("misuse of engines: a second thread calls during a call") {
  CHECK(error_of([](fsdp::Engine& e, auto&) {
          std::latch inside{1}, refused{1};
          std::jthread first([&] {
            e.visit([&](const auto&, const auto&, auto) {
              inside.count_down();
              refused.wait();
            });
          });
          inside.wait();
          struct Release {
            std::latch& latch;
            ~Release() { latch.count_down(); }
          } const release{refused};
          e.visit([](const auto&, const auto&, auto) {});
        }) ==
        "visit: another thread is inside a call of this engine, so ranks could see their calls in "
        "different orders: call the engine from one thread at a time");
  CHECK(error_of([](fsdp::Engine& e, auto&) {
          e.visit([&](const auto&, const auto&, auto) { e.refresh(); });  // from the same thread
        }) == "no error");
}

TEST_CASE("misuse of engines: empty segments, and the axis of the shards") {
  CHECK(error_of([](fsdp::Engine& e, auto&) {
          e.add_state("momentum");
          e.state(fsdp::Segment{}, "momentum");
        }) == "state(momentum): the segment is empty: pass a segment of Engine::segments()");
  const auto reports = on_threads(4, [](atoll::World& world) {
    std::string sizes;
    for (const auto strategy :
         {fsdp::Strategy::no_shard, fsdp::Strategy::hybrid_shard, fsdp::Strategy::full_shard}) {
      const fsdp::Engine engine(atoll::Mesh::make(world, {2, 2}), {.strategy = strategy});
      sizes += " " + std::to_string(engine.shard_axis().size());
    }
    return sizes;
  });
  check(reports, {" 1 2 4", " 1 2 4", " 1 2 4", " 1 2 4"});
}

TEST_CASE("misuse of engines: options without a meaning, or different on ranks") {
  const auto with = [](const fsdp::Options& mine, const fsdp::Options& other) {
    return on_threads(2, [&](atoll::World& world) {
      const fsdp::Engine engine(atoll::Mesh::make(world, {1, 2}), world.rank() == 0 ? mine : other);
      return std::string("made");
    });
  };
  const fsdp::Options strange{.strategy = static_cast<fsdp::Strategy>(99)};
  const auto reports = with(strange, strange);
  CHECK(reports[0] == "invalid argument: Engine: Options::strategy = 99 has no meaning");
  check_both(with({}, {.synchronous = true}),
             disagree("Engine", "Options::synchronous: no on rank 0, yes on rank 1"));
  CHECK(error_of([](fsdp::Engine& e, auto&) {
          fsdp::Optimizer(e, {.kind = static_cast<fsdp::OptimizerOptions::Kind>(9)});
        }) == "Optimizer: OptimizerOptions::kind = 9 is not a Kind");
}

TEST_CASE("misuse of engines: units and parameters that cannot be") {
  const auto adds = [](const std::string& unit, std::vector<fsdp::ParamSpec> params) {
    atoll::World world = atoll::World::single();
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
    try {
      engine.add_unit(unit, std::move(params));
    } catch (const atoll::Error& error) {
      return std::string(error.what());
    }
    return std::string("added");
  };
  const std::string init = ": both must be finite, and the deviation 0 or above";
  CHECK(adds("a/b\n", {{"w", {1}}}) == "add_unit: the name of a unit has a control character");
  CHECK(adds("a", {{"w\t", {1}}}) ==
        "add_unit(a): the name of parameter 0 has a control character");
  CHECK(adds("a\xff", {{"w", {1}}}) == "add_unit: the name of a unit is not valid UTF-8");
  CHECK(adds("a", {{"\xc3", {1}}}) == "add_unit(a): the name of parameter 0 is not valid UTF-8");
  CHECK(adds("a", {{"w", {1}}, {"w", {1}}}) ==
        "add_unit(a): two parameters have the name w: choose another name for one of them");
  CHECK(adds("a", {{"w", {1}, {0, -1}}}) ==
        "add_unit(a): parameter w has the initial mean 0 and deviation -1" + init);
  CHECK(adds("a", {{"w", {1}, {std::numeric_limits<float>::quiet_NaN(), 1}}}) ==
        "add_unit(a): parameter w has the initial mean nan and deviation 1" + init);
  CHECK(adds("a", {{"w", {std::int64_t{1} << 61, 2}}}) ==
        "add_unit(a): parameter w has the impossible shape 2305843009213693952 x 2: extents must "
        "be 0 or above, and a unit has at most 281474976710656 elements");
}
