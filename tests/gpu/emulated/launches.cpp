// Counts the kernels and products that the host launches for a layer, a pass and a step. A launch
// costs the host some microseconds, which a step of few tokens waits for. Attention is that of atoll's own kernels;
// cuDNN's differ in number.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <string>
#include <vector>

#include "../../train/job.hpp"
#include "../../unit/train_data_temporary.hpp"
#include "atoll/config.hpp"
#include "atoll/world.hpp"
#include "emulated.hpp"
#include "loop/trainer.hpp"
#include "model/cuda/cuda_ops.hpp"
#include "pass.hpp"
#include "thread_ranks.hpp"

using namespace train;
using atoll_test::ModelPass;

namespace {

struct Count {
  int kernels = 0, products = 0;
  friend bool operator==(const Count&, const Count&) = default;
};
doctest::String toString(const Count& count) {
  return fmt::format("{} kernels and {} products", count.kernels, count.products).c_str();
}

template <class Work>
Count count_of(const Work& work) {
  const auto& launches = emulated::launches();
  const int kernels = static_cast<int>(launches.kernels);
  const int products = static_cast<int>(launches.products);
  work();
  return {static_cast<int>(launches.kernels) - kernels,
          static_cast<int>(launches.products) - products};
}

}  // namespace

TEST_CASE("the launches of a layer, forward and backward") {
  ModelConfig model = preset("mistral-tiny", 61);
  model.layers = 3;
  struct Case {
    const char* name;
    Recompute recompute;
    bool fp8;
    Count forward, backward;  // of a layer
    Count all;                // of the whole pass, with embedding and head
  };
  // Forward has kernels for two norms, rope of queries and of keys, attention and SwiGLU. Backward
  // has two for each norm, three for attention, two for rope and one for SwiGLU; recomputation
  // repeats norms and SwiGLU (selective), or all but the last product (full). In fp8, each operand
  // takes two more kernels, which find its largest value and convert it. Embedding and head add 12
  // kernels and 9 products: the head computes the tokens in three blocks.
  const Case cases[] = {
      {"bf16", Recompute::none, false, {6, 7}, {10, 14}, {60, 72}},
      {"bf16, selective recomputation", Recompute::selective, false, {6, 7}, {13, 14}, {69, 72}},
      {"bf16, full recomputation", Recompute::full, false, {6, 7}, {16, 20}, {72, 84}},
      {"fp8", Recompute::none, true, {28, 7}, {46, 14}, {234, 72}},
  };
  for (const Case& one : cases) {
    CAPTURE(one.name);
    const auto device = atoll::Device::cuda();
    const auto ops = cuda::make_ops(device, {.fp8 = one.fp8});
    ModelPass pass(model, atoll::DType::bf16, *ops, device, one.recompute);
    constexpr std::size_t layer = 2;  // between the embedding with the first layer, and the last
    pass.begin();
    std::vector<Count> forward(pass.units()), backward(pass.units());
    for (std::size_t unit = 0; unit < pass.units(); ++unit) {
      forward[unit] = count_of([&] { pass.forward(unit); });
    }
    for (std::size_t unit = pass.units(); unit-- > 0;) {
      backward[unit] = count_of([&] { pass.backward(unit); });
    }
    pass.stream().synchronize();
    CHECK(forward[layer] == one.forward);
    CHECK(backward[layer] == one.backward);
    Count all;
    for (const auto& units : {forward, backward}) {
      for (const Count& unit : units) {
        all.kernels += unit.kernels;
        all.products += unit.products;
      }
    }
    CHECK(all == one.all);
    // The activations of the last layer are still there, so full recomputation leaves it out.
    if (one.recompute == Recompute::full) CHECK(backward[layer + 1] == cases[0].backward);
  }
}

namespace {

// Returns the kernels that each of `ranks` ranks launches in a step of a training: the difference of
// trainings that differ only in their number of steps. Products are not counted, because a training
// measures their peak for a given time.
int kernels_of_step(int ranks, const train::RunOptions& options) {
  const auto of_steps = [&](int steps) {
    train::RunOptions job = options;
    job.steps = steps;
    const train_test::TemporaryFolder folder;
    job.out = folder.path().string();
    const auto run = [&] {
      atoll_test::run_thread_ranks(
          ranks, [&](atoll::World& world) { train::run(world, job); },
          [](atoll::Config& config) {
            config.log = "error";
            config.plugin_path = atoll::Config::from_env().plugin_path;
          });
    };
    return count_of(run).kernels;
  };
  const int more = of_steps(4) - of_steps(2);
  CHECK(more % (2 * ranks) == 0);
  return more / (2 * ranks);
}

}  // namespace

TEST_CASE("the launches of a step: its passes, the norm of the gradients, and the updates") {
  const train_test::TemporaryFolder folder;
  train::RunOptions options;
  options.model = folder.write("small.json", train_test::small_model_json(false)).string();
  options.data = "synthetic";
  options.device = "cuda";
  options.dtype = "bf16";
  options.seq = 24;
  options.global_batch = 4;
  options.micro_batch = 2;
  options.threads = 1;
  options.peak_seconds = 0.01;
  options.quiet = true;
  options.save_checkpoint = false;
  // Embedding, two layers and head are the four units. A pass has 16 kernels for each layer, and 8
  // for embedding and head, which computes these few tokens in one block.
  constexpr int units = 4, pass = 2 * 16 + 8;
  // Of each unit the sum of squares, of all the factor that clips, of each unit its update.
  constexpr int step = units + 3 + units;
  CHECK(kernels_of_step(1, options) == 2 * pass + step);  // two micro batches
  // Updates during backward read a factor too, which is 1.
  options.clip = 0;
  options.skip_nonfinite = false;
  CHECK(kernels_of_step(1, options) == 2 * pass + step + 3);
  options.clip = 1;
  options.strategy = "full_shard";
  options.mesh = "1x2";
  // Each rank has one micro batch. It casts its shard of a unit to bf16 to gather the unit: forward
  // gathers all units, and backward two of them again.
  constexpr int casts = units + 2;
  CHECK(kernels_of_step(2, options) == pass + casts + step);
  // A reduction in bf16 casts the gradients of a unit, adds those of the ranks, and casts the sum.
  options.reduce_dtype = "bf16";
  CHECK(kernels_of_step(2, options) == pass + casts + 3 * units + step);
}
