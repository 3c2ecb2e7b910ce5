#include "plan/explain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "fail.hpp"
#include "plan/lanes.hpp"
#include "report/phase.hpp"

namespace plan {
namespace {

namespace fsdp = atoll::fsdp;

// Estimates. Relative differences below `noise` count as errors of the prediction. Unexpected
// exposed time below the share `little_exposed` of a step does not count as a sign of a slow
// fabric.
constexpr double noise = 0.1;
constexpr double little_exposed = 0.03;

// Times of a step in seconds.
struct StepTimes {
  double measured = 0;     // without the wait for data
  double explained = 0;    // what a simulated step takes on a healthy fabric
  double unexplained = 0;  // the part that only the fabric can explain
};

// Slows all compute down by a factor.
Job slowed(Job job, double factor) {
  auto& compute = job.cluster.compute;
  compute.peak_bf16 /= factor;
  compute.peak_f32 /= factor;
  compute.memory_gbyte_s /= factor;
  compute.kernel_s *= factor;
  compute.launch_s *= factor;
  for (auto& [key, seconds] : job.cluster.times) seconds *= factor;
  for (auto& [kernel, rate] : job.cluster.kernel_gbyte_s) rate /= factor;
  return job;
}

Job on_one_host(Job job) {
  job.cluster.hosts = 1;
  job.mesh = {1, job.cluster.ranks_per_host};
  if (job.strategy == fsdp::Strategy::hybrid_shard) job.strategy = fsdp::Strategy::full_shard;
  if (job.strategy == fsdp::Strategy::hybrid_shard_grad) job.strategy = fsdp::Strategy::shard_grad;
  return job;
}

// Returns the factor by which compute must slow down, so that a simulated step computes for
// `seconds`. The time beside collectives does not grow in proportion, so the factor is found in
// several rounds.
double slowdown_for(const Job& job, double seconds) {
  double factor = 1;
  for (int round = 0; round < 4; ++round)
    factor *= std::max(1e-3, seconds / simulate(slowed(job, factor)).compute_s);
  return factor;
}

// Returns the job on a fabric that gives a host `gbyte_s`. If it is known how long a step computes,
// compute is slowed down until the simulated step computes as long. A slow fabric slows compute
// down as well, because collectives run beside it for longer.
Job on_fabric(Job job, double gbyte_s, std::optional<double> compute_s) {
  job.cluster.fabric.most_gbyte_s = gbyte_s;
  return compute_s ? slowed(job, slowdown_for(job, *compute_s)) : job;
}

// Returns the GB/s of a host with which a step takes `seconds`.
std::optional<double> rate_for(const Job& job, double seconds, std::optional<double> compute_s) {
  constexpr int rounds = 20;
  return rate_below_which(job.cluster.fabric, rounds, [&](double rate) {
    return simulate(on_fabric(job, rate, compute_s)).step_s > seconds;
  });
}

// Adds causes that each explain the same seconds.
void add(std::vector<Cause> causes, double seconds, Explanation& result) {
  for (Cause& cause : causes) {
    cause.seconds = seconds;
    result.causes.push_back(std::move(cause));
  }
}

void fabric_causes(const Job& job, Explanation& result) {
  const atoll::FabricModel& fabric = job.cluster.fabric;
  const double of_nic = atoll::healthy_gbyte_s(fabric) / fabric.nics;
  std::vector<Cause> causes;
  causes.push_back(
      {fmt::format(
           "the hosts reach {:.3g} GB/s; a healthy fabric of this kind gives {:.3g} GB/s, {:.1f} x "
           "as much",
           *result.busbw, atoll::healthy_gbyte_s(fabric), 1 / result.health),
       "measure it without the model: mpirun ... atoll-busbw --axis world --expect 0.85"});
  const double tcp_limit = 10;
  if (fabric.fabric == atoll::Fabric::rdma && *result.busbw < tcp_limit) {
    causes.push_back({"the rate is that of sockets, so RDMA is probably not in use",
                      "NCCL_DEBUG=INFO must show NET/IB, and atoll-busbw transports=IB"});
  }
  if (fabric.nics > 1 && *result.busbw < 0.6 * atoll::healthy_gbyte_s(fabric)) {
    causes.push_back(
        {fmt::format("about {:.0f} of {} NICs of a host carry the traffic",
                     std::max(1.0, std::round(*result.busbw / of_nic)), fabric.nics),
         "atoll-topo --doctor names NICs that are down or filtered by NCCL_IB_HCA; in a virtual "
         "machine NCCL needs its topology file (NCCL_TOPO_FILE)"});
    causes.push_back(
        {"all NICs carry the traffic, but without GPUDirect RDMA",
         "atoll-busbw --require-gdr fails in this case; look for ACS on PCIe switches, a missing "
         "nvidia-peermem and relaxed ordering"});
  }
  const double seconds = result.measured_exposed_s - result.expected_exposed_s;
  add(std::move(causes), seconds, result);
}

// On one host, slow links between its ranks, or ranks that wait for each other, explain more
// exposed time than expected.
void intra_host_cause(const Job& job, const Measurement& measured, const StepTimes& times,
                      Explanation& result) {
  if (job.cluster.hosts > 1 || !measured.exposed_s || job.ranks() == 1 ||
      times.unexplained <= little_exposed * times.measured ||
      times.measured <= (1 + noise) * result.expected_step_s)
    return;
  add({{"collectives inside the host take longer than predicted, or ranks wait for a slower one",
        job.cluster.is_cpu()
            ? "look with top for other programs, and for more ranks x threads than cores; measure "
              "the collectives with atoll-busbw --save, and give them by --curve"
            : "nvidia-smi nvlink -s must show all links; with NCCL_DEBUG=INFO the log must show "
              "P2P; measure with mpirun ... atoll-busbw --axis world --expect 0.85; atoll-topo "
              "--doctor looks for faults"}},
      times.unexplained, result);
}

// A CPU that enqueues as long as a step takes keeps its GPU waiting.
void launch_cause(const Job& job, Explanation& result) {
  const bool limits = result.measured_launch_s > 0.9 * result.measured_step_s &&
                      result.measured_step_s > (1 + noise) * result.expected_step_s;
  if (job.cluster.is_cpu() || !limits) return;
  add({{fmt::format("the CPU needs {:.3g} s to enqueue a step, so launches may limit it",
                    result.measured_launch_s),
        "a larger micro batch; look with top for programs beside the ranks; mpirun --bind-to "
        "none"}},
      result.measured_step_s - result.expected_step_s, result);
}

void mesh_cause(const Job& job, Explanation& result) {
  const bool across = job.cluster.hosts > 1 && job.mesh.shard > job.cluster.ranks_per_host;
  if (!across) return;
  Job hybrid = job;
  hybrid.strategy = fsdp::Strategy::hybrid_shard;
  hybrid.mesh = {job.cluster.hosts, job.cluster.ranks_per_host};
  if (result.busbw) hybrid.cluster.fabric.most_gbyte_s = *result.busbw;
  const Prediction p = simulate(hybrid);
  const double step_s = result.measured_step_s - result.measured_data_s;
  const double gain = step_s / p.step_s;
  if (gain < 1 + noise) return;
  const double saved = step_s - p.step_s;
  const double seconds = std::min(saved, result.measured_exposed_s - result.expected_exposed_s);
  add({{fmt::format(
            "the shards of a parameter lie on {} hosts, so every gather crosses the fabric; "
            "{} on a mesh of {} x {} is predicted to be {:.2f} x as fast on this fabric{}",
            job.cluster.hosts, fsdp::name(hybrid.strategy), hybrid.mesh.replicate,
            hybrid.mesh.shard, gain, p.fits ? "" : ", but does not fit in the memory of a GPU"),
        "atoll-train --strategy hybrid_shard, or Mesh::plan()"}},
      seconds, result);
}

void compute_causes(const Job& job, const Measurement& measured, Explanation& result) {
  if (result.slowdown < 1 + noise) return;
  std::vector<Cause> causes;
  causes.push_back({fmt::format("compute takes {:.2f} x as long as predicted", result.slowdown),
                    job.cluster.is_cpu()
                        ? "look with top for other programs, and for more ranks x threads than "
                          "cores; measure the machine with as many processes as ranks: --measure "
                          "with --gpus-per-host"
                        : "compare the clocks with the maximum: nvidia-smi -q -d "
                          "CLOCK,PERFORMANCE; a throttled GPU slows all ranks of its group"});
  if (job.micro_batch * job.seq < 4096 && !job.cluster.is_cpu()) {
    causes.push_back({fmt::format("a micro batch has only {} tokens per rank, so kernels are short "
                                  "and launch time is visible",
                                  job.micro_batch * job.seq),
                      "a larger micro batch; with PyTorch, torch.compile"});
  }
  if (job.framework == train::simulated::Framework::atoll && !measured.is_atoll) {
    causes.push_back({"the framework may have more kernels than atoll",
                      "predict with --framework pytorch-eager"});
  }
  add(std::move(causes), result.measured_compute_s - result.expected_compute_s, result);
}

// Adds the causes that lie in the data: waiting for batches, and padding.
void data_causes(const Measurement& measured, Explanation& result) {
  if (result.measured_data_s > 0.02 * result.measured_step_s) {
    add({{fmt::format("a step waits {:.3g} s for data", result.measured_data_s),
          "convert the data once with atoll-data; see whether the disk or other programs are "
          "busy"}},
        result.measured_data_s, result);
  }
  if (measured.padding && *measured.padding > 0.1) {
    add({{fmt::format("{:.0f} % of the tokens are padding", 100 * *measured.padding),
          "atoll-train --pad-to pack"}},
        *measured.padding * result.measured_compute_s, result);
  }
}

// Reads how much of the expected exposed time belongs to gathers and to reductions.
void split_exposed(const Job& job, Explanation& result) {
  if (result.expected_exposed_s <= 0) return;
  Job few = job;
  // The shares hardly change with more micro batches, so at most 4 are simulated.
  few.micro_batches = std::min(few.micro_batches, 4);
  const LaneTimes lanes = lanes_of(simulate(few, {.trace = true}).trace);
  const double all = lanes.exposed_gather + lanes.exposed_reduce + lanes.exposed_replicate;
  if (all <= 0) return;
  result.expected_gather_s = result.expected_exposed_s * lanes.exposed_gather / all;
  result.expected_reduce_s = result.expected_exposed_s - result.expected_gather_s;
}

// How much longer compute took than expected; nothing if the measurement does not tell.
std::optional<double> slowdown_of(const Job& job, const Measurement& measured,
                                  const Prediction& expected, double step_s) {
  if (measured.exposed_s) return (step_s - *measured.exposed_s) / expected.compute_s;
  if (measured.one_host_tokens_per_s) {
    const Job one = on_one_host(job);
    return one.tokens() / *measured.one_host_tokens_per_s / simulate(one).step_s;
  }
  if (job.cluster.hosts == 1) return step_s / expected.step_s;
  return std::nullopt;
}

// Finds the fabric that explains the measured step, if that takes longer than the explained one.
// In `real`, compute is as slow as measured.
void explain_fabric(const Job& job, const Job& real, const Measurement& measured,
                    const StepTimes& times, Explanation& result) {
  if (job.cluster.hosts == 1 || times.unexplained <= little_exposed * times.measured ||
      times.measured <= (1 + noise) * times.explained)
    return;
  // With measured exposed communication, the search also finds the slowdown of compute.
  std::optional<double> compute_s;
  if (measured.exposed_s) compute_s = result.measured_compute_s;
  const auto rate = rate_for(compute_s ? job : real, times.measured, compute_s);
  if (!rate) {
    add({{"no bandwidth between hosts explains the step: even at a thousandth of the healthy rate "
          "the step would be faster",
          "look for a rank that is stopped or waits for data: atoll-topo --top HOST:PORT"}},
        times.unexplained, result);
    return;
  }
  result.health = *rate / atoll::healthy_gbyte_s(job.cluster.fabric);
  result.busbw = *rate;
  if (compute_s) result.slowdown = slowdown_for(on_fabric(job, *rate, std::nullopt), *compute_s);
  fabric_causes(job, result);
  mesh_cause(slowed(job, result.slowdown), result);
}

}  // namespace

std::optional<double> rate_below_which(const atoll::FabricModel& fabric, int rounds,
                                       const std::function<bool(double)>& holds) {
  const double healthy = atoll::healthy_gbyte_s(fabric);
  double low = std::log(1e-3 * healthy), high = std::log(healthy);
  if (!holds(std::exp(low))) return std::nullopt;
  for (int i = 0; i < rounds; ++i) {
    const double middle = (low + high) / 2;
    (holds(std::exp(middle)) ? low : high) = middle;
  }
  return std::exp(high);
}

Explanation explain(const Job& job, const Measurement& measured) {
  train::require(measured.tokens_per_s > 0, "the measured tokens/s must be above 0");
  train::require(measured.exposed_s.value_or(0) >= 0, "the exposed communication is {} s",
                 measured.exposed_s.value_or(0));
  const train::Phase phase("explaining the run");
  const Prediction expected = simulate(job);
  Explanation result;
  result.expected_step_s = expected.step_s;
  result.expected_compute_s = expected.compute_s;
  result.expected_exposed_s = expected.exposed_s;
  result.measured_step_s = job.tokens() / measured.tokens_per_s;
  split_exposed(job, result);
  const double exposed_s = measured.exposed_s.value_or(0);
  result.has_parts = measured.exposed_s.has_value();
  train::require(exposed_s < result.measured_step_s,
                 "the exposed communication of {} s is not less than the step of {} s: check that "
                 "the exposed time is per step and that tokens/s counts all ranks",
                 exposed_s, result.measured_step_s);
  // Compute that is already enqueued hides a wait for data, so at most the unexplained time counts.
  result.measured_data_s =
      std::min(measured.data_wait_s.value_or(0),
               std::max(0.0, result.measured_step_s - exposed_s - expected.compute_s));
  // The step without waiting for data, which a prediction does not have.
  const double step_s = result.measured_step_s - result.measured_data_s;
  const auto slowdown = slowdown_of(job, measured, expected, step_s);
  if (!slowdown) {
    result.caveat =
        "The run does not say how long compute waited for communication, so slow compute may be "
        "taken for a slow fabric. Add --measured-one-host, or explain a run of atoll-train";
  }
  result.slowdown = std::max(slowdown.value_or(1), 1e-3);
  const Job real = slowed(job, result.slowdown);
  const Prediction again = simulate(real);
  result.measured_exposed_s =
      measured.exposed_s.value_or(std::max(0.0, step_s - again.step_s + again.exposed_s));
  result.measured_compute_s = step_s - result.measured_exposed_s;
  const StepTimes times =
      measured.exposed_s
          ? StepTimes{step_s, expected.step_s, *measured.exposed_s - expected.exposed_s}
          : StepTimes{step_s, again.step_s, step_s - again.step_s};
  explain_fabric(job, real, measured, times, result);
  intra_host_cause(job, measured, times, result);
  result.measured_launch_s = measured.enqueue_s.value_or(0);
  launch_cause(job, result);
  compute_causes(job, measured, result);
  data_causes(measured, result);
  std::ranges::stable_sort(result.causes, std::ranges::greater(), &Cause::seconds);
  if (result.measured_step_s < (1 - noise) * expected.step_s) {
    result.causes.push_back(
        {fmt::format("the run is {:.2f} x as fast as predicted, so a rate of the prediction is too "
                     "low here",
                     expected.step_s / result.measured_step_s),
         "give the measured rates: --curve of atoll-busbw --save, --inter, --busbw"});
  }
  return result;
}

std::string to_text(const Explanation& e, const Job& job) {
  std::string text =
      fmt::format("{:<26}{:>12}{:>12}\n", "seconds of a step", "expected", "measured");
  const auto row = [&](const char* what, double expected, double measured) {
    text += fmt::format("{:<26}{:>12.4f}{:>12.4f}\n", what, expected, measured);
  };
  row("compute", e.expected_compute_s, e.measured_compute_s);
  row("exposed communication", e.expected_exposed_s, e.measured_exposed_s);
  const auto part = [&](const char* what, double expected) {
    if (expected > 0) text += fmt::format("{:<26}{:>12.4f}{:>12}\n", what, expected, "");
  };
  part("  of gathers", e.expected_gather_s);
  part("  of reductions", e.expected_reduce_s);
  if (e.measured_data_s > 1e-3 * e.measured_step_s) row("waiting for data", 0, e.measured_data_s);
  if (e.measured_launch_s > 0 && !job.cluster.is_cpu())
    text +=
        fmt::format("{:<26}{:>12}{:>12.4f}\n", "(CPU enqueues a step)", "", e.measured_launch_s);
  row("step", e.expected_step_s, e.measured_step_s);
  text += fmt::format("tokens/s, padding included: {:.0f} expected, {:.0f} measured\n",
                      job.tokens() / e.expected_step_s, job.tokens() / e.measured_step_s);
  if (!e.has_parts)
    text += "Only tokens/s were measured: the measured parts follow from the model.\n";
  if (e.busbw && !e.caveat.empty()) text += e.caveat + ".\n";
  if (e.causes.empty() && e.measured_step_s < (1 + noise) * e.expected_step_s)
    return text + "No cause: the run is as fast as predicted.\n";
  if (e.causes.empty()) {
    return text +
           fmt::format(
               "A step takes {:.2f} x as long as predicted, and these figures show no cause: "
               "compare the streams with --trace, and the ranks with atoll-topo --top\n",
               e.measured_step_s / e.expected_step_s);
  }
  text += "Possible causes, with the seconds of a step that each would explain:\n";
  for (std::size_t i = 0; i < e.causes.size(); ++i) {
    const Cause& cause = e.causes[i];
    const std::string seconds = cause.seconds > 0 ? fmt::format(" ({:.3g} s)", cause.seconds) : "";
    text += fmt::format("  {}. {}{}\n     check: {}\n", i + 1, cause.what, seconds, cause.check);
  }
  return text;
}

}  // namespace plan
