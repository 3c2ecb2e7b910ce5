#include "plan/output.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "atoll/trace.hpp"
#include "html/document.hpp"
#include "page/timeline.hpp"

namespace plan {
namespace {

namespace fsdp = atoll::fsdp;
using nlohmann::json;

constexpr std::size_t most_rows = 30;
constexpr int most_micro_batches = 4;  // more micro batches would be too narrow to see

json candidates(const std::vector<Candidate>& found) {
  json rows = json::array();
  for (std::size_t i = 0; i < std::min(found.size(), most_rows); ++i)
    rows.push_back(entry_of(found[i], found.front()));
  return rows;
}

json memory_of(const Job& job, const Prediction& prediction) {
  json memory = json::object();
  for (const MemoryPart& part : memory_parts(job, prediction)) memory[part.key] = part.bytes;
  return memory;
}

// Adds the timeline of one step on rank 0, and the memory that the job needs for the step.
void add_timeline(Job job, json& data) {
  job.micro_batches = std::min(job.micro_batches, most_micro_batches);
  const Prediction prediction = simulate(job, {.trace = true});
  std::vector<atoll::TraceRecord> records = prediction.trace;
  atoll::TraceRecord step;
  step.row = "step";
  step.label = "The predicted step";
  for (const auto& record : records) step.end_ns = std::max(step.end_ns, record.end_ns);
  records.push_back(step);
  const std::vector<std::string> events = {
      atoll::chrome_events({.rank = 0, .host = "host0"}, records)};
  data["timeline"] = train::page::timeline_of(json::parse(atoll::chrome_trace(events)));
  data["timeline_memory"] = memory_of(job, prediction);
  data["shown_micro_batches"] = job.micro_batches;
}

// The best settings on each number of hosts where the job fits.
json growth_of(const Scaling& scaling) {
  json all = json::array();
  for (std::size_t i = 0; i < scaling.hosts.size(); ++i) {
    const Prediction& p = scaling.best[i].prediction;
    if (!p.fits) continue;
    all.push_back({{"hosts", scaling.hosts[i]}, {"tokens_per_s", p.tokens_per_s}, {"mfu", p.mfu}});
  }
  return all;
}

std::string sources(const nlohmann::ordered_json& assumptions) {
  std::string text;
  for (const auto& [key, value] : assumptions.items())
    text +=
        fmt::format("{}: {}. ", key, value.is_string() ? value.get<std::string>() : value.dump());
  return text;
}

}  // namespace

std::vector<MemoryPart> memory_parts(const Job& job, const Prediction& p) {
  const fsdp::MemoryPlan& m = p.memory;
  const std::uint64_t reserved = job.cluster.compute.reserved_bytes;
  // Memory that the engine's plan does not contain: token ids, and the logits of PyTorch.
  const std::uint64_t rest = p.bytes - std::min(p.bytes, m.total() + reserved);
  const std::uint64_t process = job.cluster.process_bytes;
  return {{"parameters", "parameters (master shards)", m.parameters},
          {"resident", "parameters (whole, resident)", m.resident},
          {"optimizer", "optimizer", m.optimizer},
          {"gradients", "gradients (shards)", m.gradients},
          {"gathered", "parameters (gathered while used)", m.gathered},
          {"secondary_shards", "parameters (secondary shards)", m.secondary_shards},
          {"whole_gradients", "whole gradients", m.whole_gradients},
          {"staging", "staging", m.staging},
          {"activations", "activations", m.activations},
          {"rest", job.fp8 ? "copies in fp8, logits and ids" : "logits and ids", rest},
          {"reserved", "CUDA context, libraries, NCCL", reserved},
          {"process", "process beside its buffers", process}};
}

json entry_of(const Candidate& candidate, const Candidate& first) {
  const auto& [job, p] = candidate;
  json entry = {{"strategy", fsdp::name(job.strategy)},
                {"replicate", job.mesh.replicate},
                {"shard", job.mesh.shard},
                {"micro_batch", job.micro_batch},
                {"micro_batches", job.micro_batches},
                {"recompute", name(job.recompute)},
                {"prefetch", job.prefetch},
                {"dtype", atoll::name(job.dtype)},
                {"fp8", job.fp8},
                {"tokens_per_s", p.tokens_per_s},
                {"step_s", p.step_s},
                {"mfu", p.mfu},
                {"exposed_s", p.exposed_s},
                {"communication_s", p.communication_s},
                {"memory_bytes", p.bytes},
                {"fits", p.fits},
                {"tied", is_tied(candidate, first)},
                {"memory", memory_of(job, p)}};
  const std::uint64_t beside = job.cluster.process_bytes;
  if (beside > 0) entry["resident_bytes"] = p.bytes + beside;
  return entry;
}

std::string page(const Findings& findings) {
  const std::vector<Candidate>& found = findings.candidates;
  const Job& job = found.front().job;
  json data{{"kind", "plan"},
            {"title", "atoll-plan: " + job.model.name},
            {"model", job.model.name},
            {"gpu", job.cluster.compute.name},
            {"hosts", job.cluster.hosts},
            {"ranks_per_host", job.cluster.ranks_per_host},
            {"ranks", job.ranks()},
            {"memory_bytes", job.cluster.compute.memory_bytes},
            {"seq", job.seq},
            {"allocates_once", job.framework == train::simulated::Framework::atoll},
            {"candidates", candidates(found)},
            {"total", found.size()},
            {"remarks", findings.remarks},
            {"growth", growth_of(findings.scaling)},
            {"sources", sources(findings.assumptions)}};
  add_timeline(job, data);
  return html::document(data);
}

}  // namespace plan
