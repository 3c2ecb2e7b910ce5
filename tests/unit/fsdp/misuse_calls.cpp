// Wrong calls of engines, passes and optimizers: values that differ between ranks, callbacks that
// throw, objects that outlive their engine, calls at the wrong time or from two threads.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <latch>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/fsdp.hpp"
#include "atoll/optimizer.hpp"
#include "thread_ranks.hpp"
#include "unit/collected_log.hpp"
#include "unit/fsdp/misuse.hpp"
#include "unit/rank_reports.hpp"

namespace fsdp = atoll::fsdp;
using atoll::Stream;
using atoll_test::CollectedLog;
using atoll_test::disagree;
using atoll_test::elements;
using atoll_test::engine_error;
using atoll_test::has;
using atoll_test::on_threads;
using atoll_test::train;
using fsdp::Engine;
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

// Wrong uses of an engine of one rank with the unit "a", and the errors that name them.
struct Use {
  std::string_view error;
  void (*use)(Engine&, Stream&);
};
void check_uses(std::initializer_list<Use> uses) {
  for (const auto& [error, use] : uses) CHECK(has(engine_error(use), error));
}

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
  // The ranks do not compare their rates in step 3; step 4 finds the difference.
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
  check_uses({{"set_steps: the number of steps -1 is negative",
               [](Engine& e, Stream&) { fsdp::Optimizer(e).set_steps(-1); }},
              {"Optimizer::step: the learning rate nan is not finite and 0 or above",
               [](Engine& e, Stream& compute) {
                 fsdp::Optimizer optimizer(e);
                 train(e, compute);
                 optimizer.step(std::numeric_limits<float>::quiet_NaN(), compute);
               }},
              {"update_in_backward: the learning rate -1 is not finite and 0 or above",
               [](Engine& e, Stream&) {
                 fsdp::Optimizer optimizer(e, {.max_norm = 0, .skip_nonfinite = false});
                 optimizer.update_in_backward(-1);
               }},
              {"Optimizer::step: a step has already used these gradients: begin a pass first",
               [](Engine& e, Stream& compute) {
                 fsdp::Optimizer optimizer(e);
                 train(e, compute);
                 optimizer.step(0.1f, compute);
                 optimizer.step(0.1f, compute);
               }},
              {"this Optimizer was moved from: use the Optimizer that it was moved to",
               [](Engine& e, Stream& compute) {
                 fsdp::Optimizer optimizer(e);
                 fsdp::Optimizer moved = std::move(optimizer);
                 train(e, compute);
                 moved.step(0.1f, compute);
                 optimizer.step(0.1f, compute);  // NOLINT(bugprone-use-after-move): it is the test
               }}});
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
  for (const std::string& report : reports) CHECK(has(report, {"\"train a\")", "\"eval a\")"}));
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
  check_uses(
      {{"assign: the callback is an empty function", [](Engine& e, Stream&) { e.assign(nullptr); }},
       {"visit: the callback is an empty function", [](Engine& e, Stream&) { e.visit(nullptr); }}});
}

TEST_CASE("misuse of gradients: they are used before they are complete") {
  const char* const too_early = "wait_gradients: called before all micro batches of the step";
  check_uses({{too_early, [](Engine& e, Stream& compute) { e.wait_gradients(compute); }},
              {too_early,
               [](Engine& e, Stream& compute) {
                 train(e, compute, {.micro = 0, .of = 2});
                 e.wait_gradients(compute);
               }},
              {too_early,
               [](Engine& e, Stream& compute) {
                 const auto pass = e.begin({}, compute);
                 e.wait_gradients(compute);
               }},
              {"parameters_changed: a pass is in progress and uses the parameters: end it first",
               [](Engine& e, Stream& compute) {
                 const auto pass = e.begin({}, compute);
                 e.parameters_changed(compute);
               }},
              {"parameters_changed: called without wait_gradients() after the last micro batch",
               [](Engine& e, Stream& compute) {
                 train(e, compute);
                 e.parameters_changed(compute);
               }},
              {"no error",
               [](Engine& e, Stream& compute) {
                 train(e, compute);
                 for (int optimizer = 0; optimizer < 2; ++optimizer) {
                   e.wait_gradients(compute);
                   e.parameters_changed(compute);
                 }
               }},
              {"no error", [](Engine& e, Stream& compute) {
                 train(e, compute);
                 e.refresh();
                 fsdp::Optimizer optimizer(e);
                 train(e, compute);
                 optimizer.step(0.1f, compute);
                 e.parameters_changed(compute);
               }}});
}

TEST_CASE("misuse of gradients: a step without parameters_changed() is logged once") {
  for (const bool changes : {true, false}) {
    const CollectedLog log;
    engine_error([&](fsdp::Engine& e, atoll::Stream& compute) {
      for (int step = 0; step < 3; ++step) {
        train(e, compute);
        e.wait_gradients(compute);
        if (changes) e.parameters_changed(compute);
      }
    });
    CHECK(log.count("without parameters_changed()") == (changes ? 0 : 1));
  }
}

TEST_CASE("misuse of gradients: a gradient that backward does not ask for is logged once") {
  for (const bool asks : {true, false}) {
    const CollectedLog log;
    engine_error([&](fsdp::Engine& e, atoll::Stream& compute) {
      const int micros = asks ? 1 : 3;
      for (int micro = 0; micro < micros; ++micro) {
        auto pass = e.begin({.micro = micro, .of = micros}, compute);
        { const auto w = pass.forward(e.unit("a")); }
        const auto w = pass.backward(e.unit("a"));
        if (asks) static_cast<void>(w.grad("w"));
      }
    });
    CHECK(log.count("a backward scope of unit a ended without grad(\"w\")") == (asks ? 0 : 1));
  }
}

TEST_CASE("misuse of passes: other passes, units and writes while one is open") {
  const char* const write = "a pass is in progress, so parameters cannot be written or loaded";
  check_uses(
      {{"the pass of micro batch 0 of 2 is still open, after 1 of 2 uses of units: an engine "
        "runs one pass at a time",
        [](Engine& e, Stream& compute) {
          auto pass = e.begin({.micro = 0, .of = 2}, compute);
          { const auto scope = pass.forward(e.unit("a")); }
          const auto ahead = e.begin({.micro = 1, .of = 2}, compute);
        }},
       {"an evaluation pass is still open, after 0 of 1 uses of units",
        [](Engine& e, Stream& compute) {
          const auto pass = e.begin({.kind = Kind::eval}, compute);
          const auto other = e.begin({}, compute);
        }},
       {"Engine::begin: PassOptions::kind = 9 is not a Kind",
        [](Engine& e, Stream& compute) {
          const auto pass = e.begin({.kind = static_cast<Kind>(9)}, compute);
        }},
       {"forward: the unit is not one of this engine, or its engine has been destroyed",
        [](Engine& e, Stream& compute) {
          atoll::World world = atoll::World::single();
          auto other = std::make_unique<Engine>(atoll::Mesh::make(world, {1, 1}));
          atoll_test::add_units(*other, {"a"}, elements);
          fsdp::Unit& unit = other->unit("a");
          auto pass = e.begin({}, compute);
          other.reset();
          const auto scope = pass.forward(unit);
        }},
       {write,
        [](Engine& e, Stream& compute) {
          const auto pass = e.begin({}, compute);
          e.refresh();
        }},
       {write,
        [](Engine& e, Stream& compute) {
          const auto pass = e.begin({}, compute);
          e.initialize(1);
        }},
       {write, [](Engine& e, Stream& compute) {
          const auto pass = e.begin({}, compute);
          atoll_test::set_all(e, 7.0f);
        }}});
}

TEST_CASE("misuse of passes: scopes that outlive their pass, and moved scopes and passes") {
  // NOLINTBEGIN(bugprone-use-after-move): the test is about these uses
  check_uses(
      {{"parameter w of unit a is used after the end of its pass: destroy every scope before",
        [](Engine& e, Stream& compute) {
          std::optional<fsdp::Pass> pass(e.begin({}, compute));
          std::optional<fsdp::ForwardScope> scope(pass->forward(e.unit("a")));
          pass.reset();
          (*scope)["w"];
        }},
       {"parameter w is used through a scope that has been moved: use the scope",
        [](Engine& e, Stream& compute) {
          auto pass = e.begin({}, compute);
          auto scope = pass.forward(e.unit("a"));
          const auto moved = std::move(scope);
          scope["w"];
        }},
       {"forward: this Pass has been moved: use the Pass that it was moved to",
        [](Engine& e, Stream& compute) {
          auto pass = e.begin({}, compute);
          const auto moved = std::move(pass);
          const auto scope = pass.forward(e.unit("a"));
        }},
       {"state(momentum): the segment is empty: pass a segment of Engine::segments()",
        [](Engine& e, Stream&) {
          e.add_state("momentum");
          e.state(fsdp::Segment{}, "momentum");
        }}});
  // NOLINTEND(bugprone-use-after-move)
}

TEST_CASE("misuse of engines: an optimizer, a pass and a scope outlive their engine") {
  const CollectedLog log;
  atoll::World world = atoll::World::single();
  auto compute = atoll::Device::cpu().stream();
  auto engine = std::make_unique<fsdp::Engine>(atoll::Mesh::make(world, {1, 1}));
  atoll_test::add_units(*engine, {"a"}, elements);
  atoll_test::set_all(*engine, 1.0f);
  std::optional<fsdp::Optimizer> optimizer(std::in_place, *engine);
  std::optional<fsdp::Pass> pass(engine->begin({}, compute));
  std::optional<fsdp::ForwardScope> scope(pass->forward(engine->unit("a")));
  engine.reset();
  CHECK(log.count("an Engine was destroyed while a Pass of it exists: destroy every Pass") == 1);
  CHECK(log.count("an Engine was destroyed before its Optimizer: destroy the Optimizer") == 1);
  CHECK_THROWS_WITH_AS(optimizer->step(0.1f, compute),
                       doctest::Contains("the engine of this Optimizer has been destroyed"),
                       atoll::Error);
  CHECK_THROWS_WITH_AS((*scope)["w"],
                       doctest::Contains("parameter w is used after its engine has been destroyed"),
                       atoll::Error);
  scope.reset();
  pass.reset();
  optimizer.reset();
  REQUIRE(world.failure().has_value());
  CHECK(has(world.failure()->what(), "destroy every Pass before its Engine"));
}

TEST_CASE("misuse of passes: the compute stream is destroyed first") {
  atoll::World world = atoll::World::single();
  fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
  atoll_test::add_units(engine, {"a", "b"}, elements);
  atoll_test::set_all(engine, 1.0f);
  const std::string text = "the compute stream of this pass has been destroyed";
  auto compute = std::make_unique<atoll::Stream>(engine.device().stream());
  {
    fsdp::Pass pass = engine.begin({}, *compute);
    static_cast<void>(pass.forward(engine.unit("a")));
    compute.reset();
    CHECK_THROWS_WITH_AS(static_cast<void>(pass.forward(engine.unit("b"))),
                         doctest::Contains(text.c_str()), atoll::Error);
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
  CHECK(has(world.failure()->what(), "at the end of a scope of unit a: " + text));
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
  CHECK(
      has(engine_error([](fsdp::Engine& e, auto&) {
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
          }),
          {"visit: another thread is inside a call of this engine", "from one thread at a time"}));
  CHECK(engine_error([](fsdp::Engine& e, auto&) {
          e.visit([&](const auto&, const auto&, auto) { e.refresh(); });  // from the same thread
        }) == "no error");
}

TEST_CASE("the axis of the shards is that of the strategy") {
  const auto reports = on_threads(4, [](atoll::World& world) {
    std::string sizes;
    for (const auto strategy :
         {fsdp::Strategy::no_shard, fsdp::Strategy::hybrid_shard, fsdp::Strategy::full_shard}) {
      const Engine engine(atoll::Mesh::make(world, {2, 2}), {.strategy = strategy});
      sizes += " " + std::to_string(engine.shard_axis().size());
    }
    return sizes;
  });
  check(reports, Reports(4, " 1 2 4"));
}
