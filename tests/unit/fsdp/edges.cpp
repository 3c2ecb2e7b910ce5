// Edge cases of the engine: calls in unusual order, several scopes at once, skipped steps, and
// objects that are destroyed while streams still work.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <optional>
#include <thread>

#include "atoll/optimizer.hpp"
#include "fsdp/setup.hpp"
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

// Runs `body` on two ranks, with an engine that shards the units.
void on_two_shards(int prefetch, std::initializer_list<const char*> units,
                   const std::function<void(Engine&, atoll::Stream&)>& body) {
  run_thread_ranks(2, [&](atoll::World& world) {
    Engine engine(atoll::Mesh::make(world, {1, 2}),
                  {.strategy = Strategy::full_shard, .prefetch = prefetch});
    add_units(engine, units, 8192);
    engine.initialize(1);
    auto compute = engine.device().stream();
    body(engine, compute);
    compute.synchronize();
    world.barrier();
  });
}

// Returns an element of the gradient shard of a unit.
float gradient_of(Engine& engine, const char* unit) {
  return fsdp::state_of(engine.unit(unit)).buckets[0].gradient.as<float>()[0];
}

}  // namespace

TEST_CASE("a step in progress comes before values assigned after it, and before a pass elsewhere") {
  for (const bool assigns : {true, false}) {
    auto world = single_rank();
    Engine engine(atoll::Mesh::make(world, {1, 1}));
    add_units(engine, {"a"}, 8);
    set_all(engine, 7.0f);
    fsdp::Optimizer optimizer(engine, plain_sgd);
    auto compute = engine.device().stream(), other = engine.device().stream();
    train(engine, compute, 1.0f, 50ms);
    optimizer.step(1.0f, compute);
    if (assigns) set_all(engine, 9.0f);
    float seen = 0;
    {
      auto pass = engine.begin({fsdp::PassOptions::Kind::eval, 0, 1}, other);
      const auto w = pass.forward(engine.unit("a"));
      other.enqueue([v = w["w"], &seen] { seen = v.as<float>()[0]; });
    }
    other.synchronize();
    compute.synchronize();
    CHECK(seen == (assigns ? 9.0f : 6.0f));
  }
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
  on_two_shards(3, {"a", "b", "c"}, [](Engine& engine, atoll::Stream& compute) {
    {
      auto pass = engine.begin({}, compute);
      for (const auto& unit : engine.units()) const auto w = pass.forward(*unit);
      {
        const auto c = pass.backward(engine.unit("c"));
        const auto b = pass.backward(engine.unit("b"));
        fill(compute, c.grad("w").view, 3.0f);
        fill(compute, b.grad("w").view, 2.0f);
        CHECK_THROWS_AS((void)pass.backward(engine.unit("a")), atoll::Error);
      }
      const auto a = pass.backward(engine.unit("a"));
      fill(compute, a.grad("w").view, 1.0f);
    }
    engine.wait_gradients(compute);
    compute.synchronize();
    for (const auto& [name, value] : {std::pair{"a", 2.0f}, {"b", 4.0f}, {"c", 6.0f}})
      CHECK(gradient_of(engine, name) == value);
  });
}

TEST_CASE("a unit that is still unsharded in its slot is not gathered again") {
  for (const int prefetch : {0, 2, 7}) {
    CAPTURE(prefetch);
    run_thread_ranks(2, [&](atoll::World& world) {
      Engine engine(atoll::Mesh::make(world, {1, 2}),
                    {.strategy = Strategy::full_shard, .prefetch = prefetch});
      constexpr std::uint64_t units = 5;
      add_units(engine, {"a", "b", "c", "d", "e"}, 8192);
      engine.initialize(1);
      auto compute = engine.device().stream();
      const auto gathers_of = [&](int micro) {
        engine.scheduler().take_records();
        train(engine, compute, 1.0f, 0ms, {fsdp::PassOptions::Kind::train, micro, 3});
        engine.scheduler().synchronize();
        compute.synchronize();
        std::uint64_t gathers = 0;
        for (const auto& record : engine.scheduler().take_records().records)
          gathers += record.activity == atoll::Activity::all_gather;
        return gathers;
      };
      const std::uint64_t slots = std::min<std::uint64_t>(units, std::uint64_t(prefetch) + 1);
      CHECK(gathers_of(0) == units + units - slots);
      CHECK(gathers_of(1) == units - slots + units - slots);
      // Changed parameters are gathered again, although their units are still gathered.
      set_all(engine, 7.0f);
      CHECK(gathers_of(2) == units + units - slots);
      world.barrier();
    });
  }
}

TEST_CASE("backward of a unit cannot begin while its forward scope is open") {
  on_two_shards(3, {"a", "b", "c"}, [](Engine& engine, atoll::Stream& compute) {
    auto pass = engine.begin({}, compute);
    { const auto a = pass.forward(engine.unit("a")); }
    const auto b = pass.forward(engine.unit("b"));
    { const auto c = pass.forward(engine.unit("c")); }
    {
      const auto c = pass.backward(engine.unit("c"));
      fill(compute, c.grad("w").view, 1.0f);
    }
    CHECK_THROWS_WITH_AS((void)pass.backward(engine.unit("b")), doctest::Contains("still open"),
                         atoll::Error);
  });
}

TEST_CASE("an exception that leaves a scope abandons the pass, and nothing more is reduced") {
  on_two_shards(1, {"a", "b"}, [](Engine& engine, atoll::Stream& compute) {
    fsdp::Optimizer optimizer(engine, plain_sgd);
    const auto fail_in = [&](fsdp::Pass& pass, const char* name) {
      const auto write_half = [&] {
        const auto w = pass.backward(engine.unit(name));
        throw std::runtime_error("out of patience");
      };
      CHECK_THROWS_AS(write_half(), std::runtime_error);
    };
    for (const bool in_last : {false, true}) {
      auto pass = engine.begin({}, compute);
      for (const auto& unit : engine.units()) const auto w = pass.forward(*unit);
      if (in_last) {
        const auto w = pass.backward(engine.unit("b"));
        fill(compute, w.grad("w").view, 1.0f);
      }
      fail_in(pass, in_last ? "a" : "b");
      CHECK_THROWS_WITH_AS((void)pass.backward(engine.unit("a")), doctest::Contains("is abandoned"),
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
      fail_in(pass, "a");
    }
    compute.synchronize();
    for (const auto& record : engine.scheduler().take_records().records)
      CHECK(record.activity != atoll::Activity::reduce_scatter);
    train(engine, compute, 1.0f);
    optimizer.step(1.0f, compute);
    compute.synchronize();
    for (const char* name : {"a", "b"}) CHECK(gradient_of(engine, name) == 2.0f);
  });
}

TEST_CASE("a unit stays gathered as long as any scope of it is open") {
  on_two_shards(1, {"a", "b", "c"}, [](Engine& engine, atoll::Stream& compute) {
    engine.assign([](const fsdp::Segment& segment, std::span<float> out) {
      std::fill(out.begin(), out.end(), static_cast<float>(segment.unit->name()[0] - 'a' + 1));
    });
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
      // The scope `outer` still holds unit c, so there is no free memory to gather unit a.
      CHECK_THROWS_AS((void)pass.backward(engine.unit("a")), atoll::Error);
      outer.reset();
      const auto w = pass.backward(engine.unit("a"));
      fill(compute, w.grad("w").view, 1.0f);
    }
    compute.synchronize();
    CHECK(seen == 3.0f);
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
