#include "plan/output.hpp"

#include <fmt/format.h>

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
  if (f.prefetch == "auto") remark += fmt::format("  {} ahead", job.prefetch);
  if (!p.fits) {
    remark += "  does not fit";
  } else if (is_tied(candidate, first)) {
    remark += "  tied with the first";
  }
  fmt::print(
      "{:<17} {:>7} {:>5} {:>14}  {:<9} {:>11.0f} {:>6.1f}% {:>8.1f}% {:>6.1f} GB {:>6.3f} s{}\n",
      fsdp::name(job.strategy), fmt::format("{}x{}", job.mesh.replicate, job.mesh.shard),
      job.micro_batch, job.micro_batches, name(job.recompute), p.tokens_per_s, 100 * p.mfu,
      100 * p.exposed_s / p.step_s, all_bytes(candidate) / 1e9, p.step_s, remark);
}

// The parts of the memory of a rank, the largest first.
void print_memory(const Candidate& candidate) {
  auto parts = memory_parts(candidate.job, candidate.prediction);
  std::ranges::stable_sort(parts, std::ranges::greater(), &MemoryPart::bytes);
  std::string text;
  for (const MemoryPart& part : parts) {
    if (part.bytes == 0) continue;
    text += fmt::format("{}{} {:.1f} GB", text.empty() ? "" : ", ", part.name,
                        static_cast<double>(part.bytes) / 1e9);
  }
  const bool is_atoll = candidate.job.framework == train::simulated::Framework::atoll;
  fmt::print("Memory of the first line{}: {}\n",
             is_atoll ? ", all of it allocated before the first step" : "", text);
}

void write(const char* flag, const std::string& path, const std::string& text) {
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

}  // namespace

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

void print(const std::vector<Candidate>& found, const Scaling& scaling, const Flags& f) {
  fmt::print("{:<18}{:>8}{:>6}{:>15}  {:<10}{:>12}{:>8}{:>10}{:>10}{:>9}\n", "strategy", "mesh",
             "rows", "micro batches", "recompute", "tokens/s", "MFU", "exposed", "memory", "step");
  const Candidate& best = found.front();
  for (std::size_t i = 0; i < std::min(found.size(), f.top); ++i) print_line(found[i], best, f);
  if (!best.prediction.fits) {
    for (const std::string& text : savings(best.job, best.prediction)) fmt::print("{}\n", text);
  } else if (const std::string why = reason(found); !why.empty()) {
    fmt::print("{}\n", why);
  }
  if (const std::string text = tight(found); !text.empty()) fmt::print("{}\n", text);
  print_memory(best);
  if (f.growth) fmt::print("{}", growth(scaling));
  if (const std::string cost = cost_text(best, f); !cost.empty()) fmt::print("{}\n", cost);
}

void write_json(const std::vector<Candidate>& found, const Flags& f) {
  nlohmann::json all = nlohmann::json::array();
  for (const Candidate& candidate : found) {
    nlohmann::json entry = entry_of(candidate, found.front());
    if (f.tokens > 0) entry["gpu_hours"] = gpu_hours(candidate, f.tokens);
    if (f.price > 0) entry["cost"] = gpu_hours(candidate, f.tokens) * f.price;
    all.push_back(std::move(entry));
  }
  write("--json", f.json, all.dump(1) + '\n');
}

void write_page(const std::vector<Candidate>& found, const Scaling& scaling, const Flags& f) {
  std::vector<std::string> remarks;
  const auto& [job, prediction] = found.front();
  if (!prediction.fits) remarks = savings(job, prediction);
  if (const std::string why = reason(found); !why.empty()) remarks.push_back(why);
  if (std::string cost = cost_text(found.front(), f); !cost.empty())
    remarks.push_back(std::move(cost));
  write("--html", f.html, page(found, scaling, remarks));
}

}  // namespace plan
