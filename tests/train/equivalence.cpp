// Tests that any number of ranks trains like one process. The tests combine every strategy, 1 to 6
// ranks, 1 to 3 micro batches, every form of recomputation, both dtypes and both optimizers. The
// model has prime sizes, a tied head and frozen parameters. SGD runs without clipping, because a
// wrong divisor scales its steps; AdamW would hide a wrong divisor.
//
// ATOLL_TEST_LONG=1 runs every combination. The short form covers every pair of values: each size
// (number of ranks and mesh) trains every strategy with three cuts. A cut fixes the number of micro
// batches, the recomputation, the dtype and the optimizer. The three cuts have 1, 2 and 3 micro
// batches, differ in dtype or optimizer, and rotate from size to size.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "atoll/schedule.hpp"
#include "job.hpp"
#include "model/hf_config.hpp"
#include "model/params.hpp"
#include "unit/train/data_temporary.hpp"

using namespace train_test;

namespace {

struct Shape {
  std::string strategy;
  int secondary_shards = 0;
};

const std::vector<Shape> shapes{{"no_shard"},     {"shard_optimizer"}, {"shard_grad"},
                                {"full_shard"},   {"hybrid_shard"},    {"hybrid_shard_grad"},
                                {"full_shard", 1}};
const std::vector<std::string> recomputes{"none", "selective", "full"};

struct Size {
  int ranks;
  std::string mesh;  // mesh that all strategies use, as replicate x shard
};
const std::vector<Size> sizes{{1, "1x1"}, {2, "1x2"}, {3, "1x3"},
                              {4, "2x2"}, {5, "1x5"}, {6, "2x3"}};

train::RunOptions base(const TemporaryFolder& folder) {
  train::RunOptions options = plain_run(folder.path());
  options.model = folder.write("prime.json", prime_model_json()).string();
  options.freeze = {"model.layers.0.mlp.up_proj.weight", "*post_attention_layernorm.weight"};
  options.samples = 60;
  options.lr = 3e-4;
  options.warmup_steps = 0;
  return options;
}

// The factors of a job that do not depend on the strategy. Each rank has `micro` micro batches per
// step. In the last micro batch, one rank has no sample.
struct Cut {
  int micro = 1;
  std::string recompute;
  std::string dtype;
  std::string optimizer;
};

train::RunOptions with(train::RunOptions options, const Cut& cut, int ranks) {
  options.global_batch = cut.micro * ranks - (ranks > 1 ? 1 : 0);
  options.recompute = cut.recompute;
  options.dtype = cut.dtype;
  options.optimizer = cut.optimizer;
  if (cut.optimizer == "sgd") {
    options.clip = 0;
    // High enough to move weights by far more than the tolerance of the comparison.
    options.lr = 0.03;
  }
  return options;
}

// Returns the cuts to test. The long form tests all cuts. The short form tests three cuts, one for
// each number of micro batches; no two of the three share both dtype and optimizer.
std::vector<Cut> cuts(std::size_t turn) {
  std::vector<Cut> all, some;
  for (int micro = 1; micro <= 3; ++micro) {
    for (const char* dtype : {"f32", "bf16"}) {
      for (const char* optimizer : {"adamw", "sgd"}) {
        for (const auto& recompute : recomputes)
          all.push_back({micro, recompute, dtype, optimizer});
      }
    }
  }
  if (long_form()) return all;
  // Chooses another dtype, optimizer and form of recomputation in each turn.
  for (std::size_t i = 0; i < all.size(); i += recomputes.size()) {
    const std::size_t group = i / recomputes.size();
    if ((group + group / 4) % 4 == turn % 4)
      some.push_back(all[i + (turn + group) % recomputes.size()]);
  }
  return some;
}

// Caches the results of a single process that trains the same samples per step.
class References {
 public:
  const RankResult& of(const train::RunOptions& options) {
    const auto key = std::tuple(options.global_batch, options.dtype, options.optimizer);
    const auto found = known_.find(key);
    if (found != known_.end()) return found->second;
    auto alone = options;
    alone.strategy = "no_shard";
    alone.recompute = "none";
    alone.secondary_shards = 0;
    alone.mesh.clear();
    return known_.emplace(key, run_job(1, alone).front()).first->second;
  }

 private:
  std::map<std::tuple<std::int64_t, std::string, std::string>, RankResult> known_;
};

struct Tolerance {
  double loss, grad_norm, weights;
};

// Master weights are f32 for both dtypes. Their bf16 copies may be rounded in the other direction,
// which changes a value by up to 1/256.
Tolerance tolerance(const std::string& dtype) {
  return dtype == "bf16" ? Tolerance{1e-3, 1e-2, 1e-3} : Tolerance{1e-5, 1e-5, 1e-5};
}

void check_near(const RankResult& result, const RankResult& reference, const Tolerance& tolerance) {
  const auto curve = distance(result.run.steps, reference.run.steps);
  CHECK(curve.loss <= tolerance.loss);
  CHECK(curve.grad_norm <= tolerance.grad_norm);
  CHECK(distance(result.weights, reference.weights) <= tolerance.weights);
}

void check_same(const RankResult& result, const RankResult& other) {
  const auto curve = distance(result.run.steps, other.run.steps);
  CHECK(curve.loss == 0);
  CHECK(curve.grad_norm == 0);
  // Compared here, because a CHECK of the vectors would print every weight.
  const bool same = result.weights == other.weights;
  CHECK(same);
}

// Returns the ways to accumulate gradients: both ways in the long form, and one of them in the
// short form, alternating from turn to turn.
std::vector<std::string> accumulations(const Cut& cut, std::size_t turn) {
  std::vector<std::string> result{"local", "shard"};
  const bool shard = (static_cast<std::size_t>(cut.micro) + turn) % 2 != 0;
  if (cut.micro == 1 || !long_form()) result = {shard ? "shard" : "local"};
  return result;
}

// Returns one job for each strategy with this cut. All jobs accumulate in the same way, because the
// way decides the order in which micro batches are added.
std::vector<train::RunOptions> jobs_of(const train::RunOptions& options, const Cut& cut,
                                       const std::string& accumulate, const Size& size) {
  std::vector<train::RunOptions> jobs;
  for (const Shape& shape : shapes) {
    auto job = with(options, cut, size.ranks);
    job.strategy = shape.strategy;
    job.secondary_shards = shape.secondary_shards;
    job.accumulate = accumulate;
    job.mesh = size.mesh;
    jobs.push_back(job);
  }
  return jobs;
}

// Returns the first shape that adds values in the same order as shape `s`. If several micro batches
// are reduced at once, they are summed within the axis that the strategy shards over, so hybrid
// strategies differ from other strategies. no_shard always sums locally first.
std::size_t first_alike(std::size_t s, const train::RunOptions& job, int micro) {
  if (job.accumulate == "local" || micro == 1 || shapes[s].strategy == "no_shard") return 0;
  const auto is_hybrid = [](const Shape& shape) { return shape.strategy.starts_with("hybrid"); };
  std::size_t first = 1;
  while (is_hybrid(shapes[first]) != is_hybrid(shapes[s])) ++first;
  return first;
}

void check_size(const Size& size, std::size_t turn, Order order, References& references) {
  const TemporaryFolder folder;
  const auto options = base(folder);
  std::vector<train::RunOptions> jobs;
  for (const Cut& cut : cuts(turn)) {
    for (const auto& accumulate : accumulations(cut, turn)) {
      for (const auto& job : jobs_of(options, cut, accumulate, size)) jobs.push_back(job);
    }
  }
  const auto results = run_jobs(size.ranks, jobs, order);
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    const auto& job = jobs[j];
    CAPTURE(size.mesh);
    CAPTURE(job.strategy);
    CAPTURE(job.secondary_shards);
    CAPTURE(job.accumulate);
    CAPTURE(job.global_batch);
    CAPTURE(job.recompute);
    CAPTURE(job.dtype);
    CAPTURE(job.optimizer);
    check_ranks_agree(results[j]);
    check_near(results[j][0], references.of(job), tolerance(job.dtype));
    if (order == Order::deterministic) {
      const std::size_t shape = j % shapes.size();
      const int micro = static_cast<int>((job.global_batch + size.ranks - 1) / size.ranks);
      check_same(results[j][0], results[j - shape + first_alike(shape, job, micro)][0]);
    }
  }
}

}  // namespace

// Shards are whole blocks of 4,096 elements, so a model that is too small would leave some ranks
// without parameters.
TEST_CASE("every shard has parameters, on any number of ranks") {
  const TemporaryFolder folder;
  const auto options = base(folder);
  const auto model = train::read_hf_config(options.model);
  for (const Size& size : sizes) {
    std::set<std::uint64_t> owners;
    for (std::size_t unit = 0; unit < train::unit_count(model); ++unit) {
      std::vector<std::uint64_t> counts;
      for (const auto& spec : train::param_specs(model, unit)) {
        const bool frozen =
            spec.hf_name == options.freeze[0] || spec.name.starts_with("post_attention_layernorm");
        if (!frozen) counts.push_back(static_cast<std::uint64_t>(spec.count()));
      }
      const auto layout = atoll::plan_bucket(counts, static_cast<std::uint64_t>(size.ranks));
      for (const auto& slot : layout.slots) {
        const std::uint64_t last = slot.offset + slot.count - 1;
        for (auto at = slot.offset / layout.shard_elements(); at <= last / layout.shard_elements();)
          owners.insert(at++);
      }
    }
    CHECK(owners.size() == static_cast<std::size_t>(size.ranks));
  }
}

TEST_CASE("one planned mesh: equal to one process, and all strategies bit for bit") {
  References references;
  for (std::size_t turn = 0; turn < sizes.size(); ++turn) {
    check_size(sizes[turn], turn, Order::deterministic, references);
  }
}

TEST_CASE("in the order that is fastest: equal to one process") {
  References references;
  for (std::size_t turn = 0; turn < sizes.size(); ++turn) {
    // The short form runs only these three of the six sizes.
    const bool chosen = turn == 2 || turn == 3 || turn == 5;
    if (chosen || long_form()) check_size(sizes[turn], turn + 1, Order::fast, references);
  }
}
