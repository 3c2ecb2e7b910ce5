// Measures how much communication a training step hides, and how much each feature of the schedule
// gains. Compute, gathers and reductions take planted times, on two or four ranks. Each printed
// time is a median over steps, on the slowest rank.
//   overlap [--json FILE]
// Exits with 1 if a step takes more than 1.05 x its bound, or if a feature gains too little.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "overlap_run.hpp"

namespace {

using atoll_test::OverlapFigures;
using atoll_test::OverlapRun;
using atoll_test::run_overlap;
using nlohmann::json;
using namespace std::chrono_literals;

constexpr double most_over_bound = 1.05;
constexpr double least_of_worth = 0.7;

struct Feature {
  const char* name;
  // Communication time that the feature hides or saves in a step, computed from the planted times.
  double worth_ms;
  OverlapRun on, off;
  // True if compute can hide all communication, so that a step can reach its bound.
  bool covers = true;
  // Number of alternating runs with and without the feature; their medians are compared. More than
  // one run is needed if real work is part of the measured time.
  int rounds = 1;
};

// Returns the least time of a step: its compute, the first gather and the last reduction.
double bound_ms(const OverlapRun& run) {
  const int passes = run.recompute == OverlapRun::Recompute::none ? 2 : 3;
  const auto compute = static_cast<double>(run.micro * passes * run.units * run.compute.count());
  return compute + static_cast<double>(run.gather_ms + run.reduce_ms + run.replicate_ms);
}

std::vector<Feature> features() {
  using Update = OverlapRun::Update;
  const OverlapRun usual{.steps = 7, .compute = 30ms, .gather_ms = 20, .reduce_ms = 20};
  std::vector<Feature> all;
  const auto add = [&](const char* name, double worth_ms, const auto& turn_off, OverlapRun on,
                       bool covers = true) {
    OverlapRun off = on;
    turn_off(off);
    all.push_back({name, worth_ms, on, off, covers});
  };
  // Gathers and reductions take 20 ms each. Prefetch hides 10 of 11 gathers, all except the first.
  // A second gradient buffer hides 5 of 6 reductions, all except the last.
  add(
      "gathers ahead of compute", 200, [](OverlapRun& run) { run.prefetch = 0; }, usual);
  add(
      "reductions beside backward", 100, [](OverlapRun& run) { run.reduce_buffers = 1; }, usual);
  // Without a reduction per unit, one bucket holds all units, so the only reduction, of 120 ms,
  // starts when backward ends. With it, only the last reduction, of 20 ms, ends after backward.
  OverlapRun no_gathers = usual;
  no_gathers.gather_ms = 0;
  add(
      "a reduction per unit", 100,
      [](OverlapRun& run) {
        run.units = 1;
        run.compute *= 6;
        run.reduce_ms *= 6;
        run.elements *= 6;
      },
      no_gathers);
  // A schedule in which gathers take longer than compute, so none is hidden completely.
  OverlapRun slow = usual;
  slow.gather_ms = 40;
  slow.reduce_ms = 0;
  OverlapRun gathers = usual;
  gathers.micro = 3;
  // If units are not kept between micro batches, the second and the third micro batch begin with a
  // gather of their first unit (20 ms), which cannot be hidden.
  add(
      "kept between micro batches", 40, [](OverlapRun& run) { run.forgets = true; }, gathers);
  OverlapRun inner = slow;
  inner.gather_ms = 80;
  inner.secondary_shards = 1;
  // If backward has to gather from all ranks again, it gathers four units, and each gather takes 50
  // ms longer than the compute of a unit.
  add(
      "forward's gathers kept whole", 200, [](OverlapRun& run) { run.secondary_shards = 0; }, inner,
      false);
  OverlapRun recompute = usual;
  recompute.recompute = OverlapRun::Recompute::from_backward;
  add(
      "recomputation gathers nothing", 120,
      [](OverlapRun& run) { run.recompute = OverlapRun::Recompute::gathers_again; }, recompute);
  // Reductions take twice as long as backward. With accumulation `shard`, the reductions of the
  // first two micro batches delay the step; with `local`, only the last micro batch reduces.
  OverlapRun batches = no_gathers;
  batches.reduce_ms = 60;
  batches.micro = 3;
  batches.accumulation = atoll::fsdp::Accumulation::local;
  add(
      "accumulation local", 200,
      [](OverlapRun& run) { run.accumulation = atoll::fsdp::Accumulation::shard; }, batches, false);
  // Six reductions across replicas take longer than one micro batch. If every micro batch reduces
  // across replicas, 18 reductions keep the replicate lane busy for 1800 ms from the first backward
  // on. With one reduction per unit and step, six reductions keep that lane busy for 600 ms from
  // the last backward on.
  OverlapRun outer = batches;
  outer.reduce_ms = 0;
  outer.accumulation = atoll::fsdp::Accumulation::automatic;
  outer.replicate_ms = 100;
  outer.strategy = atoll::fsdp::Strategy::hybrid_shard;
  outer.replicas = 2;
  add(
      "one replicate reduction a step", 480, [](OverlapRun& run) { run.whole_steps = true; }, outer,
      false);
  // Many units, so that the first unit is updated early and its gather is small. The gather copies
  // data while other units are updated.
  OverlapRun large{
      .units = 16, .steps = 4, .compute = 30ms, .gather_ms = 20, .elements = 6'000'000};
  large.update = Update::unit_by_unit;
  // If all updates come before the gathers, the first gather of a step waits for the last update
  // instead of the first.
  add(
      "gathers beside updates", 20, [](OverlapRun& run) { run.update = Update::after_all; }, large,
      false);
  // The next feature updates units in backward. The time of an update depends on the machine.
  large.in_backward = true;
  add(
      "updates beside backward", 20, [](OverlapRun& run) { run.in_backward = false; }, large,
      false);
  all[all.size() - 2].rounds = all.back().rounds = 5;
  return all;
}

struct OnAndOff {
  OverlapFigures on, off;
};
OnAndOff run_both(const Feature& feature) {
  std::vector<OverlapFigures> on, off;
  for (int round = 0; round < feature.rounds; ++round) {
    on.push_back(run_overlap(feature.on));
    off.push_back(run_overlap(feature.off));
  }
  const auto median = [](std::vector<OverlapFigures>& all) {
    std::ranges::sort(all, {}, &OverlapFigures::step_ms);
    return all[all.size() / 2];
  };
  return {median(on), median(off)};
}

bool measure_features(json& rows) {
  bool fine = true;
  fmt::print("{:<32} {:>8} {:>8} {:>8} {:>8} {:>9} {:>11}\n", "feature", "on_ms", "off_ms",
             "gain_ms", "worth_ms", "bound_ms", "on / bound");
  for (const Feature& feature : features()) {
    const auto [on, off] = run_both(feature);
    const double bound = bound_ms(feature.on), gain = off.step_ms - on.step_ms;
    const bool bounded = !feature.covers || on.step_ms <= most_over_bound * bound;
    const bool gained = gain >= least_of_worth * feature.worth_ms;
    fine = fine && gained && bounded;
    fmt::print("{:<32} {:>8.1f} {:>8.1f} {:>8.1f} {:>8.0f} {:>9} {:>11} {}\n", feature.name,
               on.step_ms, off.step_ms, gain, feature.worth_ms,
               feature.covers ? fmt::format("{:.0f}", bound) : "-",
               feature.covers ? fmt::format("{:.3f}", on.step_ms / bound) : "-",
               gained && bounded ? "" : "NOT met");
    rows.push_back({{"feature", feature.name},
                    {"on_ms", on.step_ms},
                    {"off_ms", off.step_ms},
                    {"gain_ms", gain},
                    {"worth_ms", feature.worth_ms},
                    {"exposed_ms", on.exposed_ms}});
    if (feature.covers) rows.back()["bound_ms"] = bound;
  }
  return fine;
}

// Compares the time of a step with its bound for strategies that use other collectives than
// full_shard does.
bool measure_other_strategies(json& rows) {
  using atoll::fsdp::Strategy;
  const OverlapRun usual{.steps = 7, .compute = 30ms};
  OverlapRun hybrid = usual, none = usual;
  hybrid.strategy = Strategy::hybrid_shard;
  hybrid.replicas = 2;
  hybrid.gather_ms = hybrid.reduce_ms = hybrid.replicate_ms = 20;
  none.strategy = Strategy::no_shard;
  none.replicate_ms = 20;
  bool fine = true;
  fmt::print("\n{:<32} {:>8} {:>9} {:>11}\n", "strategy", "step_ms", "bound_ms", "on / bound");
  for (const OverlapRun& run : {hybrid, none}) {
    const OverlapFigures figures = run_overlap(run);
    const double bound = bound_ms(run);
    const bool met = figures.step_ms <= most_over_bound * bound;
    fine = fine && met;
    fmt::print("{:<32} {:>8.1f} {:>9.0f} {:>11.3f} {}\n", atoll::fsdp::name(run.strategy),
               figures.step_ms, bound, figures.step_ms / bound, met ? "" : "NOT met");
    rows.push_back({{"feature", fmt::format("strategy {}", atoll::fsdp::name(run.strategy))},
                    {"on_ms", figures.step_ms},
                    {"bound_ms", bound},
                    {"exposed_ms", figures.exposed_ms}});
  }
  return fine;
}

}  // namespace

int main(int argc, char** argv) {
  const char* file = argc == 3 && std::strcmp(argv[1], "--json") == 0 ? argv[2] : nullptr;
  const bool asks = argc == 2 && std::strcmp(argv[1], "--help") == 0;
  if (argc != 1 && !file) {
    fmt::print(asks ? stdout : stderr,
               "usage: overlap [--json FILE]\nMeasures how much communication a step hides and how "
               "much each feature of the schedule gains. Takes four minutes.\n");
    return asks ? 0 : 2;
  }
  auto rows = json::array();
  const bool features_fine = measure_features(rows);
  const bool others_fine = measure_other_strategies(rows);
  fmt::print(
      "\nbound: compute, the first gather and the last reduction; a step should take at most "
      "{:.2f} x that where compute covers communication\n",
      most_over_bound);
  const bool fine = features_fine && others_fine;
  if (file) std::ofstream(file) << json{{"rows", rows}, {"met", fine}}.dump(1) << '\n';
  return fine ? 0 : 1;
}
