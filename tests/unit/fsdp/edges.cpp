// Edge cases of the engine: calls in unusual order, several scopes at once, skipped steps, and
// objects that are destroyed while streams still work.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <optional>
#include <thread>

#include "atoll/optimizer.hpp"
#include "fsdp/unit.hpp"
#include "thread_ranks.hpp"
#include "unit/fsdp/toy.hpp"

using namespace atoll_test;
using namespace std::chrono_literals;
namespace fsdp = atoll::fsdp;
using fsdp::Engine;
using fsdp::Strategy;

namespace {

void fill(atoll::Stream& compute, const atoll::View& view, float value,
          std::chrono::milliseconds delay = 0ms) {
  compute.enqueue([=] {
    std::this_thread::sleep_for(delay);
    std::fill_n(view.as<float>(), view.count, value);
  });
}

// Runs a pass in which compute writes `value` to every gradient element after `delay`.
void train(Engine& engine, atoll::Stream& compute, float value,
           std::chrono::milliseconds delay = 0ms, fsdp::PassOptions options = {}) {
  auto pass = engine.begin(options, compute);
  for (const auto& unit : engine.units()) const auto w = pass.forward(*unit);
  for (auto unit = engine.units().rbegin(); unit != engine.units().rend(); ++unit) {
    const auto w = pass.backward(**unit);
    fill(compute, w.grad("w").view, value, delay);
  }
}

}  // namespace

TEST_CASE("values assigned after a step are not overwritten by compute that is still running") {
  auto world = single_rank();
  Engine engine(atoll::Mesh::make(world, {1, 1}));
  add_units(engine, {"a"}, 8);
  engine.initialize(1);
  fsdp::Optimizer optimizer(engine, plain_sgd);
  auto compute = engine.device().stream();
  train(engine, compute, 1.0f, 50ms);
  optimizer.step(1.0f, compute);
  set_all(engine, 7.0f);
  compute.synchronize();
  CHECK(engine.segments()[0].values.as<float>()[0] == 7.0f);
}

TEST_CASE("a pass on another stream sees the weights of the last step") {
  auto world = single_rank();
  Engine engine(atoll::Mesh::make(world, {1, 1}));
  add_units(engine, {"a"}, 8);
  set_all(engine, 7.0f);
  fsdp::Optimizer optimizer(engine, plain_sgd);
  auto compute = engine.device().stream(), other = engine.device().stream();
  train(engine, compute, 1.0f, 50ms);
  optimizer.step(1.0f, compute);
  float seen = 0;
  {
    auto pass = engine.begin({fsdp::PassOptions::Kind::eval, 0, 1}, other);
    const auto w = pass.forward(engine.unit("a"));
    other.enqueue([v = w["w"], &seen] { seen = v.as<float>()[0]; });
  }
  other.synchronize();
  compute.synchronize();
  CHECK(seen == 6.0f);
}

TEST_CASE("without an optimizer step in between, the next gradients wait for the last reduction") {
  for (const auto strategy : {Strategy::no_shard, Strategy::hybrid_shard}) {
    const int shards = strategy == Strategy::no_shard ? 1 : 2;
    CAPTURE(fsdp::name(strategy));
    run_thread_ranks(2 * shards, [&](atoll::World& world) {
      Engine engine(atoll::Mesh::make(world, {2, shards}), {.strategy = strategy});
      add_units(engine, {"a"}, 1 << 18);
      engine.initialize(1);
      auto compute = engine.device().stream();
      train(engine, compute, 1.0f, world.rank() == 1 ? 100ms : 0ms);
      train(engine, compute, 10.0f);
      engine.wait_gradients(compute);
      compute.synchronize();
      const auto gradient = fsdp::state_of(engine.unit("a")).buckets[0].gradient;
      const float expected = 10.0f * static_cast<float>(world.size());
      std::size_t wrong = 0;
      for (std::uint64_t i = 0; i < 1 << 16; ++i) wrong += gradient.as<float>()[i] != expected;
      if (wrong != 0) throw std::runtime_error(std::to_string(wrong) + " gradients are wrong");
      world.barrier();
    });
  }
}

TEST_CASE("backward scopes of two units may be open; a scope of a third unit is refused") {
  run_thread_ranks(2, [](atoll::World& world) {
    Engine engine(atoll::Mesh::make(world, {1, 2}),
                  {.strategy = Strategy::full_shard, .prefetch = 3});
    add_units(engine, {"a", "b", "c"}, 8192);
    engine.initialize(1);
    auto compute = engine.device().stream();
    {
      auto pass = engine.begin({}, compute);
      for (const auto& unit : engine.units()) const auto w = pass.forward(*unit);
      {
        const auto c = pass.backward(engine.unit("c"));
        const auto b = pass.backward(engine.unit("b"));
        fill(compute, c.grad("w").view, 3.0f);
        fill(compute, b.grad("w").view, 2.0f);
        CHECK_THROWS_AS(pass.backward(engine.unit("a")), atoll::Error);
      }
      const auto a = pass.backward(engine.unit("a"));
      fill(compute, a.grad("w").view, 1.0f);
    }
    engine.wait_gradients(compute);
    compute.synchronize();
    for (const auto& [name, value] : {std::pair{"a", 2.0f}, {"b", 4.0f}, {"c", 6.0f}}) {
      CHECK(fsdp::state_of(engine.unit(name)).buckets[0].gradient.as<float>()[0] == value);
    }
    world.barrier();
  });
}

TEST_CASE("backward of a unit of another engine is an error") {
  atoll::World world = atoll_test::single_rank();
  const atoll::Mesh mesh = atoll::Mesh::make(world, {1, 1});
  Engine engine(mesh), other(mesh);
  add_units(engine, {"a"}, 4);
  add_units(other, {"x", "y", "z"}, 4);
  engine.initialize(1);
  auto compute = engine.device().stream();
  auto pass = engine.begin({}, compute);
  { const auto w = pass.forward(engine.unit("a")); }
  CHECK_THROWS_WITH_AS(
      pass.backward(other.unit("z")),
      "backward: the unit is not one of this engine, or its engine has been destroyed: use "
      "Engine::unit() of the engine of this pass",
      atoll::Error);
}

TEST_CASE("a unit that is still unsharded in its slot is not gathered again") {
  for (const int prefetch : {0, 1, 2, 7}) {
    for (const int inner : {0, 1}) {
      CAPTURE(prefetch);
      CAPTURE(inner);
      run_thread_ranks(2, [&](atoll::World& world) {
        Engine engine(
            atoll::Mesh::make(world, {1, 2}),
            {.strategy = Strategy::full_shard, .secondary_shards = inner, .prefetch = prefetch});
        constexpr std::uint64_t units = 5, elements = 8192;
        add_units(engine, {"a", "b", "c", "d", "e"}, elements);
        engine.initialize(1);
        auto compute = engine.device().stream();
        const auto gathers_of = [&](const auto& pass) {
          const auto before = engine.scheduler().take_records();
          pass();
          compute.synchronize();
          std::uint64_t gathers = 0;
          for (const auto& record : engine.scheduler().take_records().records) {
            gathers += record.activity == atoll::Activity::all_gather && record.axis == "shard";
          }
          return gathers;
        };
        const auto micro_batch = [&](int micro) {
          return gathers_of([&] {
            train(engine, compute, 1.0f, 0ms, {fsdp::PassOptions::Kind::train, micro, 3});
            engine.scheduler().synchronize();
          });
        };
        const std::uint64_t slots = std::min<std::uint64_t>(units, std::uint64_t(prefetch) + 1);
        const std::uint64_t backward = inner > 0 ? 0 : units - slots;
        CHECK(micro_batch(0) == units + backward);
        CHECK(micro_batch(1) == units - slots + backward);
        // An evaluation uses the units that are still in the slots and leaves the slots empty.
        const auto eval = [&] {
          auto pass = engine.begin({fsdp::PassOptions::Kind::eval, 0, 1}, compute);
          for (const auto& unit : engine.units()) const auto w = pass.forward(*unit);
        };
        CHECK(gathers_of(eval) == units - slots);
        CHECK(gathers_of(eval) == units);
        CHECK(micro_batch(2) == units + backward);
        // Changed parameters are gathered again, although their units are still in the slots.
        CHECK(micro_batch(0) == units + backward);
        set_all(engine, 7.0f);
        CHECK(micro_batch(1) == units + backward);
        train(engine, compute, 1.0f, 0ms, {fsdp::PassOptions::Kind::train, 2, 3});
        compute.synchronize();
        world.barrier();
      });
    }
  }
}

TEST_CASE("backward of a unit cannot begin while its forward scope is open") {
  auto world = single_rank();
  Engine engine(atoll::Mesh::make(world, {1, 1}), {.strategy = Strategy::full_shard});
  CHECK_NOTHROW(engine.seal({}));
  run_thread_ranks(2, [](atoll::World& ranks) {
    Engine two(atoll::Mesh::make(ranks, {1, 2}), {.strategy = Strategy::full_shard, .prefetch = 3});
    add_units(two, {"a", "b", "c"}, 8192);
    two.initialize(1);
    auto compute = two.device().stream();
    {
      auto pass = two.begin({}, compute);
      { const auto a = pass.forward(two.unit("a")); }
      const auto b = pass.forward(two.unit("b"));
      { const auto c = pass.forward(two.unit("c")); }
      {
        const auto c = pass.backward(two.unit("c"));
        fill(compute, c.grad("w").view, 1.0f);
      }
      CHECK_THROWS_WITH_AS(pass.backward(two.unit("b")), doctest::Contains("still open"),
                           atoll::Error);
    }
    compute.synchronize();
    ranks.barrier();
  });
}

TEST_CASE("an exception that leaves a scope abandons the pass, and nothing more is reduced") {
  run_thread_ranks(2, [](atoll::World& world) {
    Engine engine(atoll::Mesh::make(world, {1, 2}), {.strategy = Strategy::full_shard});
    add_units(engine, {"a", "b"}, 8192);
    engine.initialize(1);
    fsdp::Optimizer optimizer(engine, plain_sgd);
    auto compute = engine.device().stream();
    for (const bool in_last : {false, true}) {
      auto pass = engine.begin({}, compute);
      for (const auto& unit : engine.units()) const auto w = pass.forward(*unit);
      if (in_last) {
        const auto w = pass.backward(engine.unit("b"));
        fill(compute, w.grad("w").view, 1.0f);
      }
      const char* name = in_last ? "a" : "b";
      const auto write_half = [&] {
        const auto w = pass.backward(engine.unit(name));
        throw std::runtime_error("out of patience");
      };
      CHECK_THROWS_AS(write_half(), std::runtime_error);
      CHECK_THROWS_WITH_AS(pass.backward(engine.unit("a")), doctest::Contains("is abandoned"),
                           atoll::Error);
      CHECK_THROWS_AS(optimizer.step(1.0f, compute), atoll::Error);
    }
    compute.synchronize();
    engine.scheduler().take_records();
    {
      // An exception in an inner scope leaves the outer scope too, so both gradients are
      // incomplete.
      auto pass = engine.begin({}, compute);
      for (const auto& unit : engine.units()) const auto w = pass.forward(*unit);
      const auto outer = pass.backward(engine.unit("b"));
      const auto write_half = [&] {
        const auto w = pass.backward(engine.unit("a"));
        throw std::runtime_error("out of patience");
      };
      CHECK_THROWS_AS(write_half(), std::runtime_error);
    }
    compute.synchronize();
    for (const auto& record : engine.scheduler().take_records().records) {
      CHECK(record.activity != atoll::Activity::reduce_scatter);
    }
    train(engine, compute, 1.0f);
    optimizer.step(1.0f, compute);
    compute.synchronize();
    for (const char* name : {"a", "b"}) {
      CHECK(fsdp::state_of(engine.unit(name)).buckets[0].gradient.as<float>()[0] == 2.0f);
    }
    world.barrier();
  });
}

TEST_CASE("a unit stays gathered as long as any scope of it is open") {
  run_thread_ranks(2, [](atoll::World& world) {
    Engine engine(atoll::Mesh::make(world, {1, 2}), {.strategy = Strategy::full_shard});
    add_units(engine, {"a", "b", "c"}, 8192);
    engine.assign([](const fsdp::Segment& segment, std::span<float> out) {
      std::fill(out.begin(), out.end(), static_cast<float>(segment.unit->name()[0] - 'a' + 1));
    });
    auto compute = engine.device().stream();
    float seen = 0;
    {
      auto pass = engine.begin({}, compute);
      for (const char* name : {"a", "b"}) const auto w = pass.forward(engine.unit(name));
      std::optional<fsdp::ForwardScope> outer(pass.forward(engine.unit("c")));
      for (const char* name : {"c", "b"}) {
        const auto w = pass.backward(engine.unit(name));
        fill(compute, w.grad("w").view, 1.0f);
      }
      compute.enqueue([v = (*outer)["w"], &seen] {
        std::this_thread::sleep_for(50ms);
        seen = v.as<float>()[0];
      });
      CHECK_THROWS_AS(pass.backward(engine.unit("a")),
                      atoll::Error);  // unit c still occupies the slot
      outer.reset();
      const auto w = pass.backward(engine.unit("a"));
      fill(compute, w.grad("w").view, 1.0f);
    }
    compute.synchronize();
    CHECK(seen == 3.0f);
    world.barrier();
  });
}

TEST_CASE("engine and optimizer wait for a step in progress when they are destroyed") {
  run_thread_ranks(2, [](atoll::World& world) {
    std::optional<atoll::Stream> compute;
    {
      Engine engine(atoll::Mesh::make(world, {1, 2}), {.strategy = Strategy::full_shard});
      compute.emplace(engine.device().stream());
      add_units(engine, {"a", "b"}, 1 << 18);
      engine.initialize(1);
      fsdp::Optimizer optimizer(engine);
      train(engine, *compute, 1.0f, 30ms);
      optimizer.step(0.1f, *compute);
    }
    compute->synchronize();
    CHECK(compute->record().backend() != nullptr);
  });
}

TEST_CASE(
    "after a failure of the job, the destructor of an engine waits for compute that reads its "
    "memory") {
  auto world = single_rank();
  std::atomic<bool> read{false};
  std::optional<atoll::Stream> compute;
  {
    Engine engine(atoll::Mesh::make(world, {1, 1}));
    compute.emplace(engine.device().stream());
    add_units(engine, {"a"}, 8);
    engine.initialize(1);
    auto pass = engine.begin({fsdp::PassOptions::Kind::eval, 0, 1}, *compute);
    const auto w = pass.forward(engine.unit("a"));
    compute->enqueue([&read, v = w["w"]] {
      std::this_thread::sleep_for(100ms);
      read = std::isfinite(v.as<float>()[7]);
    });
    world.fail("a peer is lost");
  }
  CHECK(read);
}

TEST_CASE("parameters cannot be written while a pass is in progress") {
  auto world = single_rank();
  Engine engine(atoll::Mesh::make(world, {1, 1}));
  add_units(engine, {"a"}, 8);
  engine.initialize(1);
  auto compute = engine.device().stream();
  {
    const auto pass = engine.begin({fsdp::PassOptions::Kind::eval, 0, 1}, compute);
    CHECK_THROWS_WITH_AS(set_all(engine, 7.0f), doctest::Contains("a pass is in progress, so"),
                         atoll::Error);
    CHECK_THROWS_AS(engine.initialize(1), atoll::Error);
  }
  CHECK_NOTHROW(set_all(engine, 7.0f));
}

TEST_CASE("an evaluation between backward and the step does not change the gradients") {
  using Kind = fsdp::PassOptions::Kind;
  for (const bool in_backward : {false, true}) {
    CAPTURE(in_backward);
    auto world = single_rank();
    Engine engine(atoll::Mesh::make(world, {1, 1}));
    add_units(engine, {"a", "b"}, 8);
    set_all(engine, 7.0f);
    auto options = plain_sgd;
    options.skip_nonfinite = false;
    fsdp::Optimizer optimizer(engine, options);
    auto compute = engine.device().stream();
    if (in_backward) optimizer.update_in_backward(1.0f);
    train(engine, compute, 1.0f);
    {
      auto pass = engine.begin({Kind::eval, 0, 1}, compute);
      for (const auto& unit : engine.units()) const auto w = pass.forward(*unit);
    }
    optimizer.step(1.0f, compute);
    compute.synchronize();
    CHECK(engine.segments()[0].values.as<float>()[0] == 6.0f);
  }
}

TEST_CASE("impossible parameters are refused") {
  auto world = single_rank();
  Engine engine(atoll::Mesh::make(world, {1, 1}));
  CHECK_THROWS_AS(engine.add_unit("a", {{"w", {-1}}, {"v", {1000}}}), atoll::Error);
  CHECK_THROWS_AS(engine.add_unit("a", {{"w", {1}}, {"w", {1}}}), atoll::Error);
  CHECK_THROWS_AS(engine.add_unit("a", {{"w", {std::int64_t{1} << 40, std::int64_t{1} << 40}}}),
                  atoll::Error);
  CHECK_NOTHROW(engine.add_unit("a", {{"w", {0}}, {"scalar", {}}}));
}

TEST_CASE("an optimizer steps only when all micro batches of the step are complete") {
  using Kind = fsdp::PassOptions::Kind;
  auto world = single_rank();
  Engine engine(atoll::Mesh::make(world, {1, 1}));
  add_units(engine, {"a"}, 8);
  set_all(engine, 7.0f);
  fsdp::Optimizer optimizer(engine, plain_sgd);
  auto compute = engine.device().stream();
  const auto refused = [&] {
    CHECK_THROWS_WITH_AS(optimizer.step(1.0f, compute),
                         doctest::Contains("before all micro batches of the step are complete"),
                         atoll::Error);
  };
  refused();
  train(engine, compute, 1.0f, 0ms, {Kind::train, 0, 2});
  refused();
  train(engine, compute, 1.0f, 0ms, {Kind::train, 1, 2});
  optimizer.step(1.0f, compute);
  {
    const auto given_up = engine.begin({}, compute);
    refused();
  }
  refused();
  compute.synchronize();
  CHECK(engine.segments()[0].values.as<float>()[0] < 7.0f);
}

TEST_CASE("masters that the caller writes reach compute, in every strategy and dtype") {
  for (const auto strategy : fsdp::every_strategy()) {
    for (const auto dtype : {atoll::DType::f32, atoll::DType::bf16, atoll::DType::f16}) {
      CAPTURE(fsdp::name(strategy));
      CAPTURE(atoll::name(dtype));
      run_thread_ranks(4, [&](atoll::World& world) {
        Engine engine(atoll::Mesh::make(world, {2, 2}),
                      {.strategy = strategy, .precision = {.param = dtype}});
        add_units(engine, {"a", "b"}, 1001);
        set_all(engine, 1.0f);
        auto compute = engine.device().stream();
        train(engine, compute, 0.0f);
        engine.wait_gradients(compute);
        for (const auto& segment : engine.segments()) fill(compute, segment.values, 3.0f, 5ms);
        engine.parameters_changed(compute);
        int wrong = 0;
        {
          auto pass = engine.begin({fsdp::PassOptions::Kind::eval, 0, 1}, compute);
          for (const auto& unit : engine.units()) {
            const auto w = pass.forward(*unit);
            compute.enqueue([v = w["w"], &wrong] {
              for (std::uint64_t i = 0; i < v.count; ++i) {
                const float value = toy_weight(v, i);
                wrong += value != 3.0f ? 1 : 0;
              }
            });
          }
        }
        compute.synchronize();
        if (wrong != 0) throw std::runtime_error(std::to_string(wrong) + " weights are old");
        world.barrier();
      });
    }
  }
}

TEST_CASE("a single rank exposes no communication, even if norms take long") {
  auto world = single_rank();
  Engine engine(atoll::Mesh::make(world, {1, 1}));
  add_units(engine, {"a", "b"}, 4'000'000);
  engine.initialize(1);
  fsdp::Optimizer optimizer(engine, {});
  auto compute = engine.device().stream();
  for (int step = 0; step < 3; ++step) {
    train(engine, compute, 1.0f);
    optimizer.step(0.1f, compute);
  }
  compute.synchronize();
  // The limit of 1 ms allows for the cost of time stamps. Compute itself waits for nothing, because
  // the events of a single rank occur at once.
  CHECK(compute.exposed_communication() < 1ms);
}
