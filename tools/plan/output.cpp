#include "plan/output.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <set>
#include <utility>

#include "fail.hpp"
#include "plan/measure.hpp"

namespace plan {
namespace {

namespace fsdp = atoll::fsdp;

// Ranks and hosts of each kind of group that the candidates' collectives have.
std::set<std::pair<int, int>> groups_of(const std::vector<Candidate>& found) {
  std::set<std::pair<int, int>> groups;
  for (const Candidate& candidate : found) {
    // Strategies that are not hybrid use one group of all ranks.
    groups.emplace(candidate.job.ranks(), candidate.job.cluster.hosts);
    const auto [replicate, shard] = candidate.job.mesh;
    const int on_host = candidate.job.cluster.ranks_per_host;
    const auto hosts_of = [&](int ranks) { return (ranks + on_host - 1) / on_host; };
    groups.emplace(shard, hosts_of(shard));
    groups.emplace(replicate, shard < on_host ? hosts_of(replicate * shard) : replicate);
  }
  return groups;
}

void print_line(const Candidate& candidate, const Candidate& first, const Flags& f) {
  const auto& [job, p] = candidate;
  std::string remark;
  if (f.dtype == "auto") remark += fmt::format("  {}", atoll::name(job.dtype));
  if (job.fp8) remark += "  fp8, not measured";
  if (f.prefetch == "auto") remark += fmt::format("  {} ahead", job.prefetch);
  if (!p.fits) {
    remark += "  does not fit";
  } else if (is_tied(candidate, first)) {
    remark += "  tied with the first";
  }
  fmt::print(
      "{:<17} {:>7} {:>5} {:>14}  {:<9} {:>11.0f} {:>6.1f}% {:>8.1f}% {:>6.{}f} GB {:>6.3f} s{}\n",
      fsdp::name(job.strategy), fmt::format("{}x{}", job.mesh.replicate, job.mesh.shard),
      job.micro_batch, job.micro_batches, name(job.recompute), p.tokens_per_s, 100 * p.mfu,
      100 * p.exposed_s / p.step_s, all_bytes(candidate) / 1e9, all_bytes(candidate) < 5e8 ? 3 : 1,
      p.step_s, remark);
}

// The parts of the memory of a rank, the largest first.
void print_memory(const Candidate& candidate) {
  auto parts = memory_parts(candidate.job, candidate.prediction);
  std::ranges::stable_sort(parts, std::ranges::greater(), &MemoryPart::bytes);
  std::string text;
  for (const MemoryPart& part : parts) {
    if (part.bytes < 50'000) continue;  // 0.0 MB
    const auto bytes = static_cast<double>(part.bytes);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", part.name,
                        bytes < 5e7 ? fmt::format("{:.1f} MB", bytes / 1e6)
                                    : fmt::format("{:.1f} GB", bytes / 1e9));
  }
  const bool is_atoll = candidate.job.framework == train::simulated::Framework::atoll;
  fmt::print("Memory of the first line{}: {}\n",
             is_atoll ? ", all of it allocated before the first step" : "", text);
}

void write(const char* flag, const std::string& path, const std::string& text) {
  if (path == "-") {
    fmt::print("{}", text);
    return;
  }
  std::ofstream file(path);
  if (!(file << text << std::flush))
    train::fail(atoll::ErrorCode::io, "{}: {} cannot be written", flag, path);
}

double gpu_hours(const Candidate& candidate, double tokens) {
  return tokens / candidate.prediction.tokens_per_s / 3600 * candidate.job.ranks();
}

// Hours and cost of --tokens; "" without it, or if the job does not fit.
std::string cost_text(const Candidate& candidate, const Flags& f) {
  if (f.tokens == 0 || !candidate.prediction.fits) return "";
  const double of_gpus = gpu_hours(candidate, f.tokens);
  std::string text = fmt::format("{:.3g} tokens take {:.1f} hours, {:.0f} GPU hours", f.tokens,
                                 of_gpus / candidate.job.ranks(), of_gpus);
  if (f.price > 0) text += fmt::format(", {:.0f} at {} each", of_gpus * f.price, f.price);
  return text;
}

// One line for the candidates after the `shown` ones that do not fit; "" if others that fit are not
// shown either.
std::string rest_line(const std::vector<Candidate>& found, std::size_t shown) {
  const auto fits = [](const Candidate& candidate) { return candidate.prediction.fits; };
  const auto first =
      static_cast<std::size_t>(std::ranges::find_if_not(found, fits) - found.begin());
  const std::size_t at = std::max(first, shown);
  if (at >= found.size() || shown < first) return {};
  return fmt::format(
      "{} other candidates do not fit in the {:.1f} GB of a rank: they need {:.1f} GB or "
      "more\n",
      found.size() - at, static_cast<double>(found[at].job.cluster.compute.memory_bytes) / 1e9,
      all_bytes(found[at]) / 1e9);
}

// Names the types of parameters, activations, gradients and moments, for the assumptions.
std::string types_of(const Job& job, const Flags& f) {
  std::string text =
      fmt::format("{} for parameters and activations, {} for gradients on the wire, {} for moments",
                  f.dtype == "auto" ? "bf16 or f32" : f.dtype,
                  f.dtype == "auto" && f.reduce_dtype == "auto" && f.framework != "atoll"
                      ? "the same"
                      : atoll::name(job.reduce_dtype),
                  f.moments);
  if (job.fp8)
    text += fmt::format(
        "; products of the layers in fp8 at {:g} TFLOP/s by {}, which no run has measured",
        job.cluster.compute.peak_fp8 / 1e12,
        f.cluster.peak_tflops > 0 ? "assumption (twice --peak)" : "the data sheet");
  return text;
}

std::string rows_text(const Job& job, const Flags& f) {
  if (f.global_batch > 0) return fmt::format("{} on all ranks", f.global_batch);
  const std::string rows = f.micro_batch > 0 ? std::to_string(f.micro_batch) : "1, 2, 4 or 8";
  return fmt::format(
      "{} rows x {} micro batches on each of {} ranks; grows with the ranks, "
      "--global-batch N fixes it",
      rows, f.micro_batches, job.ranks());
}

// Says which strategies ignore --mesh; "" if none that may be tried does.
std::string mesh_remark(const Job& job, const Flags& f) {
  if (f.mesh.empty()) return {};
  const atoll::MeshShape given = atoll::parse_mesh(f.mesh);
  const bool all = f.strategy == "auto";
  if (all ? given.replicate == 1 : job.mesh == given) return {};
  return fmt::format(
      "--mesh {} has no effect on shards with {}: only hybrid_shard and hybrid_shard_grad follow "
      "the mesh",
      f.mesh, all ? "full_shard and others, which were not tried" : f.strategy);
}

// The command line of atoll-train for a candidate, behind the text `purpose`; "" if there is none.
std::string command(const char* purpose, const Candidate& candidate, const Flags& f) {
  const auto& [job, prediction] = candidate;
  const bool is_changed = f.layers + f.hidden + f.heads + f.kv_heads + f.ffn > 0;
  if (!prediction.fits || is_changed || job.framework != train::simulated::Framework::atoll)
    return {};
  // A preset takes the vocabulary of the tokenizer, which text files do not name.
  std::string text = fmt::format(
      "{}: mpirun -n {} --bind-to none {}atoll-train --model {} --strategy {} --mesh {}x{} --seq "
      "{} "
      "--micro-batch {} --global-batch {} --recompute {} --data FILE{}",
      purpose, job.ranks(), job.cluster.is_cpu() ? "--oversubscribe " : "", f.model,
      fsdp::name(job.strategy), job.mesh.replicate, job.mesh.shard, job.seq, job.micro_batch,
      job.ranks() * job.micro_batch * job.micro_batches, name(job.recompute),
      train::is_preset(f.model) ? " --tokenizer TOKENIZER" : "");
  if (job.model.adapters.rank > 0) text += fmt::format(" --lora-rank {}", job.model.adapters.rank);
  // The default of atoll-train is f32 on CPUs and bf16 on GPUs.
  if ((job.dtype == atoll::DType::f32) != job.cluster.is_cpu())
    text += fmt::format(" --dtype {}", atoll::name(job.dtype));
  if (job.reduce_dtype == atoll::DType::bf16) text += " --reduce-dtype bf16";
  if (job.prefetch != 1) text += fmt::format(" --prefetch {}", job.prefetch);
  if (job.moments == atoll::DType::bf16) text += " --moments bf16";
  if (job.fp8) text += " --fp8";
  return text;
}

}  // namespace

std::vector<std::string> remarks(const std::vector<Candidate>& found, const Flags& f) {
  std::vector<std::string> all = remarks_on(found);
  const Candidate* const spare = with_spare_memory(found);
  for (std::string text :
       {mesh_remark(found.front().job, f),
        command("To train with the first line", found.front(), f),
        spare == nullptr || spare == &found.front()
            ? ""
            : command("To train with a tenth of the memory to spare", *spare, f)}) {
    if (!text.empty()) all.push_back(std::move(text));
  }
  return all;
}

nlohmann::ordered_json assumptions(const Job& job, const Flags& f) {
  const atoll::ComputeModel& compute = job.cluster.compute;
  const atoll::FabricModel& fabric = job.cluster.fabric;
  const auto parameters = static_cast<double>(train::parameter_count(job.model));
  const std::int64_t rank = job.model.adapters.rank;
  const bool is_f32 = job.dtype == atoll::DType::f32;
  nlohmann::ordered_json all;
  all["model"] = fmt::format(
      "{}, {:.4g} B parameters{}", job.model.name, parameters / 1e9,
      rank > 0 ? fmt::format(", of which adapters (LoRA) of rank {} are trained", rank) : "");
  const bool shares = job.cluster.is_cpu() && job.cluster.ranks_per_host > 1;
  all["gpu"] =
      fmt::format("{}, {:g} TFLOP/s in {}, {:.1f} GB{}, {:.0f} GB/s of memory reached ({})",
                  compute.name, (is_f32 ? compute.peak_f32 : compute.peak_bf16) / 1e12,
                  is_f32 ? "f32" : "bf16", static_cast<double>(compute.memory_bytes) / 1e9,
                  shares ? fmt::format(" of a rank (the {} ranks of a host share its memory)",
                                       job.cluster.ranks_per_host)
                         : "",
                  compute.memory_gbyte_s, compute.source);
  all["hosts"] = job.cluster.hosts;
  all["gpus_per_host"] = job.cluster.ranks_per_host;
  all["intra_host_links"] =
      fmt::format("{:g} GB/s ({})", fabric.intra_gbyte_s, job.cluster.inside_source);
  all["inter_host_links"] =
      job.cluster.hosts == 1
          ? "not used: one host"
          : fmt::format("{:g} GB/s of a host by {} NICs{} ({})", fabric.inter_gbyte_s, fabric.nics,
                        fabric.most_gbyte_s > 0
                            ? fmt::format(", at most {:g} GB/s by --busbw", fabric.most_gbyte_s)
                            : "",
                        job.cluster.between_source);
  if (!f.curves.empty()) all["measured_collectives"] = fmt::format("{}", fmt::join(f.curves, ", "));
  all["sequence_length"] = job.seq;
  all["rows_per_step"] = rows_text(job, f);
  all["dtype"] = types_of(job, f);
  all["recomputation"] = f.recompute == "auto" ? "none, selective and full are tried" : f.recompute;
  all["framework"] = f.framework;
  all["tokens_per_s"] =
      "tokens of all ranks, padding included, over the time of a step; without evaluation, "
      "checkpoints and waiting for data";
  return all;
}

std::string to_text(const nlohmann::ordered_json& assumptions) {
  std::string text = "Assumptions\n";
  for (const auto& [key, value] : assumptions.items())
    text += fmt::format("  {:<20} {}\n", key,
                        value.is_string() ? value.get<std::string>() : value.dump());
  return text + '\n';
}

void warn_of_curves(const std::vector<std::string>& curves, const std::vector<Candidate>& found) {
  const auto groups = groups_of(found);
  for (const std::string& curve : curves) {
    atoll::FabricModel only;
    add_curve(only, curve);
    const auto is_used = [&](const atoll::MeasuredTime& time) {
      return groups.contains({time.ranks, time.hosts});
    };
    if (std::ranges::any_of(only.measured, is_used)) continue;
    fmt::print(
        stderr,
        "atoll-plan: warning: --curve {}: no collective uses it, since no group of the meshes "
        "has {} ranks on {} host(s)\n",
        curve, only.measured.front().ranks, only.measured.front().hosts);
  }
}

void warn_of_guesses(const std::vector<Candidate>& found, const Flags& f) {
  std::set<std::string> guessed;
  for (std::size_t i = 0; i < std::min(found.size(), f.top); ++i) {
    const auto& of_one = found[i].prediction.not_measured;
    guessed.insert(of_one.begin(), of_one.end());
  }
  if (guessed.empty()) return;
  fmt::print(
      stderr,
      "atoll-plan: warning: --machine: {} operations were not measured, for example {}; their "
      "times are those of the general model. Measure with the --model, --seq, "
      "--micro-batch and --dtype of the job\n",
      guessed.size(), *guessed.begin());
}

void print(const Findings& findings, const Flags& f) {
  const std::vector<Candidate>& found = findings.candidates;
  fmt::print("{:<18}{:>8}{:>6}{:>15}  {:<10}{:>12}{:>8}{:>10}{:>10}{:>9}\n", "strategy", "mesh",
             "rows", "micro batches", "recompute", "tokens/s", "MFU", "exposed", "memory", "step");
  const Candidate& best = found.front();
  std::size_t shown = 0;
  // If nothing fits, the line with the least memory is shown.
  while (shown < std::min(found.size(), f.top) && (shown == 0 || found[shown].prediction.fits))
    print_line(found[shown++], best, f);
  fmt::print("{}", rest_line(found, shown));
  print_memory(best);
  for (const std::string& text : findings.remarks) fmt::print("{}\n", text);
  if (f.growth) fmt::print("{}", growth(findings.scaling, f.global_batch));
  if (const std::string cost = cost_text(best, f); !cost.empty()) fmt::print("{}\n", cost);
}

void write_json(const Findings& findings, const Flags& f) {
  const std::vector<Candidate>& found = findings.candidates;
  nlohmann::json all = nlohmann::json::array();
  for (const Candidate& candidate : found) {
    nlohmann::json entry = entry_of(candidate, found.front());
    if (f.tokens > 0) entry["gpu_hours"] = gpu_hours(candidate, f.tokens);
    if (f.price > 0) entry["cost"] = gpu_hours(candidate, f.tokens) * f.price;
    all.push_back(std::move(entry));
  }
  const nlohmann::ordered_json document = {{"schema", "atoll-plan-1"},
                                           {"assumptions", findings.assumptions},
                                           {"remarks", findings.remarks},
                                           {"candidates", std::move(all)}};
  write("--json", f.json, document.dump(1) + '\n');
}

void write_page(Findings findings, const Flags& f) {
  if (std::string cost = cost_text(findings.candidates.front(), f); !cost.empty())
    findings.remarks.push_back(std::move(cost));
  write("--html", f.html, page(findings));
}

}  // namespace plan
