// Wrong uses of the engine: each is one clear error, the same on every rank, and never a hang.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "atoll/communicator.hpp"
#include "atoll/fsdp.hpp"
#include "atoll/optimizer.hpp"
#include "device/backend.hpp"
#include "thread_ranks.hpp"
#include "unit/fsdp/misuse.hpp"
#include "unit/rank_reports.hpp"

namespace fsdp = atoll::fsdp;
using atoll_test::disagree;

namespace {

std::vector<fsdp::ParamSpec> weights(std::vector<std::int64_t> shape) {
  return {{.name = "w", .shape = std::move(shape)}};
}

// The choices of one rank that makes an engine; each test changes one of them on rank 1.
struct Choices {
  atoll::MeshShape mesh{1, 2};
  fsdp::Options options{};
  std::vector<std::pair<std::string, std::vector<fsdp::ParamSpec>>> units{{"a", weights({4, 8})},
                                                                          {"b", weights({16})}};
  std::vector<std::string> order{"a", "b"};
  std::uint64_t seed = 1;
  fsdp::OptimizerOptions optimizer{};
};

// Makes an engine and an optimizer on two ranks. Returns the error that both ranks report.
std::string report(const std::function<void(Choices&)>& change) {
  const auto reports = atoll_test::on_threads(2, [&](atoll::World& world) {
    Choices choices;
    if (world.rank() == 1) change(choices);
    const auto mesh = atoll::Mesh::make(world, choices.mesh);
    fsdp::Engine engine(mesh, choices.options);
    for (auto& [name, params] : choices.units) engine.add_unit(name, params);
    engine.seal(choices.order);
    engine.initialize(choices.seed);
    fsdp::Optimizer optimizer(engine, choices.optimizer);
    return std::string("trained");
  });
  REQUIRE(reports.size() == 2);
  CHECK(reports[0] == reports[1]);
  return reports[0];
}

}  // namespace

TEST_CASE("engine misuse: equal choices work") {
  CHECK(report([](Choices&) {}) == "trained");
}

TEST_CASE("engine misuse: ranks with different options are named before any collective") {
  CHECK(report([](Choices& c) { c.options.strategy = fsdp::Strategy::full_shard; }) ==
        disagree("Engine", "Options::strategy: hybrid_shard on rank 0, full_shard on rank 1"));
  CHECK(report([](Choices& c) {
          c.mesh = {2, 1};
        }) == disagree("Mesh::make", "the axes of the mesh: 1x2 on rank 0, 2x1 on rank 1"));
  CHECK(report([](Choices& c) { c.options.precision.param = atoll::DType::bf16; }) ==
        disagree("Engine", "Precision::param: f32 on rank 0, bf16 on rank 1"));
  CHECK(report([](Choices& c) { c.options.accumulation = fsdp::Accumulation::local; }) ==
        disagree("Engine", "Options::accumulation: auto on rank 0, local on rank 1"));
  CHECK(report([](Choices& c) { c.options.gradients = fsdp::GradientScale::average; }) ==
        disagree("Engine", "Options::gradients: sum on rank 0, average on rank 1"));
  CHECK(report([](Choices& c) { c.options.precision.reduce = atoll::DType::bf16; }) ==
        disagree("Engine", "Precision::reduce: f32 on rank 0, bf16 on rank 1"));
  CHECK(report([](Choices& c) { c.options.reduce_buffers = 3; }) ==
        disagree("Engine", "Options::reduce_buffers: 2 on rank 0, 3 on rank 1"));
  CHECK(report([](Choices& c) { c.options.prefetch = 2; }) ==
        disagree("Engine", "Options::prefetch: 1 on rank 0, 2 on rank 1"));
  CHECK(report([](Choices& c) { c.options.secondary_shards = 2; }) ==
        disagree("Engine", "Options::secondary_shards: 0 on rank 0, 2 on rank 1"));
  CHECK(report([](Choices& c) { c.options.gather_units = atoll::ComputeUnits::few; }) ==
        disagree("Engine", "Options::gather_units: none on rank 0, few on rank 1"));
}

TEST_CASE("engine misuse: ranks with different units are named by seal") {
  CHECK(report([](Choices& c) {
          c.units[0].second = weights({8, 4});
        }) ==
        disagree("seal", "the shape of parameter w of unit a: 4 x 8 on rank 0, 8 x 4 on rank 1"));
  CHECK(report([](Choices& c) { c.units[1].second[0].dtype = atoll::DType::bf16; }) ==
        disagree("seal", "the dtype of parameter w of unit b: f32 on rank 0, bf16 on rank 1"));
  CHECK(
      report([](Choices& c) { c.units[1].second[0].trainable = false; }) ==
      disagree("seal", "the trainable flag of parameter w of unit b: yes on rank 0, no on rank 1"));
  CHECK(report([](Choices& c) { c.units[0].second[0].name = "v"; }) ==
        disagree("seal", "the name of parameter 0 of unit a: \"w\" on rank 0, \"v\" on rank 1"));
  CHECK(report([](Choices& c) { std::swap(c.order[0], c.order[1]); }) ==
        disagree("seal", "position 0 of the order of units: a on rank 0, b on rank 1"));
  CHECK(report([](Choices& c) { c.order.emplace_back("a"); }) ==
        disagree("seal", "the length of the order of units: 2 on rank 0, 3 on rank 1"));
  CHECK(report([](Choices& c) {
          c.units.emplace_back("c", weights({1}));
          c.order.emplace_back("c");
        }) == disagree("seal", "the number of units: 2 on rank 0, 3 on rank 1"));
}

TEST_CASE("engine misuse: ranks with another seed or another optimizer are named") {
  CHECK(report([](Choices& c) { c.seed = 2; }) ==
        disagree("initialize", "the seed: 1 on rank 0, 2 on rank 1"));
  CHECK(report([](Choices& c) { c.optimizer.kind = fsdp::OptimizerOptions::Kind::sgd; }) ==
        disagree("Optimizer", "OptimizerOptions::kind: adamw on rank 0, sgd on rank 1"));
  CHECK(report([](Choices& c) { c.optimizer.beta1 = 0.5f; }) ==
        disagree("Optimizer", "OptimizerOptions::beta1: 0.9 on rank 0, 0.5 on rank 1"));
}

TEST_CASE("engine misuse: ranks with another number of micro batches") {
  const auto reports = atoll_test::on_threads(2, [&](atoll::World& world) {
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 2}));
    engine.add_unit("a", weights({4}));
    engine.seal({"a"});
    engine.initialize(1);
    auto compute = engine.device().stream();
    { const auto pass = engine.begin({.kind = fsdp::PassOptions::Kind::eval}, compute); }
    const auto pass = engine.begin({.of = world.rank() + 2}, compute);
    return std::string("begun");
  });
  for (const std::string& report : reports)
    CHECK(report == disagree("begin", "PassOptions::of: 2 on rank 0, 3 on rank 1"));
}

TEST_CASE("engine misuse: an error of one rank is the error of all") {
  const auto reports = atoll_test::on_threads(2, [&](atoll::World& world) {
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 2}));
    engine.add_unit("a", weights({4}));
    engine.seal({world.rank() == 1 ? "b" : "a"});
    return std::string("trained");
  });
  CHECK(reports[0] == "not found: rank 1: the engine has no unit \"b\"");
  CHECK(reports[1] == "not found: the engine has no unit \"b\"");
}

namespace {

// Returns the error of `wrong` on an engine of one rank.
std::string error_of(const std::function<void(fsdp::Engine&)>& wrong) {
  atoll::World world = atoll::World::single();
  try {
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
    wrong(engine);
  } catch (const atoll::Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("engine misuse: calls before seal()") {
  const auto early = [](const std::function<void(fsdp::Engine&)>& call) {
    return error_of([&](fsdp::Engine& engine) {
      engine.add_unit("a", weights({4}));
      call(engine);
    });
  };
  using fsdp::Engine;
  CHECK(early([](Engine& e) { e.initialize(1); }) == "initialize: call Engine::seal() first");
  CHECK(early([](Engine& e) {
          auto compute = e.device().stream();
          static_cast<void>(e.begin({}, compute));
        }) == "begin: call Engine::seal() first");
  CHECK(early([](Engine& e) {
          auto compute = e.device().stream();
          e.wait_gradients(compute);
        }) == "wait_gradients: call Engine::seal() first");
  CHECK(early([](Engine& e) {
          auto compute = e.device().stream();
          e.parameters_changed(compute);
        }) == "parameters_changed: call Engine::seal() first");
  CHECK(early([](Engine& e) { e.segments(); }) == "segments: call Engine::seal() first");
  CHECK(early([](Engine& e) { e.refresh(); }) == "refresh: call Engine::seal() first");
  CHECK(early([](Engine& e) { e.assign([](const auto&, auto) {}); }) ==
        "assign: call Engine::seal() first");
  CHECK(early([](Engine& e) { e.visit([](const auto&, const auto&, auto) {}); }) ==
        "visit: call Engine::seal() first");
  CHECK(early([](Engine& e) { fsdp::Optimizer optimizer(e); }) ==
        "Optimizer: call Engine::seal() first");
  CHECK(early([](Engine& e) {
          fsdp::export_weights("unused.safetensors", e, atoll::DType::f32,
                               [](const auto&, const auto& p) { return p.name; });
        }) == "export_weights: call Engine::seal() first");
  CHECK(early([](Engine& e) {
          fsdp::import_weights({"unused.safetensors"}, e,
                               [](const auto&, const auto& p) { return p.name; });
        }) == "import_weights: call Engine::seal() first");
}

TEST_CASE("engine misuse: units and parameters without a name, units without parameters") {
  CHECK(error_of([](fsdp::Engine& e) { e.add_unit("", weights({4})); }) ==
        "add_unit: a unit needs a name");
  CHECK(error_of([](fsdp::Engine& e) { e.add_unit("a", {}); }) ==
        "add_unit(a): a unit needs at least one parameter");
  CHECK(error_of([](fsdp::Engine& e) { e.add_unit("a", {{.name = "", .shape = {4}}}); }) ==
        "add_unit(a): parameter 0 needs a name");
}

TEST_CASE("engine misuse: options of the optimizer out of range") {
  const auto with = [](const fsdp::OptimizerOptions& options) {
    return error_of([&](fsdp::Engine& engine) {
      engine.add_unit("a", weights({4}));
      engine.seal({"a"});
      fsdp::Optimizer optimizer(engine, options);
    });
  };
  CHECK(with({.beta1 = 1.5f}) == "OptimizerOptions: beta1 = 1.5 is not in [0, 1)");
  CHECK(with({.beta2 = -0.1f}) == "OptimizerOptions: beta2 = -0.1 is not in [0, 1)");
  CHECK(with({.epsilon = 0}) == "OptimizerOptions: epsilon = 0 is not above 0");
  CHECK(with({.weight_decay = -1}) == "OptimizerOptions: weight_decay = -1 is not 0 or above");
  CHECK(with({.max_norm = -1}) ==
        "OptimizerOptions: max_norm = -1 is not 0 (no clipping) or above");
}

TEST_CASE("engine misuse: a step without new gradients") {
  CHECK(error_of([](fsdp::Engine& engine) {
          fsdp::Unit& unit = engine.add_unit("a", weights({4}));
          engine.seal({"a"});
          engine.initialize(1);
          fsdp::Optimizer optimizer(engine);
          auto compute = engine.device().stream();
          {
            auto pass = engine.begin({}, compute);
            { auto scope = pass.forward(unit); }
            auto scope = pass.backward(unit);
            compute.enqueue([g = scope.grad("w").view.as<float>()] { std::fill_n(g, 4, 1.0f); });
          }
          optimizer.step(0.1f, compute);
          optimizer.step(0.1f, compute);
        }) == "Optimizer::step: a step has already used these gradients: begin a pass first");
}

namespace {

// Returns the error of `wrong` on an engine with the unit "a", whose parameter is "w".
std::string pass_error(const std::function<void(fsdp::Engine&, atoll::Stream&)>& wrong) {
  return error_of([&](fsdp::Engine& engine) {
    engine.add_unit("a", weights({4}));
    engine.seal({"a"});
    engine.initialize(1);
    auto compute = engine.device().stream();
    wrong(engine, compute);
  });
}

}  // namespace

TEST_CASE("engine misuse: two passes at once, as pipelines would use them") {
  const std::string remedy =
      " uses of units: an engine runs one pass at a time, so end that Pass first; to run forwards "
      "ahead, as pipelines do, use evaluation passes, and repeat forward in the training pass";
  CHECK(pass_error([](fsdp::Engine& engine, atoll::Stream& compute) {
          auto pass = engine.begin({.micro = 0, .of = 2}, compute);
          { const auto scope = pass.forward(engine.unit("a")); }
          const auto ahead = engine.begin({.micro = 1, .of = 2}, compute);
        }) == "Engine::begin: the pass of micro batch 0 of 2 is still open, after 1 of 2" + remedy);
  CHECK(pass_error([](fsdp::Engine& engine, atoll::Stream& compute) {
          const auto pass = engine.begin({.kind = fsdp::PassOptions::Kind::eval}, compute);
          const auto other = engine.begin({}, compute);
        }) == "Engine::begin: an evaluation pass is still open, after 0 of 1" + remedy);
}

TEST_CASE("engine misuse: parameters are read while a pass is open") {
  const auto error = [](const std::function<void(fsdp::Engine&)>& read) {
    return pass_error([&](fsdp::Engine& engine, atoll::Stream& compute) {
      const auto ignore = [](const auto&, const auto&, auto) {};
      { const auto pass = engine.begin({.kind = fsdp::PassOptions::Kind::eval}, compute); }
      engine.visit(ignore);
      const auto pass = engine.begin({}, compute);
      read(engine);
    });
  };
  const std::string open = ": a pass is in progress, and may change parameters: end the Pass first";
  CHECK(error([](fsdp::Engine& e) { e.visit([](const auto&, const auto&, auto) {}); }) ==
        "visit" + open);
  CHECK(error([](fsdp::Engine& e) { fsdp::save("unused", e); }) == "save" + open);
  CHECK(error([](fsdp::Engine& e) {
          fsdp::export_weights("unused.safetensors", e, atoll::DType::f32,
                               [](const auto&, const auto& p) { return p.name; });
        }) == "export_weights" + open);
}

TEST_CASE("engine misuse: scopes that outlive their pass, and moved scopes and passes") {
  CHECK(pass_error([](fsdp::Engine& engine, atoll::Stream& compute) {
          std::optional<fsdp::Pass> pass(engine.begin({}, compute));
          std::optional<fsdp::ForwardScope> scope(pass->forward(engine.unit("a")));
          pass.reset();
          (*scope)["w"];
        }) ==
        "parameter w of unit a is used after the end of its pass: destroy every scope before its "
        "Pass");
  CHECK(pass_error([](fsdp::Engine& engine, atoll::Stream& compute) {
          auto pass = engine.begin({}, compute);
          auto scope = pass.forward(engine.unit("a"));
          const auto moved = std::move(scope);
          scope["w"];  // NOLINT(bugprone-use-after-move): the test is about this use
        }) ==
        "parameter w of unit a is used through a scope that has been moved: use the scope that it "
        "was moved to");
  CHECK(pass_error([](fsdp::Engine& engine, atoll::Stream& compute) {
          auto pass = engine.begin({}, compute);
          const auto moved = std::move(pass);
          const auto scope = pass.forward(  // NOLINT(bugprone-use-after-move): as above
              engine.unit("a"));
        }) == "forward: this Pass has been moved: use the Pass that it was moved to");
}

TEST_CASE("engine misuse: a scope that outlives its pass does not disturb the next pass") {
  CHECK(pass_error([](fsdp::Engine& engine, atoll::Stream& compute) {
          fsdp::Unit& unit = engine.unit("a");
          fsdp::Optimizer optimizer(engine);
          std::optional<fsdp::Pass> pass(engine.begin({}, compute));
          { const auto scope = pass->forward(unit); }
          std::optional<fsdp::BackwardScope> late(pass->backward(unit));
          pass.reset();
          try {
            optimizer.step(0.1f, compute);
            throw std::logic_error("a step used gradients of an abandoned pass");
          } catch (const atoll::Error& error) {
            CHECK(std::string(error.what()).find("before all micro batches") != std::string::npos);
          }
          pass.emplace(engine.begin({}, compute));
          { const auto scope = pass->forward(unit); }
          late.reset();
          {
            const auto scope = pass->backward(unit);
            compute.enqueue([g = scope.grad("w").view.as<float>()] { std::fill_n(g, 4, 1.0f); });
          }
          pass.reset();
          optimizer.step(0.1f, compute);
          CHECK(optimizer.grad_norm() == 2.0f);
        }) == "no error");
}

namespace {

// A device that is not the host, for options that only the host supports.
class SimulatedDevice final : public atoll::DeviceBackend {
 public:
  SimulatedDevice() : DeviceBackend({.kind = atoll::DeviceKind::simulated, .name = "virtual"}) {}
  void* allocate(std::size_t bytes) override { return host_.backend()->allocate(bytes); }
  void deallocate(void* data, std::size_t bytes) noexcept override {
    host_.backend()->deallocate(data, bytes);
  }
  std::unique_ptr<atoll::StreamBackend> make_stream(const atoll::StreamOptions& options) override {
    return host_.backend()->make_stream(options);
  }
  atoll::DeviceOps& ops() noexcept override { return host_.ops(); }

 private:
  atoll::Device host_ = atoll::Device::cpu();
};

std::string options_error(const fsdp::Options& options) {
  atoll::World world = atoll::World::single();
  try {
    const fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}), options);
  } catch (const atoll::Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("engine misuse: synchronous passes on a device other than the host, impossible dtypes") {
  CHECK(options_error(
            {.device = atoll::Device(std::make_shared<SimulatedDevice>()), .synchronous = true}) ==
        "Engine: Options::synchronous is for trainers that compute on the host, but the device is "
        "virtual: leave it off, and enqueue compute on the stream given to begin()");
  CHECK(options_error({.precision = {.param = atoll::DType::f64}}) ==
        "Engine: parameters cannot be f64: use f32, bf16 or f16");
  CHECK(options_error({.precision = {.param = atoll::DType::f16, .reduce = atoll::DType::f16}}) ==
        "Engine: gradients cannot be reduced in f16: use f32 or bf16");
}

TEST_CASE("engine misuse: a view as another type than its own") {
  const std::vector<float> values(4);
  CHECK_THROWS_WITH_AS(atoll::ConstView(values).as<atoll::bfloat16>(),
                       "a view of f32 is read or written as bf16", atoll::Error);
  std::vector<float> written(4);
  CHECK_THROWS_WITH_AS(atoll::View(written).as<double>(), "a view of f32 is read or written as f64",
                       atoll::Error);
}

namespace {

// Writes a checkpoint of one engine and returns the error of loading it into another.
std::string load_error(const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& saved,
                       const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& loaded,
                       fsdp::OptimizerOptions::Kind kind = fsdp::OptimizerOptions::Kind::adamw) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("atoll_misuse_" + std::to_string(::getpid()));
  const auto with = [&](const auto& params, fsdp::OptimizerOptions options, const auto& use) {
    return error_of([&](fsdp::Engine& engine) {
      std::vector<fsdp::ParamSpec> specs;
      for (const auto& [name, shape] : params) specs.push_back({.name = name, .shape = shape});
      engine.add_unit("a", specs);
      engine.seal({"a"});
      engine.initialize(1);
      fsdp::Optimizer optimizer(engine, options);
      use(engine, optimizer);
    });
  };
  CHECK(with(saved, {}, [&](auto& engine, auto& optimizer) {
          fsdp::save(folder, engine, optimizer);
        }) == "no error");
  std::string error = with(loaded, {.kind = kind}, [&](auto& engine, auto& optimizer) {
    fsdp::load(folder, engine, optimizer);
  });
  std::filesystem::remove_all(folder);
  const std::string prefix = (folder / "index.json").string() + ": ";
  CHECK(error.starts_with(prefix));
  return error.substr(std::min(error.size(), prefix.size()));
}

}  // namespace

TEST_CASE("engine misuse: a checkpoint that does not fit names the first difference") {
  CHECK(load_error({{"w", {4, 8}}}, {{"w", {8, 4}}}) ==
        "the shape of parameter w of unit a: [4,8] in the checkpoint, [8,4] in the model");
  CHECK(load_error({{"w", {4}}}, {{"v", {4}}}) ==
        "the name of parameter 0 of unit a: \"w\" in the checkpoint, \"v\" in the model");
  CHECK(load_error({{"w", {4}}}, {{"w", {4}}, {"v", {4}}}) ==
        "the number of parameters of unit a: 1 in the checkpoint, 2 in the model");
  CHECK(load_error({{"w", {4}}}, {{"w", {4}}}, fsdp::OptimizerOptions::Kind::sgd) ==
        "the optimizer: \"adamw\" in the checkpoint, \"sgd\" in the job; to take over the weights "
        "alone, use export_weights and import_weights");
}

TEST_CASE("misuse: moving a World that a mesh refers to") {
  atoll::World world = atoll::World::single();
  {
    const auto mesh = atoll::Mesh::make(world, {1, 1});
    CHECK_THROWS_WITH_AS(atoll::World(std::move(world)),
                         "a World cannot be moved while a mesh or an axis of it exists: they keep "
                         "its address; move it before, or keep it in a std::unique_ptr",
                         atoll::Error);
    CHECK_THROWS_WITH_AS(world = atoll::World::single(),
                         "a World cannot be moved while a mesh or an axis of it exists: they keep "
                         "its address; move it before, or keep it in a std::unique_ptr",
                         atoll::Error);
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
  const auto run = [](std::size_t written) -> std::string {
    atoll::Config config;
    config.check = "lifetimes";
    config.log = "error";
    atoll::World world = atoll::World::single(config);
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
    fsdp::Unit& unit =
        engine.add_unit("a", {{.name = "v", .shape = {3}}, {.name = "w", .shape = {2, 8}}});
    engine.seal({"a"});
    engine.initialize(1);
    auto compute = engine.device().stream();
    try {
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
      return "no error";
    } catch (const atoll::Error& error) {
      return error.what();
    }
  };
  CHECK(run(16) == "no error");
  CHECK(run(11) ==
        "rank 0: ATOLL_CHECK=lifetimes: backward of unit a did not write element 11 of the 16 "
        "elements of the gradient of w");
}
