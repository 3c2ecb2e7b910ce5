// Counts the kernels that the host launches for a whole step of a training, on one rank and on two.
#include <doctest/doctest.h>

#include "../../train/job.hpp"
#include "../../unit/train_data_temporary.hpp"
#include "launched.hpp"
#include "loop/trainer.hpp"
#include "thread_ranks.hpp"

namespace {

// Returns the kernels that each of `ranks` ranks launches in a step of a training: the difference
// of trainings that differ only in their number of steps. Products are not counted, because a
// training measures their peak for a given time.
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
    return atoll_test::launched_by(run).kernels;
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
  // A step computes the sum of squares of each unit, from these the factor that clips, and updates
  // each unit.
  constexpr int factor = 3, step = units + factor + units;
  CHECK(kernels_of_step(1, options) == 2 * pass + step);  // two micro batches
  // Updates during backward read a factor of 1, which is computed before backward begins.
  options.clip = 0;
  options.skip_nonfinite = false;
  CHECK(kernels_of_step(1, options) == 2 * pass + step + factor);
  options.clip = 1;
  options.strategy = "full_shard";
  options.mesh = "1x2";
  // Each rank has one micro batch. It casts its shard of a unit to bf16 to gather the unit: forward
  // gathers all units, and backward two of them again.
  constexpr int casts = units + 2;
  CHECK(kernels_of_step(2, options) == pass + casts + step);
  // A reduction in bf16 has three kernels for a unit: it casts the gradients, adds those of the
  // ranks and casts the sum.
  options.reduce_dtype = "bf16";
  CHECK(kernels_of_step(2, options) == pass + casts + 3 * units + step);
}
