// Optimizers that are written outside the library: gradients of segments, states and their
// checkpoints, and Muon, which the trainer ships as the example.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "thread_ranks.hpp"
#include "unit/error_text.hpp"
#include "unit/fsdp/toy.hpp"
#include "unit/rank_reports.hpp"
#include "unit/train/data_temporary.hpp"

using namespace atoll_test;
namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;
using fsdp::Strategy;
using train_test::TemporaryFolder;

namespace {

// Adam as the library computes it, with the states "m" and "v".
class OwnAdamW {
 public:
  explicit OwnAdamW(fsdp::Engine& engine) : engine_(engine) {
    engine.add_state("m");
    engine.add_state("v");
    for (const fsdp::Segment& segment : engine.segments()) {
      if (segment.gradient.count == 0) continue;
      parts_.push_back({segment, engine.state(segment, "m").as<float>(),
                        engine.state(segment, "v").as<float>()});
    }
  }

  void step(float rate, atoll::Stream& compute) {
    engine_.wait_gradients(compute);
    ++steps;
    compute.enqueue([this, rate, t = steps] {
      for (const Part& part : parts_) update(part, rate, static_cast<double>(t));
    });
    engine_.parameters_changed(compute);
  }

  int steps = 0;

 private:
  struct Part {
    fsdp::Segment segment;
    float *m, *v;
  };

  static void update(const Part& part, float learning_rate, double t) {
    constexpr float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, decay = 0.1f;
    const auto correction = [&](float beta) {
      return 1.0 - std::pow(static_cast<double>(beta), t);
    };
    const auto rate = static_cast<float>(static_cast<double>(learning_rate) / correction(beta1));
    const auto root = static_cast<float>(1.0 / std::sqrt(correction(beta2)));
    const float keep = 1.0f - learning_rate * decay;
    float* const w = part.segment.values.as<float>();
    const float* const g = part.segment.gradient.as<float>();
    for (std::uint64_t i = 0; i < part.segment.values.count; ++i) {
      part.m[i] = beta1 * part.m[i] + (1.0f - beta1) * g[i];
      part.v[i] = beta2 * part.v[i] + (1.0f - beta2) * g[i] * g[i];
      w[i] = w[i] * keep - rate * part.m[i] / (std::sqrt(part.v[i]) * root + epsilon);
    }
  }

  fsdp::Engine& engine_;
  std::vector<Part> parts_;
};

ToyRun toy_run(Strategy strategy) {
  ToyRun run;
  run.units = toy_mixed_units();
  run.order = toy_order();
  run.engine.strategy = strategy;
  return run;
}

// Rank 0 computes all samples and the other ranks write zeros, so that the sum of the gradients has
// the same bits on any number of ranks.
void backward_on_first_rank(fsdp::Engine& engine, const ToyRun& run, int rank,
                            atoll::Stream& compute, double& sum) {
  std::vector<int> samples;
  for (int s = 0; rank == 0 && s < run.samples; ++s) samples.push_back(s);
  toy_micro_batch(engine, run, samples, {}, compute, &sum);
}

// Runs `body` on every rank of the mesh and returns the weights that it returns on rank 0.
Weights on_mesh(atoll::MeshShape shape,
                const std::function<Weights(const atoll::Mesh&, atoll::World&)>& body) {
  std::mutex mutex;
  Weights result;
  run_thread_ranks(shape.replicate * shape.shard, [&](atoll::World& world) {
    const auto mesh = atoll::Mesh::make(world, shape);
    Weights weights = body(mesh, world);
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) result = std::move(weights);
  });
  return result;
}

// Trains with OwnAdamW from step `first` to step `last`. Loads the checkpoint unless `first` is 0,
// and saves a checkpoint at the end.
Weights train_own(const atoll::Mesh& mesh, const ToyRun& run, const fs::path& folder, int first,
                  int last) {
  fsdp::Engine engine(mesh, run.engine);
  add_toy_units(engine, run);
  OwnAdamW optimizer(engine);
  engine.initialize(42);
  if (first > 0) optimizer.steps = std::stoi(fsdp::load(folder, engine).at("steps"));
  double sum = 0;
  auto compute = engine.device().stream({.name = "compute"});
  for (int step = first; step < last; ++step) {
    backward_on_first_rank(engine, run, mesh.world().rank(), compute, sum);
    optimizer.step(0.01f, compute);
  }
  fsdp::save(folder, engine, {{"steps", std::to_string(optimizer.steps)}});
  compute.synchronize();
  return weights_of(engine);
}

}  // namespace

TEST_CASE("own optimizer: AdamW from outside gives the bits of the library's AdamW") {
  for (const auto strategy : fsdp::every_strategy()) {
    CAPTURE(fsdp::name(strategy));
    const ToyRun run = toy_run(strategy);
    const auto train = [&](const auto& make) {
      return on_mesh({2, 2}, [&](const atoll::Mesh& mesh, atoll::World& world) {
        fsdp::Engine engine(mesh, run.engine);
        add_toy_units(engine, run);
        engine.initialize(42);
        auto optimizer = make(engine);
        double sum = 0;
        auto compute = engine.device().stream({.name = "compute"});
        for (int step = 0; step < 4; ++step) {
          std::vector<int> samples;
          for (int s = world.rank(); s < run.samples; s += 4) samples.push_back(s);
          toy_micro_batch(engine, run, samples, {}, compute, &sum);
          optimizer.step(0.01f, compute);
        }
        compute.synchronize();
        return weights_of(engine);
      });
    };
    const auto own = train([](fsdp::Engine& engine) { return OwnAdamW(engine); });
    const auto of_library = train([](fsdp::Engine& engine) {
      return fsdp::Optimizer(engine, {.weight_decay = 0.1f, .max_norm = 0});
    });
    CHECK(own == of_library);
  }
}

TEST_CASE("own optimizer: states are saved and loaded on another number of shards") {
  const TemporaryFolder folder;
  const auto train = [&](Strategy strategy, atoll::MeshShape shape, int first, int last) {
    return on_mesh(shape, [&](const atoll::Mesh& mesh, atoll::World&) {
      return train_own(mesh, toy_run(strategy), folder.path(), first, last);
    });
  };
  const Weights whole = train(Strategy::no_shard, {1, 1}, 0, 6);
  struct Place {
    Strategy strategy;
    atoll::MeshShape shape;
  };
  const Place places[] = {{Strategy::full_shard, {1, 4}},
                          {Strategy::hybrid_shard, {2, 2}},
                          {Strategy::shard_optimizer, {3, 1}},
                          {Strategy::no_shard, {1, 1}}};
  for (const auto& from : places) {
    for (const auto& to : places) {
      CAPTURE(fsdp::name(from.strategy));
      CAPTURE(fsdp::name(to.strategy));
      train(from.strategy, from.shape, 0, 3);
      CHECK(train(to.strategy, to.shape, 3, 6) == whole);
    }
  }
}

TEST_CASE("own optimizer: states beside an Optimizer are saved too, and counted") {
  const TemporaryFolder folder;
  auto world = single_rank();
  constexpr std::uint64_t padded = 4096 * sizeof(float);
  for (const bool saves : {true, false}) {
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
    engine.add_unit("a", {{"w", {100}}, {"frozen", {5}, {}, false}});
    engine.seal({"a"});
    engine.initialize(1);
    const std::uint64_t before = engine.device().allocated_bytes();
    engine.add_state("average");
    CHECK(engine.device().allocated_bytes() == before + padded);
    CHECK(engine.memory().optimizer == padded);
    {
      fsdp::Optimizer optimizer(engine);
      CHECK(engine.memory().optimizer == 3 * padded);
      const auto segments = engine.segments();
      REQUIRE(segments.size() == 2);
      CHECK(segments[1].gradient.count == 0);
      CHECK(engine.state(segments[1], "average").count == 0);
      const atoll::View average = engine.state(segments[0], "average");
      REQUIRE(average.count == 100);
      if (!saves) fsdp::load(folder.path(), engine, optimizer);
      for (std::uint64_t i = 0; i < 100; ++i) {
        CHECK(average.as<float>()[i] == (saves ? 0.0f : static_cast<float>(i)));
        average.as<float>()[i] = static_cast<float>(i);
      }
      if (saves) fsdp::save(folder.path(), engine, optimizer);
    }
    CHECK(engine.memory().optimizer == padded);
  }
}

namespace {

// Writes `value` to all elements of the state "m", with a task that takes 50 ms on `stream`.
void write_late(fsdp::Engine& engine, atoll::Stream& stream, float value) {
  const atoll::View state = engine.state(engine.segments()[0], "m");
  stream.enqueue([state, value] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::fill_n(state.as<float>(), state.count, value);
  });
}

}  // namespace

TEST_CASE("own optimizer: saves and loads wait for work that writes states after a step") {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "late";
  auto world = single_rank();
  const auto saved = [&](const auto& step_and_save) {
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
    engine.add_unit("a", {{"w", {100}}});
    engine.seal({"a"});
    engine.initialize(1);
    engine.add_state("m");
    step_and_save(engine);
    return engine.state(engine.segments()[0], "m").as<float>()[99];
  };
  CHECK(saved([&](fsdp::Engine& engine) {
          auto compute = engine.device().stream(), second = engine.device().stream();
          engine.parameters_changed(compute);
          engine.parameters_changed(second);  // as a second optimizer does
          {
            auto gone = engine.device().stream();
            engine.parameters_changed(gone);
          }
          write_late(engine, compute, 3.0f);
          fsdp::save(folder, engine);
          write_late(engine, compute, 4.0f);
          fsdp::load(folder, engine);
          compute.synchronize();
        }) == 3.0f);
  CHECK(saved([&](fsdp::Engine& engine) {
          fsdp::Optimizer optimizer(engine, plain_sgd);
          auto compute = engine.device().stream();
          run_pass(engine, compute, 0.0f);
          optimizer.step(0.1f, compute);
          write_late(engine, compute, 5.0f);
          auto save = fsdp::save_beside(folder, engine, optimizer);
          save.finish();
          write_late(engine, compute, 6.0f);
          fsdp::load(folder, engine, optimizer);
          compute.synchronize();
        }) == 5.0f);
}

TEST_CASE("own optimizer: a state that is not elementwise is whole on every rank with a part") {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "whole";
  const auto rows_and_columns = [](const fsdp::Unit&, const fsdp::ParamSpec& param) {
    return static_cast<std::uint64_t>(param.shape.front() + param.shape.back());
  };
  const auto with_state = [&](int shards, const auto& elements, const auto& use) {
    run_thread_ranks(shards, [&](atoll::World& world) {
      fsdp::Engine engine(atoll::Mesh::make(world, {1, shards}));
      engine.add_unit("a", {{"w", {120, 70}}, {"frozen", {5, 2}, {}, false}, {"bias", {3}}});
      engine.add_unit("b", {{"w", {900, 30}}});
      engine.seal({"a", "b"});
      engine.initialize(1);
      engine.add_state("m");
      engine.add_state("factors", elements);
      use(engine);
    });
  };
  // Calls each(value, expected) for all elements of the state on this rank.
  const auto visit = [&](fsdp::Engine& engine, const auto& each) {
    for (const fsdp::Segment& segment : engine.segments()) {
      const atoll::View state = engine.state(segment, "factors");
      const bool frozen = segment.gradient.count == 0;
      CHECK(state.count == (frozen ? 0 : rows_and_columns(*segment.unit, *segment.param)));
      for (std::uint64_t i = 0; i < state.count; ++i)
        each(state.as<float>()[i], static_cast<float>(segment.param->count() + i));
    }
  };
  for (const int saving : {1, 3}) {
    with_state(saving, rows_and_columns, [&](fsdp::Engine& engine) {
      visit(engine, [](float& value, float expected) {
        CHECK(value == 0.0f);
        value = expected;
      });
      fsdp::save(folder, engine);
    });
    for (const int loading : {1, 2, 4}) {
      with_state(loading, rows_and_columns, [&](fsdp::Engine& engine) {
        fsdp::load(folder, engine);
        visit(engine, [](float value, float expected) { CHECK(value == expected); });
      });
    }
  }
  const auto two = [](const fsdp::Unit&, const fsdp::ParamSpec&) { return std::uint64_t{2}; };
  CHECK_THROWS_WITH_AS(with_state(1, two, [&](auto& engine) { fsdp::load(folder, engine); }),
                       doctest::Contains("the state \"factors\" has another number of elements"),
                       atoll::Error);
}

namespace {

std::string error_of_wrong(const std::function<void(fsdp::Engine&)>& wrong) {
  auto world = single_rank();
  fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
  engine.add_unit("a", {{"w", {4}}});
  engine.seal({"a"});
  return error_of([&] { wrong(engine); });
}

std::string error_of_states(const std::vector<std::string>& names) {
  return error_of_wrong([&](fsdp::Engine& engine) {
    for (const std::string& name : names) engine.add_state(name);
  });
}

// Saves a checkpoint with the states `saved` and returns the error of loading it into an engine
// with the states `loaded`.
std::string load_error(const std::vector<std::string>& saved,
                       const std::vector<std::string>& loaded) {
  const TemporaryFolder folder;
  const auto with = [&](const std::vector<std::string>& names, const auto& use) {
    return error_of_wrong([&](fsdp::Engine& engine) {
      engine.initialize(1);
      for (const std::string& name : names) engine.add_state(name);
      use(engine);
    });
  };
  CHECK(with(saved, [&](fsdp::Engine& engine) { fsdp::save(folder.path(), engine); }) ==
        "no error");
  return with(loaded, [&](fsdp::Engine& engine) { fsdp::load(folder.path(), engine); });
}

}  // namespace

TEST_CASE("own optimizer misuse: names of states") {
  CHECK(error_of_states({"m", "v"}) == "no error");
  CHECK(has(error_of_states({"m", "m"}), "add_state(m): the name is already in use"));
  CHECK(has(error_of_states({""}), "add_state: a state needs a name"));
  CHECK(has(error_of_states({"a/b"}), "add_state(a/b): a name may contain only letters, digits"));
  CHECK(has(error_of_wrong([](fsdp::Engine& engine) { engine.state(engine.segments()[0], "m"); }),
            "not found: the engine has no state \"m\": call Engine::add_state() first"));
  CHECK(has(error_of_wrong([](fsdp::Engine& engine) {
              engine.add_state("m");
              auto world = atoll::World::single();
              auto other = std::make_unique<fsdp::Engine>(atoll::Mesh::make(world, {1, 1}));
              other->add_unit("a", {{.name = "w", .shape = {4}}});
              other->seal({"a"});
              const fsdp::Segment segment = other->segments()[0];
              other.reset();
              engine.state(segment, "m");
            }),
            "state(m): the segment is not one of this engine, or its engine has been destroyed"));
}

TEST_CASE("own optimizer misuse: ranks that add different states") {
  const auto reports = on_threads(2, [](atoll::World& world) {
    fsdp::Engine engine(atoll::Mesh::make(world, {1, 2}));
    engine.add_unit("a", {{"w", {4}}});
    engine.seal({"a"});
    engine.add_state(world.rank() == 0 ? "m" : "v");
    return std::string("added");
  });
  for (const std::string& report : reports) {
    CHECK(has(report, "disagree about the name of the state: \"m\" on rank 0, \"v\" on rank 1"));
  }
}

TEST_CASE("own optimizer misuse: a state too large for one rank is refused on all ranks") {
  const auto check_all = [](std::uint64_t elements, std::initializer_list<std::string_view> parts) {
    const auto errors = on_threads(2, [=](atoll::World& world) {
      fsdp::Engine engine(atoll::Mesh::make(world, {1, 2}));
      engine.add_unit("a", {{"w", {4}}});  // rank 0 has all of it
      engine.seal({"a"});
      engine.add_state("m", [=](const fsdp::Unit&, const fsdp::ParamSpec&) { return elements; });
      return std::string("added");
    });
    for (const std::string& error : errors) CHECK(has(error, parts));
  };
  check_all((std::uint64_t{1} << 44) + 1,
            {"add_state(m): 17592186044417 elements for parameter w of unit a are too many"});
  check_all(std::uint64_t{1} << 44, {"out of memory: ", "cannot allocate 70368744177664 bytes"});
}

TEST_CASE("own optimizer misuse: a checkpoint with other states") {
  CHECK(load_error({"m"}, {"m"}) == "no error");
  CHECK(has(load_error({"m", "v"}, {"m"}),
            {"index.json: the state \"v\" is in the checkpoint, but", "use export_weights"}));
  CHECK(has(load_error({}, {"m"}), "the state \"m\" of Engine::add_state() is not in the"));
  const TemporaryFolder folder;
  CHECK(has(error_of_wrong([&](fsdp::Engine& engine) {
              engine.initialize(1);
              fsdp::save(folder.path(), engine);
              fsdp::Optimizer optimizer(engine);
              fsdp::load(folder.path(), engine, optimizer);
            }),
            "the optimizer: \"own\" in the checkpoint, \"adamw\" in the job"));
}
