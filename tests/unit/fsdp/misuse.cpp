// Wrong uses of the engine: each is one clear error, the same on every rank, and never a hang.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "atoll/communicator.hpp"
#include "atoll/planner.hpp"
#include "thread_ranks.hpp"
#include "unit/fsdp/misuse.hpp"
#include "unit/rank_reports.hpp"
#include "unit/train/data_temporary.hpp"

namespace fsdp = atoll::fsdp;
using atoll_test::disagree;
using atoll_test::engine_error;
using atoll_test::error_before_seal;
using atoll_test::error_of;
using atoll_test::has;
using fsdp::Engine;
using Kind = fsdp::PassOptions::Kind;

namespace {

std::vector<fsdp::ParamSpec> weights(std::vector<std::int64_t> shape) {
  return {{.name = "w", .shape = std::move(shape)}};
}

// The choices of one rank that makes an engine; each test changes one of them on rank 1.
struct Choices {
  fsdp::Options options{};
  std::vector<std::pair<std::string, std::vector<fsdp::ParamSpec>>> units{{"a", weights({4, 8})},
                                                                          {"b", weights({16})}};
  std::vector<std::string> order{"a", "b"};
  std::uint64_t seed = 1;
  fsdp::OptimizerOptions optimizer{};
};

struct Difference {
  const char* call;
  const char* what;
  void (*change)(Choices&);
};

// Makes an engine and an optimizer on two ranks. Returns the error that both ranks report.
std::string report(const std::function<void(Choices&)>& change) {
  const auto reports = atoll_test::on_threads(2, [&](atoll::World& world) {
    Choices choices;
    if (world.rank() == 1) change(choices);
    Engine engine(atoll::Mesh::make(world, {1, 2}), choices.options);
    for (auto& [name, params] : choices.units) engine.add_unit(name, params);
    engine.seal(choices.order);
    engine.initialize(choices.seed);
    fsdp::Optimizer optimizer(engine, choices.optimizer);
    return std::string("trained");
  });
  CHECK(reports[0] == reports[1]);
  return reports[0];
}

}  // namespace

TEST_CASE("engine misuse: ranks with different choices are named before any collective") {
  CHECK(report([](Choices&) {}) == "trained");
  const Difference differences[] = {
      {"Engine", "Options::strategy: hybrid_shard on rank 0, full_shard on rank 1",
       [](Choices& c) { c.options.strategy = fsdp::Strategy::full_shard; }},
      {"Engine", "Precision::param: f32 on rank 0, bf16 on rank 1",
       [](Choices& c) { c.options.precision.param = atoll::DType::bf16; }},
      {"Engine", "Precision::reduce: f32 on rank 0, bf16 on rank 1",
       [](Choices& c) { c.options.precision.reduce = atoll::DType::bf16; }},
      {"Engine", "Options::accumulation: auto on rank 0, local on rank 1",
       [](Choices& c) { c.options.accumulation = fsdp::Accumulation::local; }},
      {"Engine", "Options::gradients: sum on rank 0, average on rank 1",
       [](Choices& c) { c.options.gradients = fsdp::GradientScale::average; }},
      {"Engine", "Options::reduce_buffers: 2 on rank 0, 3 on rank 1",
       [](Choices& c) { c.options.reduce_buffers = 3; }},
      {"Engine", "Options::prefetch: 1 on rank 0, 2 on rank 1",
       [](Choices& c) { c.options.prefetch = 2; }},
      {"Engine", "Options::secondary_shards: 0 on rank 0, 2 on rank 1",
       [](Choices& c) { c.options.secondary_shards = 2; }},
      {"Engine", "Options::gather_units: none on rank 0, few on rank 1",
       [](Choices& c) { c.options.gather_units = atoll::ComputeUnits::few; }},
      {"Engine", "Options::synchronous: no on rank 0, yes on rank 1",
       [](Choices& c) { c.options.synchronous = true; }},
      {"seal", "the shape of parameter w of unit a: 4 x 8 on rank 0, 8 x 4 on rank 1",
       [](Choices& c) {
         c.units[0].second = weights({8, 4});
       }},
      {"seal", "the dtype of parameter w of unit b: f32 on rank 0, bf16 on rank 1",
       [](Choices& c) { c.units[1].second[0].dtype = atoll::DType::bf16; }},
      {"seal", "the trainable flag of parameter w of unit b: yes on rank 0, no on rank 1",
       [](Choices& c) { c.units[1].second[0].trainable = false; }},
      {"seal", "the name of parameter 0 of unit a: \"w\" on rank 0, \"v\" on rank 1",
       [](Choices& c) { c.units[0].second[0].name = "v"; }},
      {"seal", "position 0 of the order of units: a on rank 0, b on rank 1",
       [](Choices& c) { std::swap(c.order[0], c.order[1]); }},
      {"seal", "the length of the order of units: 2 on rank 0, 3 on rank 1",
       [](Choices& c) { c.order.emplace_back("a"); }},
      {"initialize", "the seed: 1 on rank 0, 2 on rank 1", [](Choices& c) { c.seed = 2; }},
      {"Optimizer", "OptimizerOptions::kind: adamw on rank 0, sgd on rank 1",
       [](Choices& c) { c.optimizer.kind = fsdp::OptimizerOptions::Kind::sgd; }},
      {"Optimizer", "OptimizerOptions::beta1: 0.9 on rank 0, 0.5 on rank 1",
       [](Choices& c) { c.optimizer.beta1 = 0.5f; }}};
  for (const auto& [call, what, change] : differences) {
    CHECK(report(change) == disagree(call, what));
  }
}

TEST_CASE("engine misuse: ranks with another number of micro batches") {
  const auto reports = atoll_test::on_threads(2, [&](atoll::World& world) {
    Engine engine(atoll::Mesh::make(world, {1, 2}));
    engine.add_unit("a", weights({4}));
    engine.seal({"a"});
    engine.initialize(1);
    auto compute = engine.device().stream();
    { const auto pass = engine.begin({.kind = Kind::eval}, compute); }
    const auto pass = engine.begin({.of = world.rank() + 2}, compute);
    return std::string("begun");
  });
  for (const std::string& report : reports)
    CHECK(report == disagree("begin", "PassOptions::of: 2 on rank 0, 3 on rank 1"));
}

TEST_CASE("engine misuse: calls before seal()") {
  const auto name = [](const auto&, const auto& param) { return param.name; };
  const std::pair<const char*, std::function<void(Engine&, atoll::Stream&)>> calls[] = {
      {"initialize", [](Engine& e, auto&) { e.initialize(1); }},
      {"begin", [](Engine& e, auto& compute) { static_cast<void>(e.begin({}, compute)); }},
      {"wait_gradients", [](Engine& e, auto& compute) { e.wait_gradients(compute); }},
      {"parameters_changed", [](Engine& e, auto& compute) { e.parameters_changed(compute); }},
      {"segments", [](Engine& e, auto&) { e.segments(); }},
      {"refresh", [](Engine& e, auto&) { e.refresh(); }},
      {"assign", [](Engine& e, auto&) { e.assign([](const auto&, auto) {}); }},
      {"visit", [](Engine& e, auto&) { e.visit([](const auto&, const auto&, auto) {}); }},
      {"add_state", [](Engine& e, auto&) { e.add_state("m"); }},
      {"save", [](Engine& e, auto&) { fsdp::save("unused", e); }},
      {"load", [](Engine& e, auto&) { fsdp::load("unused", e); }},
      {"Optimizer", [](Engine& e, auto&) { fsdp::Optimizer optimizer(e); }},
      {"export_weights",
       [&](Engine& e, auto&) { fsdp::export_weights("unused", e, atoll::DType::f32, name); }},
      {"import_weights", [&](Engine& e, auto&) { fsdp::import_weights({"unused"}, e, name); }}};
  for (const auto& [call, use] : calls) {
    CHECK(error_before_seal([&](Engine& engine) {
            engine.add_unit("a", weights({4}));
            auto compute = engine.device().stream();
            use(engine, compute);
          }) == "invalid argument: " + std::string(call) + ": call Engine::seal() first");
  }
}

TEST_CASE("engine misuse: units and parameters that cannot be") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr std::int64_t huge = std::int64_t{1} << 61;
  struct Wrong {
    const char* unit;
    std::vector<fsdp::ParamSpec> params;
    const char* error;
  };
  const Wrong wrong[] = {
      {"", {{"w", {4}}}, "add_unit: a unit needs a name"},
      {"a", {}, "add_unit(a): a unit needs at least one parameter"},
      {"a", {{"", {4}}}, "add_unit(a): parameter 0 needs a name"},
      {"a/b\n", {{"w", {1}}}, "the name of a unit has a control character"},
      {"a", {{"w\t", {1}}}, "add_unit(a): the name of parameter 0 has a control character"},
      {"a\xff", {{"w", {1}}}, "the name of a unit is not valid UTF-8"},
      {"a", {{"\xc3", {1}}}, "add_unit(a): the name of parameter 0 is not valid UTF-8"},
      {"a",
       {{"w", {1}}, {"w", {1}}},
       "add_unit(a): two parameters have the name w: choose another"},
      {"a",
       {{"w", {1}, {0, -1}}},
       "parameter w has the initial mean 0 and deviation -1: both must"},
      {"a", {{"w", {1}, {nan, 1}}}, "parameter w has the initial mean nan and deviation 1: both"},
      {"a", {{"w", {-1}}}, "parameter w has the impossible shape -1"},
      {"a", {{"w", {huge, 2}}}, "parameter w has the impossible shape 2305843009213693952 x 2"}};
  for (const auto& [unit, params, text] : wrong) {
    CHECK(has(error_before_seal([&](Engine& e) { e.add_unit(unit, params); }), text));
  }
  CHECK(error_before_seal([](Engine& e) {
          e.add_unit("a", {{"w", {0}}, {"scalar", {}}});
        }) == "no error");
}

TEST_CASE("engine misuse: options out of range, or without a meaning") {
  using OptimizerOptions = fsdp::OptimizerOptions;
  const std::pair<OptimizerOptions, const char*> wrong[] = {
      {{.beta1 = 1.5f}, "OptimizerOptions: beta1 = 1.5 is not in [0, 1)"},
      {{.beta2 = -0.1f}, "OptimizerOptions: beta2 = -0.1 is not in [0, 1)"},
      {{.epsilon = 0}, "OptimizerOptions: epsilon = 0 is not above 0"},
      {{.weight_decay = -1}, "OptimizerOptions: weight_decay = -1 is not 0 or above"},
      {{.max_norm = -1}, "OptimizerOptions: max_norm = -1 is not 0 (no clipping) or above"},
      {{.kind = static_cast<OptimizerOptions::Kind>(9)},
       "OptimizerOptions::kind = 9 is not a Kind"}};
  for (const auto& [options, text] : wrong) {
    CHECK(
        has(engine_error([&](Engine& e, auto&) { fsdp::Optimizer optimizer(e, options); }), text));
  }
  const auto with = [](const fsdp::Options& options) {
    atoll::World world = atoll::World::single();
    return error_of([&] { const Engine engine(atoll::Mesh::make(world, {1, 1}), options); });
  };
  CHECK(has(with({.strategy = static_cast<fsdp::Strategy>(99)}),
            "Engine: Options::strategy = 99 has no meaning"));
  CHECK(has(with({.device = atoll::simulated::make_device({}), .synchronous = true}),
            "Options::synchronous is for trainers that compute on the CPU, but the device is "));
  CHECK(has(with({.precision = {.param = atoll::DType::f64}}),
            "parameters cannot be f64: use f32, bf16 or f16"));
  CHECK(has(with({.precision = {.param = atoll::DType::f16, .reduce = atoll::DType::f16}}),
            "gradients cannot be reduced in f16: use f32 or bf16"));
}

TEST_CASE("engine misuse: parameters are read while a pass is open") {
  const auto name = [](const auto&, const auto& param) { return param.name; };
  const std::pair<const char*, std::function<void(Engine&)>> reads[] = {
      {"visit", [](Engine& e) { e.visit([](const auto&, const auto&, auto) {}); }},
      {"save", [](Engine& e) { fsdp::save("unused", e); }},
      {"export_weights",
       [&](Engine& e) { fsdp::export_weights("unused", e, atoll::DType::f32, name); }}};
  for (const auto& [call, read] : reads) {
    CHECK(has(engine_error([&](Engine& engine, atoll::Stream& compute) {
                { const auto pass = engine.begin({.kind = Kind::eval}, compute); }
                engine.visit([](const auto&, const auto&, auto) {});
                const auto pass = engine.begin({}, compute);
                read(engine);
              }),
              std::string(call) + ": a pass is in progress, and may change parameters: end"));
  }
}

TEST_CASE("engine misuse: a scope that outlives its pass does not disturb the next pass") {
  CHECK(engine_error([](Engine& engine, atoll::Stream& compute) {
          fsdp::Unit& unit = engine.unit("a");
          fsdp::Optimizer optimizer(engine);
          std::optional<fsdp::Pass> pass(engine.begin({}, compute));
          { const auto scope = pass->forward(unit); }
          std::optional<fsdp::BackwardScope> late(pass->backward(unit));
          pass.reset();
          // The gradients of the abandoned pass are not used.
          CHECK(has(error_of([&] { optimizer.step(0.1f, compute); }), "before all micro batches"));
          pass.emplace(engine.begin({}, compute));
          { const auto scope = pass->forward(unit); }
          late.reset();
          {
            const auto scope = pass->backward(unit);
            compute.enqueue([g = scope.grad("w").view] {
              std::fill_n(g.as<float>(), g.count, 0.0f);
              g.as<float>()[0] = 2.0f;
            });
          }
          pass.reset();
          optimizer.step(0.1f, compute);
          CHECK(optimizer.grad_norm() == 2.0f);
        }) == "no error");
}

TEST_CASE("engine misuse: a view as another type than its own") {
  std::vector<float> values(4);
  CHECK_THROWS_WITH_AS(atoll::ConstView(values).as<atoll::bfloat16>(),
                       "a view of f32 is read or written as bf16", atoll::Error);
  CHECK_THROWS_WITH_AS(atoll::View(values).as<double>(), "a view of f32 is read or written as f64",
                       atoll::Error);
}

TEST_CASE("engine misuse: a checkpoint that does not fit names the first difference") {
  using Params = std::vector<fsdp::ParamSpec>;
  const auto load_error = [](const Params& saved, const Params& loaded,
                             fsdp::OptimizerOptions options = {}) {
    const train_test::TemporaryFolder folder;
    const auto with = [](const Params& params, const fsdp::OptimizerOptions& with_options,
                         const auto& use) {
      return error_before_seal([&](Engine& engine) {
        engine.add_unit("a", params);
        engine.seal({"a"});
        engine.initialize(1);
        fsdp::Optimizer optimizer(engine, with_options);
        use(engine, optimizer);
      });
    };
    CHECK(with(saved, {}, [&](auto& e, auto& o) { fsdp::save(folder.path(), e, o); }) ==
          "no error");
    return with(loaded, options, [&](auto& e, auto& o) { fsdp::load(folder.path(), e, o); });
  };
  CHECK(has(load_error({{"w", {4, 8}}}, {{"w", {8, 4}}}),
            {"index.json: the shape of parameter w of unit a: [4,8] in the checkpoint, [8,4] in"}));
  CHECK(has(load_error({{"w", {4}}}, {{"v", {4}}}),
            "the name of parameter 0 of unit a: \"w\" in the checkpoint, \"v\" in the model"));
  CHECK(has(load_error({{"w", {4}}}, {{"w", {4}}, {"v", {4}}}),
            "the number of parameters of unit a: 1 in the checkpoint, 2 in the model"));
  CHECK(has(load_error({{"w", {4}}}, {{"w", {4}}}, {.kind = fsdp::OptimizerOptions::Kind::sgd}),
            {"the optimizer: \"adamw\" in the checkpoint, \"sgd\" in the job", "import_weights"}));
}

TEST_CASE("misuse: moving a World that a mesh refers to") {
  atoll::World world = atoll::World::single();
  const auto refused = doctest::Contains("a World cannot be moved while a mesh or an axis of it");
  {
    const auto mesh = atoll::Mesh::make(world, {1, 1});
    CHECK_THROWS_WITH_AS(atoll::World(std::move(world)), refused, atoll::Error);
    CHECK_THROWS_WITH_AS(world = atoll::World::single(), refused, atoll::Error);
    CHECK(world.size() == 1);
  }
  {
    std::optional<atoll::Communicator> part;
    {
      const auto mesh = atoll::Mesh::make(world, {1, 1});
      part = atoll::Communicator::open(mesh.axis("shard"), {.backend = "host"}).split(0);
    }
    REQUIRE(part.has_value());
    CHECK_THROWS_AS(atoll::World(std::move(world)), atoll::Error);  // `part` refers to the World
    CHECK(world.size() == 1);
  }
  const atoll::World moved = std::move(world);
  CHECK(moved.size() == 1);
}

TEST_CASE("misuse: a gradient that backward does not write is found by the lifetime checker") {
  const auto run = [](std::size_t written) {
    atoll::Config config;
    config.check = "lifetimes";
    config.log = "error";
    atoll::World world = atoll::World::single(config);
    Engine engine(atoll::Mesh::make(world, {1, 1}));
    fsdp::Unit& unit =
        engine.add_unit("a", {{.name = "v", .shape = {3}}, {.name = "w", .shape = {2, 8}}});
    engine.seal({"a"});
    engine.initialize(1);
    auto compute = engine.device().stream();
    return error_of([&] {
      auto pass = engine.begin({}, compute);
      { auto scope = pass.forward(unit); }
      {
        auto scope = pass.backward(unit);
        compute.enqueue(
            [v = scope.grad("v").view.as<float>(), w = scope.grad("w").view.as<float>(), written] {
              std::fill_n(v, 3, 1.0f);
              std::fill_n(w, written, 1.0f);
            });
      }
      compute.synchronize();
    });
  };
  CHECK(run(16) == "no error");
  CHECK(has(run(11),
            "backward of unit a did not write element 11 of the 16 elements of the "
            "gradient of w"));
}
