// Tests of plan::explain(), which says why a run is slow, on published and simulated runs.
#include <doctest/doctest.h>

#include <string>

#include "model/config.hpp"
#include "plan/cluster.hpp"
#include "plan/explain.hpp"

namespace {

namespace fsdp = atoll::fsdp;

// The published runs of Qwen2.5-7B on hosts of 8 H100 with 8 x 400 Gbit/s.
plan::Job published(int hosts, fsdp::Strategy strategy) {
  plan::Job job;
  job.model = train::preset("qwen2.5-7b");
  job.cluster =
      plan::cluster_of({.gpu = "H100", .hosts = hosts, .ranks_per_host = 8, .inter = "8x400G"})
          .cluster;
  job.strategy = strategy;
  job.mesh = strategy == fsdp::Strategy::hybrid_shard ? atoll::MeshShape{hosts, 8}
                                                      : atoll::MeshShape{1, 8 * hosts};
  job.seq = 2048;
  job.micro_batch = 1;
  job.recompute = train::Recompute::full;
  job.reduce_dtype = atoll::DType::bf16;
  job.framework = train::simulated::Framework::pytorch_eager;
  return job;
}

constexpr double one_host = 36382;  // tokens/s of the published run on one host

bool mentions(const plan::Explanation& explanation, const std::string& text) {
  for (const plan::Cause& cause : explanation.causes) {
    if (cause.what.find(text) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("the published runs had a fabric several times below a healthy one") {
  struct Run {
    int hosts;
    fsdp::Strategy strategy;
    double tokens_per_s, busbw;
  };
  // `busbw` is what explain() found in November 2026. It is too low, because the runs recomputed
  // twice and so gathered once more than is simulated. Fitted with that gather, it is 50 to 100
  // GB/s.
  const Run runs[] = {{2, fsdp::Strategy::full_shard, 33622, 44.8},
                      {3, fsdp::Strategy::full_shard, 31589, 27.9},
                      {2, fsdp::Strategy::hybrid_shard, 58424, 59.7},
                      {3, fsdp::Strategy::hybrid_shard, 81451, 59.4}};
  for (const auto& [hosts, strategy, tokens_per_s, busbw] : runs) {
    const auto found =
        plan::explain(published(hosts, strategy),
                      {.tokens_per_s = tokens_per_s, .one_host_tokens_per_s = one_host});
    CAPTURE(hosts);
    CAPTURE(fsdp::name(strategy));
    REQUIRE(found.busbw.has_value());
    MESSAGE(hosts << " hosts, " << fsdp::name(strategy) << ": " << *found.busbw << " GB/s");
    CHECK(*found.busbw == doctest::Approx(busbw).epsilon(0.1));
    CHECK(found.health < 0.35);
    REQUIRE_FALSE(found.causes.empty());
    CHECK(mentions(found, "x as much"));
    CHECK(mentions(found, "every gather crosses the fabric") ==
          (strategy == fsdp::Strategy::full_shard));
  }
}

TEST_CASE("a run that is as fast as predicted has no cause") {
  plan::Job job = published(2, fsdp::Strategy::hybrid_shard);
  job.framework = train::simulated::Framework::atoll;
  const auto p = plan::simulate(job);
  const auto found = plan::explain(job, {.tokens_per_s = p.tokens_per_s, .exposed_s = p.exposed_s});
  CHECK(found.causes.empty());
  CHECK(found.caveat.empty());
  CHECK(found.slowdown == doctest::Approx(1).epsilon(0.01));
  CHECK(plan::to_text(found, job).find("No cause") != std::string::npos);
}

TEST_CASE("a run that waits for data computes as fast as predicted") {
  const plan::Job job = published(2, fsdp::Strategy::hybrid_shard);
  const auto p = plan::simulate(job);
  const auto found = plan::explain(job, {.tokens_per_s = job.tokens() / (2 * p.step_s),
                                         .exposed_s = p.exposed_s,
                                         .padding = 0.2,
                                         .data_wait_s = p.step_s});
  CHECK(found.slowdown == doctest::Approx(1).epsilon(0.01));
  REQUIRE(found.causes.size() == 2);
  CHECK(found.causes[0].what.find("for data") != std::string::npos);
  CHECK(found.causes[0].seconds == doctest::Approx(p.step_s));
  CHECK(found.causes[1].what.find("padding") != std::string::npos);
}

TEST_CASE("slow collectives on one host are a cause") {
  const plan::Job job = published(1, fsdp::Strategy::full_shard);
  const auto p = plan::simulate(job);
  const auto found = plan::explain(
      job, {.tokens_per_s = job.tokens() / (p.step_s + 1), .exposed_s = p.exposed_s + 1});
  CHECK(found.slowdown == doctest::Approx(1).epsilon(0.01));
  CHECK_FALSE(found.busbw);
  REQUIRE(found.causes.size() == 1);
  CHECK(found.causes[0].what.starts_with("collectives inside the host take longer"));
  CHECK(found.causes[0].seconds == doctest::Approx(1));
  CHECK(found.causes[0].check.find("nvlink") != std::string::npos);
  // A run with the predicted figures is not slow.
  const auto fine = plan::explain(job, {.tokens_per_s = p.tokens_per_s, .exposed_s = p.exposed_s});
  CHECK(plan::to_text(fine, job).find("as fast as predicted") != std::string::npos);
}

TEST_CASE("a host that enqueues for a whole step is a cause, and what no figure explains is told") {
  plan::Job job = published(1, fsdp::Strategy::full_shard);
  const auto p = plan::simulate(job);
  const double step = 1.05 * p.step_s + 1;
  auto found = plan::explain(job, {.tokens_per_s = job.tokens() / step,
                                   .exposed_s = step - p.compute_s,
                                   .enqueue_s = 0.95 * step});
  REQUIRE(found.causes.size() == 2);
  const bool launches = found.causes[0].what.find("to enqueue a step") != std::string::npos ||
                        found.causes[1].what.find("to enqueue a step") != std::string::npos;
  CHECK(launches);
  CHECK(plan::to_text(found, job).find("(CPU enqueues a step)") != std::string::npos);
  CHECK_THROWS_AS(plan::explain(job, {.tokens_per_s = 1000, .exposed_s = -1}), atoll::Error);
}

TEST_CASE("without exposed communication, a run on several hosts has a caveat") {
  const plan::Job job = published(2, fsdp::Strategy::full_shard);
  const auto blamed = plan::explain(job, {.tokens_per_s = 30000});
  CHECK(plan::to_text(blamed, job).find("Add --measured-one-host") != std::string::npos);
  CHECK(plan::explain(job, {.tokens_per_s = 30000, .one_host_tokens_per_s = one_host})
            .caveat.empty());
}

TEST_CASE("slow compute and a slow fabric are told apart") {
  const plan::Job job = published(2, fsdp::Strategy::hybrid_shard);
  plan::Job slow = job;
  // Not 70 GB/s, at which nearly all communication is still hidden behind compute.
  slow.cluster.fabric.most_gbyte_s = 30;
  const auto ill = plan::simulate(slow);
  const auto fabric =
      plan::explain(job, {.tokens_per_s = ill.tokens_per_s, .exposed_s = ill.exposed_s});
  REQUIRE(fabric.busbw.has_value());
  CHECK(*fabric.busbw == doctest::Approx(30).epsilon(0.05));
  CHECK_FALSE(mentions(fabric, "compute takes"));

  // Compute and fabric are slow at once.
  plan::Job both = slow;
  both.cluster.compute.peak_bf16 /= 1.5;
  both.cluster.compute.memory_gbyte_s /= 1.5;
  const auto worst = plan::simulate(both);
  const auto found =
      plan::explain(job, {.tokens_per_s = worst.tokens_per_s, .exposed_s = worst.exposed_s});
  REQUIRE(found.busbw.has_value());
  CHECK(*found.busbw == doctest::Approx(30).epsilon(0.1));
  CHECK(found.slowdown == doctest::Approx(1.5).epsilon(0.1));
  CHECK_THROWS_WITH_AS(plan::explain(job, {.tokens_per_s = 1e9, .exposed_s = 1}),
                       doctest::Contains("check that the exposed time is per step"), atoll::Error);

  const auto well = plan::simulate(job);
  const auto compute =
      plan::explain(job, {.tokens_per_s = job.tokens() / (2 * well.compute_s + well.exposed_s),
                          .exposed_s = well.exposed_s});
  CHECK(mentions(compute, "compute takes 2.0"));
  CHECK_FALSE(compute.busbw.has_value());

  // A run is faster than predicted. Another is slower than any fabric makes it, so compute is slow.
  CHECK(mentions(plan::explain(job, {.tokens_per_s = 2 * well.tokens_per_s}),
                 "as fast as predicted"));
  CHECK(mentions(plan::explain(job, {.tokens_per_s = 1, .exposed_s = 1e-3}), "compute takes"));
}
