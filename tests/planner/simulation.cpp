// Steps of whole jobs on simulated devices.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "atoll/error.hpp"
#include "model/config.hpp"
#include "plan/cluster.hpp"
#include "plan/output.hpp"
#include "plan/search.hpp"
#include "plan/simulate.hpp"

namespace {

namespace fsdp = atoll::fsdp;

plan::Job job(int hosts, int ranks_per_host, fsdp::Strategy strategy = fsdp::Strategy::full_shard) {
  plan::Job job;
  job.model = train::preset("mistral-small");
  job.cluster =
      plan::cluster_of({.gpu = "H100", .hosts = hosts, .ranks_per_host = ranks_per_host}).cluster;
  job.strategy = strategy;
  const bool hybrid = strategy == fsdp::Strategy::hybrid_shard;
  job.mesh = hybrid ? atoll::MeshShape{hosts, ranks_per_host}
                    : atoll::MeshShape{1, hosts * ranks_per_host};
  job.seq = 512;
  job.micro_batch = 2;
  return job;
}

std::string error_of(const plan::Job& wrong) {
  try {
    plan::simulate(wrong);
  } catch (const atoll::Error& error) {
    return error.what();
  }
  return "no error";
}

// Returns when each record of a step, work or a collective, begins and ends.
std::vector<std::pair<std::int64_t, std::int64_t>> times_of(const plan::Prediction& p) {
  std::vector<std::pair<std::int64_t, std::int64_t>> times;
  for (const auto& record : p.trace) times.emplace_back(record.begin_ns, record.end_ns);
  return times;
}

// Returns the largest difference in ns, or a day if the steps have different numbers of records.
std::int64_t farthest(const std::vector<std::pair<std::int64_t, std::int64_t>>& a,
                      const std::vector<std::pair<std::int64_t, std::int64_t>>& b) {
  if (a.size() != b.size()) return std::int64_t{86'400} * 1'000'000'000;
  std::int64_t most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max({most, std::abs(a[i].first - b[i].first), std::abs(a[i].second - b[i].second)});
  }
  return most;
}

}  // namespace

// The simulation of a rank assumes that all ranks reach each collective at the same time. This is
// right if the simulations of all ranks reach all collectives at equal times.
TEST_CASE("every rank of a job reaches every collective at the same time") {
  for (const auto strategy : fsdp::every_strategy()) {
    for (const int hosts : {2, 8}) {
      plan::Job all = job(hosts, hosts == 2 ? 4 : 8, strategy);
      all.model = train::preset("mistral-tiny");
      all.mesh = {hosts, all.cluster.ranks_per_host};
      const plan::Prediction first = plan::simulate(all, {.trace = true});
      CHECK(first.step_s > 0);
      CHECK(first.trace.size() > 10);
      for (int rank = 1; rank < all.ranks(); ++rank) {
        CAPTURE(fsdp::name(strategy));
        CAPTURE(rank);
        const plan::Prediction p = plan::simulate(all, {.rank = rank, .trace = true});
        CHECK(farthest(times_of(p), times_of(first)) <= 2);
        CHECK(p.step_s == doctest::Approx(first.step_s).epsilon(1e-9));
        CHECK(p.exposed_s == doctest::Approx(first.exposed_s).epsilon(1e-9));
        CHECK(p.bytes == first.bytes);
      }
    }
  }
}

TEST_CASE("the memory of a step is that of the engine's plan") {
  for (const auto strategy : fsdp::every_strategy()) {
    CAPTURE(fsdp::name(strategy));
    plan::Job planned = job(1, 4, strategy);
    planned.mesh = {1, 4};
    const plan::Prediction p = plan::simulate(planned);
    const auto ids = static_cast<std::uint64_t>(3 * planned.micro_batch * planned.seq * 4);
    const std::uint64_t outside = planned.cluster.compute.reserved_bytes + ids;
    CHECK(p.memory.total() <= p.bytes - outside);
    // The optimizer keeps norms and a scale beside the plan.
    CHECK(p.bytes - outside - p.memory.total() < 4 << 20);
  }
}

TEST_CASE("one rank alone has no communication") {
  const plan::Prediction p = plan::simulate(job(1, 1, fsdp::Strategy::no_shard));
  CHECK(p.exposed_s == 0);
  CHECK(p.communication_s == 0);
  CHECK(p.step_s > 0);
  CHECK(p.mfu > 0);
  CHECK(p.mfu < 1);
}

TEST_CASE("a slower fabric never makes a step faster, and hybrid_shard suffers least") {
  plan::Job full = job(3, 8), hybrid = job(3, 8, fsdp::Strategy::hybrid_shard);
  full.model = hybrid.model = train::preset("qwen2.5-7b");
  full.micro_batch = hybrid.micro_batch = 1;
  full.seq = hybrid.seq = 2048;
  double before = 0;
  for (const double rate : {0.0, 200.0, 100.0, 50.0}) {
    CAPTURE(rate);
    full.cluster.fabric.most_gbyte_s = hybrid.cluster.fabric.most_gbyte_s = rate;
    const double step = plan::simulate(full).step_s;
    CHECK(step >= before);
    before = step;
  }
  // At an eighth of the fabric's rate, hybrid_shard is faster, because it sends less between hosts.
  CHECK(plan::simulate(hybrid).tokens_per_s > 1.2 * plan::simulate(full).tokens_per_s);
}

TEST_CASE("more passes hide more communication, and recomputation trades time for memory") {
  plan::Job one = job(2, 8, fsdp::Strategy::hybrid_shard), four = one, again = one;
  four.micro_batches = 4;
  again.recompute = train::Recompute::full;
  const auto a = plan::simulate(one), b = plan::simulate(four), c = plan::simulate(again);
  CHECK(b.exposed_s / b.step_s < a.exposed_s / a.step_s);
  CHECK(b.step_s < 4 * a.step_s);
  CHECK(c.step_s > a.step_s);
  CHECK(c.bytes < a.bytes);
}

TEST_CASE("PyTorch costs more time and memory than atoll, and more in eager mode") {
  using train::simulated::Framework;
  const auto with = [](plan::Job one, Framework framework) {
    one.framework = framework;
    return plan::simulate(one);
  };
  plan::Job many = job(1, 8);
  const auto ours = with(many, Framework::atoll),
             compiled = with(many, Framework::pytorch_compiled),
             eager = with(many, Framework::pytorch_eager);
  CHECK(ours.step_s < compiled.step_s);
  CHECK(compiled.step_s < eager.step_s);
  const auto logits = static_cast<double>(many.micro_batch * many.seq * many.model.vocab);
  CHECK(static_cast<double>(eager.bytes - compiled.bytes) == doctest::Approx(8 * logits));
}

TEST_CASE("products in fp8 save time and need memory for copies; adapters save memory") {
  plan::Job plain = job(1, 8);
  plain.model = train::preset("mistral-7b");
  plain.seq = 2048;  // with few tokens, the conversion of the weights costs more than fp8 saves
  plain.micro_batch = 4;
  plan::Job fp8 = plain, lora = plain;
  fp8.fp8 = true;
  lora.model.adapters = {.rank = 16, .alpha = 32, .targets = train::adapter_targets()};
  const auto a = plan::simulate(plain), b = plan::simulate(fp8), c = plan::simulate(lora);
  CHECK(b.step_s < 0.9 * a.step_s);
  CHECK(b.step_s > 0.5 * a.step_s);  // attention and the rest stay in bf16
  CHECK(b.bytes > a.bytes);
  CHECK(c.memory.optimizer < a.memory.optimizer / 50);
  CHECK(c.step_s < a.step_s);
}

TEST_CASE("a mesh other than the trainer's is explained with the bandwidth below which it loses") {
  plan::Job base = job(3, 8);
  base.model = train::preset("qwen2.5-7b");
  base.seq = 2048;
  const plan::SearchSpace space{
      .strategies = {fsdp::Strategy::full_shard, fsdp::Strategy::hybrid_shard},
      .meshes = {{3, 8}},
      .recomputes = {train::Recompute::full},
      .micro_batches = {4}};
  const auto found = plan::search(base, space);
  REQUIRE(found.front().job.strategy == fsdp::Strategy::full_shard);
  const std::string text = plan::other_mesh(found);
  CAPTURE(text);
  CHECK(text.starts_with("atoll-train plans the mesh 3x8"));
  const auto at = text.find("Below ");
  REQUIRE(at != std::string::npos);
  const double rate = std::stod(text.substr(at + 6));
  // A search slightly below and slightly above that bandwidth finds the mesh that the text names.
  for (const double factor : {0.9, 1.1}) {
    base.cluster.fabric.most_gbyte_s = factor * rate;
    const auto best = plan::search(base, space).front().job.strategy;
    CHECK((best == fsdp::Strategy::hybrid_shard) == (factor < 1));
  }
  base.cluster.fabric.most_gbyte_s = 0.5 * rate;
  CHECK(plan::other_mesh(plan::search(base, space)) == "");
}

TEST_CASE("growth says whether the global batch grows, and where nothing fits") {
  plan::Job base = job(4, 1);
  base.model = train::preset("llama-3.1-8b");
  const plan::SearchSpace space{.strategies = {fsdp::Strategy::full_shard},
                                .recomputes = {train::Recompute::full},
                                .micro_batches = {1}};
  const auto best = plan::search(base, space).front();
  const std::string text = plan::growth(plan::scaling_of(best, space), 0);
  CAPTURE(text);
  CHECK(text.find("grows with the hosts (--global-batch 4 fixes it)") != std::string::npos);
  CHECK(text.find("1  nothing fits: the least that 1 host(s) need is 1") != std::string::npos);
  CHECK(text.find("global batch 4\n") != std::string::npos);
  CHECK(plan::growth(plan::scaling_of(best, space), 8).find("has 8 rows on all") !=
        std::string::npos);
}

// With a trace, simulate() runs all passes of a step; without one it runs a few and extrapolates.
void check_extension(plan::Job many) {
  CAPTURE(fsdp::name(many.strategy));
  CAPTURE(many.model.name);
  many.micro_batches = 24;
  const plan::Prediction extended = plan::simulate(many),
                         whole = plan::simulate(many, {.trace = true});
  const auto differ = [&](double a, double b) { return std::abs(a - b) / whole.step_s; };
  CHECK(differ(extended.step_s, whole.step_s) < 1e-4);
  CHECK(differ(extended.exposed_s, whole.exposed_s) < 5e-4);
  CHECK(differ(extended.compute_s, whole.compute_s) < 5e-4);
  CHECK(differ(extended.communication_s, whole.communication_s) < 1e-3);
  CHECK(std::abs(extended.mfu / whole.mfu - 1) < 1e-4);
  CHECK(extended.bytes == whole.bytes);
}

TEST_CASE("many passes are extended from few, and take as long as if each were simulated") {
  for (const fsdp::Strategy strategy : fsdp::every_strategy()) {
    check_extension(job(2, 4, strategy));
    plan::Job large = job(2, 8, strategy);
    large.model = train::preset("mistral-7b");
    large.micro_batch = 1;
    check_extension(large);
  }
}

TEST_CASE("a search tries how many units are gathered ahead, where units are gathered") {
  const auto found =
      plan::search(job(2, 8), {.strategies = {fsdp::Strategy::full_shard, fsdp::Strategy::no_shard},
                               .recomputes = {train::Recompute::none},
                               .micro_batches = {2},
                               .prefetches = {1, 2, 4}});
  REQUIRE(found.size() == 4);
  std::uint64_t least = 0, most = 0;
  for (const plan::Candidate& candidate : found) {
    if (candidate.job.strategy != fsdp::Strategy::full_shard) continue;
    if (candidate.job.prefetch == 1) least = candidate.prediction.bytes;
    if (candidate.job.prefetch == 4) most = candidate.prediction.bytes;
  }
  CHECK(least > 0);
  CHECK(most > least);  // each unit ahead needs a buffer
}

TEST_CASE("a search ranks what fits first, and the fastest of it first") {
  plan::Job base = job(2, 8);
  base.cluster.compute.memory_bytes = 4'000'000'000;
  const auto found =
      plan::search(base, {.strategies = fsdp::every_strategy(),
                          .recomputes = {train::Recompute::none, train::Recompute::full},
                          .micro_batches = {1, 8},
                          .global_batch = 128});
  REQUIRE(found.size() > 4);
  CHECK(found.front().prediction.fits);
  CHECK_FALSE(found.back().prediction.fits);
  for (std::size_t i = 1; i < found.size(); ++i) {
    const auto &before = found[i - 1].prediction, &after = found[i].prediction;
    if (!before.fits) CHECK_FALSE(after.fits);
    if (before.fits && after.fits) CHECK(before.tokens_per_s >= after.tokens_per_s);
    CHECK(found[i].job.tokens() == doctest::Approx(128.0 * 512));
  }
}

TEST_CASE("16,384 GPUs are one simulation") {
  plan::Job large = job(2048, 8, fsdp::Strategy::hybrid_shard);
  large.model = train::preset("llama-3.1-8b");
  const plan::Prediction p = plan::simulate(large);
  CHECK(p.tokens_per_s > 1e6);
  CHECK(p.exposed_s < p.step_s);
}

TEST_CASE("wrong jobs are refused") {
  plan::Job wrong = job(1, 4);
  wrong.mesh = {1, 3};
  CHECK(error_of(wrong) == "the mesh 1 x 3 does not have the 4 ranks of the job");
  wrong = job(1, 4);
  wrong.micro_batch = 0;
  CHECK(error_of(wrong) == "sequence, micro batch and number of micro batches must be at least 1");
}
