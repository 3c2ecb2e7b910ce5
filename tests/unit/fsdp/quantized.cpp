// Frozen parameters that the engine keeps in 8 bits: what compute reads, memory, bytes on the wire,
// checkpoints and misuse.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "device/cpu/kernels.hpp"
#include "device/int8_blocks.hpp"
#include "unit/checkpoint/checkpoint.hpp"
#include "unit/error_text.hpp"
#include "unit/fsdp/toy.hpp"

namespace fsdp = atoll::fsdp;
namespace cpu = atoll::cpu;
using atoll::DType;
using atoll_test::has;
using atoll_test::run_thread_ranks;
using fsdp::Strategy;
using train_test::TemporaryFolder;

namespace {

constexpr std::int64_t large = 20'011, small = 131;

// Values with a different magnitude in each block.
float value_of(std::string_view param, std::uint64_t i) {
  const auto block = static_cast<float>(1 + i / 64 % 7 + param.size());
  return block * std::sin(static_cast<float>(i + 1));
}

std::vector<float> values_of(std::string_view param, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of(param, i);
  return values;
}

// Returns the values of a parameter after quantization to 8 bits and conversion to `dtype`.
std::vector<float> kept_of(std::string_view param, std::int64_t count, DType dtype) {
  const auto values = values_of(param, count);
  std::vector<std::byte> blocks(atoll::int8_bytes(values.size()));
  cpu::quantize(blocks.data(), values);
  std::vector<std::byte> narrow(values.size() * size_of(dtype));
  cpu::dequantize({narrow.data(), values.size(), dtype}, blocks.data());
  std::vector<float> kept(values.size());
  cpu::cast(kept, atoll::ConstView(narrow.data(), values.size(), dtype));
  return kept;
}

struct Job {
  Job(atoll::World& world, bool quantized, Strategy strategy = Strategy::full_shard,
      DType dtype = DType::bf16, int replicas = 1, int secondary_shards = 0)
      : engine(atoll::Mesh::make(world, {replicas, world.size() / replicas}),
               {.strategy = strategy,
                .precision = {.param = dtype},
                .secondary_shards = secondary_shards,
                .prefetch = secondary_shards > 0 ? 0 : 1,  // 0: backward gathers unit a again
                .synchronous = true}),
        optimizer((add(quantized), engine), fsdp::OptimizerOptions{}),
        compute(engine.device().stream()) {}

  void add(bool quantized) {
    for (const char* name : {"a", "b"}) {
      engine.add_unit(
          name, {{.name = "w", .shape = {large}, .trainable = false, .quantized = quantized},
                 {.name = "bias", .shape = {small}, .trainable = false, .quantized = quantized},
                 {.name = "adapter", .shape = {small}}});
    }
    engine.seal({"a", "b"});
  }
  void fill() {
    engine.assign([](const fsdp::Segment& segment, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = value_of(segment.param->name, segment.first + i);
    });
  }
  // Returns what forward and backward read of a parameter.
  std::vector<std::vector<float>> seen(const char* unit, const char* param) {
    std::vector<std::vector<float>> found;
    const auto look = [&](const atoll::View& view) {
      auto& values = found.emplace_back(view.count);
      cpu::cast(values, view);
    };
    auto pass = engine.begin({}, compute);
    for (const char* name : {"a", "b"}) {
      const auto w = pass.forward(engine.unit(name));
      if (std::string_view(name) == unit) look(w[param]);
    }
    for (const char* name : {"b", "a"}) {
      const auto w = pass.backward(engine.unit(name));
      if (std::string_view(name) == unit) look(w[param]);
      std::ranges::fill(std::span(w.grad("adapter").view.as<float>(), small), 0.0f);
    }
    return found;
  }
  // Returns whether `visit` passes the quantized values of the frozen parameters.
  bool has_kept() {
    bool same = true;
    engine.visit([&](const auto&, const fsdp::ParamSpec& param, std::span<const float> values) {
      if (param.trainable) return;
      same = same && std::ranges::equal(values, kept_of(param.name, param.shape[0], DType::f32));
    });
    return same;
  }

  fsdp::Engine engine;
  fsdp::Optimizer optimizer;
  atoll::Stream compute;
};

}  // namespace

TEST_CASE("8 bits: a value is off by at most half a step; zeros and extremes are exact") {
  for (const std::size_t count : {1u, 63u, 64u, 65u, 1000u}) {
    CAPTURE(count);
    const auto values = values_of("w", static_cast<std::int64_t>(count));
    const auto kept = kept_of("w", static_cast<std::int64_t>(count), DType::f32);
    for (std::size_t first = 0; first < count; first += 64) {
      const auto last = std::min<std::size_t>(first + 64, count);
      float most = 0;
      for (std::size_t i = first; i < last; ++i) most = std::max(most, std::abs(values[i]));
      for (std::size_t i = first; i < last; ++i) {
        CHECK(std::abs(kept[i] - values[i]) <= most / 254 * 1.00001f);
        if (std::abs(values[i]) == most) CHECK(std::abs(kept[i]) == doctest::Approx(most));
      }
    }
  }
  // A value that is not finite makes its block NaN.
  std::vector<float> values(192, 0.0f);
  values[70] = std::numeric_limits<float>::infinity();
  values[130] = 127.0f;
  std::vector<std::byte> blocks(atoll::int8_bytes(values.size()));
  cpu::quantize(blocks.data(), values);
  cpu::dequantize(values, blocks.data());
  CHECK(std::ranges::all_of(std::span(values).first(64), [](float v) { return v == 0; }));
  CHECK(std::ranges::all_of(std::span(values).subspan(64, 64), [](float v) { return v != v; }));
  CHECK(values[130] == 127.0f);
  CHECK(values[131] == 0.0f);
}

TEST_CASE("compute reads the same 8-bit values on any number of ranks, forward and backward") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto kept = kept_of("w", large, dtype);
    const auto bias = kept_of("bias", small, dtype);
    for (const int ranks : {1, 2, 3, 4}) {
      CAPTURE(ranks);
      run_thread_ranks(ranks, [&](atoll::World& world) {
        Job job(world, true, Strategy::full_shard, dtype);
        job.fill();
        for (const char* unit : {"a", "b"}) {
          for (const auto& seen : job.seen(unit, "w")) CHECK(seen == kept);
          for (const auto& seen : job.seen(unit, "bias")) CHECK(seen == bias);
        }
        CHECK(job.has_kept());
      });
    }
  }
}

TEST_CASE("8 bits on a mesh of two replicas, and with secondary shards") {
  const auto kept = kept_of("w", large, DType::bf16);
  run_thread_ranks(4, [&](atoll::World& world) {
    Job job(world, true, Strategy::hybrid_shard, DType::bf16, 2);
    job.fill();
    for (const auto& seen : job.seen("b", "w")) CHECK(seen == kept);
    Job inner(world, true, Strategy::full_shard, DType::bf16, 1, 2);
    inner.fill();
    for (const auto& seen : inner.seen("a", "w")) CHECK(seen == kept);
    CHECK(inner.engine.traffic().secondary_bytes > 0);
  });
}

TEST_CASE("initial values do not depend on the number of ranks, and differ by at most 8 bits") {
  const auto initial = [](int ranks, bool quantized) {
    std::vector<float> values;
    std::mutex mutex;
    run_thread_ranks(ranks, [&](atoll::World& world) {
      Job job(world, quantized, Strategy::full_shard, DType::f32);
      job.engine.initialize(7);
      job.engine.visit([&](const auto&, const auto& param, std::span<const float> all) {
        const std::lock_guard lock(mutex);
        if (world.rank() == 0 && param.name == "w") values.assign(all.begin(), all.end());
      });
    });
    return values;
  };
  const auto one = initial(1, true), exact = initial(1, false);
  CHECK(initial(3, true) == one);
  REQUIRE(one.size() == exact.size());
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(std::abs(one[i] - exact[i]) < 0.12f / 254);
  CHECK(one != exact);
}

TEST_CASE("8 bits take 17 bytes for 16 values, on a rank and on the wire") {
  run_thread_ranks(2, [](atoll::World& world) {
    Job narrow(world, true), wide(world, false);
    // Each unit has frozen buckets of 20,011 + 131 elements, padded to 24,576 on two shards.
    constexpr std::uint64_t elements = 24'576, units = 2;
    CHECK(wide.engine.memory().parameters - narrow.engine.memory().parameters ==
          units * elements / 2 * 2 - units * atoll::int8_bytes(elements) / 2);
    narrow.fill();
    wide.fill();
    narrow.seen("a", "w");
    wide.seen("a", "w");
    const std::uint64_t more = wide.engine.traffic().shard_bytes,
                        less = narrow.engine.traffic().shard_bytes;
    CHECK(more > less);
    CHECK((more - less) % (elements * 2 - atoll::int8_bytes(elements)) == 0);
  });
}

TEST_CASE("checkpoints move between 8 bits and 16 bits, and between numbers of ranks") {
  const TemporaryFolder folder;
  const auto saved = [&](const char* name) { return folder.path() / name; };
  for (const bool quantized : {true, false}) {
    run_thread_ranks(2, [&](atoll::World& world) {
      Job job(world, quantized);
      job.fill();
      fsdp::save(saved(quantized ? "int8" : "bf16"), job.engine, job.optimizer);
    });
  }
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    run_thread_ranks(ranks, [&](atoll::World& world) {
      Job same(world, true);
      fsdp::load(saved("int8"), same.engine, same.optimizer);
      CHECK(same.has_kept());
      Job wider(world, false);
      fsdp::load(saved("int8"), wider.engine, wider.optimizer);
      const auto kept = kept_of("w", large, DType::bf16);
      for (const auto& seen : wider.seen("a", "w")) CHECK(seen == kept);
      Job narrower(world, true);
      fsdp::load(saved("bf16"), narrower.engine, narrower.optimizer);
      for (const auto& seen : narrower.seen("a", "w")) {
        for (std::size_t i = 0; i < seen.size(); ++i)
          REQUIRE(std::abs(seen[i] - value_of("w", i)) < 0.1f);
      }
    });
  }
}

TEST_CASE("8 bits are refused for trained parameters and for strategies with whole parameters") {
  const auto refusal = [](int ranks, const std::function<void(atoll::World&)>& call) {
    return atoll_test::error_of([&] { run_thread_ranks(ranks, call); });
  };
  CHECK(has(refusal(1,
                    [](atoll::World& world) {
                      fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}), {});
                      engine.add_unit("a", {{.name = "w", .shape = {4}, .quantized = true}});
                    }),
            "w is quantized and trainable: only a frozen parameter can be kept in 8 bits"));
  for (const Strategy strategy : {Strategy::no_shard, Strategy::shard_optimizer,
                                  Strategy::shard_grad, Strategy::hybrid_shard_grad}) {
    CHECK(has(refusal(2, [&](atoll::World& world) { Job job(world, true, strategy); }),
              {"parameter w is quantized, but " + std::string(fsdp::name(strategy)),
               "use full_shard or hybrid_shard"}));
  }
  CHECK(has(refusal(2, [](atoll::World& world) { Job job(world, world.rank() == 0); }),
            "the quantized flag of parameter w of unit a"));
}
