#include "plan/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "atoll/trace.hpp"
#include "page/line_chart.hpp"
#include "page/step_memory.hpp"
#include "page/style.hpp"
#include "page/text.hpp"
#include "page/timeline.hpp"

namespace plan {
namespace {

namespace fsdp = atoll::fsdp;
using train::page::escape;
using train::page::format;
using train::page::Unit;

constexpr std::size_t most_rows = 30;

std::string mesh_text(const Job& job) {
  return fmt::format("{} x {}", job.mesh.replicate, job.mesh.shard);
}

std::string head(const Job& job) {
  return fmt::format(
      R"(<header><div><h1>{} on {} x {} {}</h1><p class="sub">sequence {}, {}, {} ranks, {})"
      R"( rows a step</p></div><button id="theme">light / dark</button></header>)",
      escape(job.model.name), job.cluster.hosts, job.cluster.ranks_per_host,
      escape(job.cluster.compute.name), job.seq, atoll::name(job.dtype), job.ranks(),
      job.micro_batch * job.micro_batches * job.ranks());
}

std::string tile(const std::string& value, const char* label, const std::string& below) {
  constexpr std::size_t long_word = 10;  // letters; in the size of figures it would be broken
  return fmt::format(R"(<div class="card tile"><span>{}</span><b{}>{}</b><small>{}</small></div>)",
                     label, value.size() > long_word ? R"( class="word")" : "", value,
                     escape(below));
}

std::string tiles(const Candidate& best) {
  const auto& [job, p] = best;
  std::string html = R"(<div class="tiles">)";
  html += tile(std::string(fsdp::name(job.strategy)), "Best settings",
               fmt::format("mesh {}, {} rows x {}, recompute {}", mesh_text(job), job.micro_batch,
                           job.micro_batches, name(job.recompute)));
  html += tile(format(p.tokens_per_s, Unit::count), "Tokens per second",
               fmt::format("{:.0f} per GPU", p.tokens_per_s / job.ranks()));
  html += tile(format(p.mfu, Unit::share), "MFU", "of the data sheet's dense peak");
  html += tile(format(p.step_s, Unit::seconds), "Step",
               fmt::format("exposed communication {}", format(p.exposed_s, Unit::seconds)));
  html += tile(format(all_bytes(best), Unit::bytes), "Memory of a rank",
               fmt::format("of {}", format(static_cast<double>(job.cluster.compute.memory_bytes),
                                           Unit::bytes)));
  return html + "</div>";
}

std::string notes(const std::vector<std::string>& remarks) {
  std::string html;
  for (const std::string& remark : remarks)
    html += fmt::format(R"(<p class="note">{}{}</p>)", escape(remark),
                        remark.ends_with(':') ? "" : ".");
  return html;
}

// The settings of a candidate that the other columns do not show, if candidates differ in them.
std::string other_settings(const std::vector<Candidate>& found, const Job& job) {
  const Job& first = found.front().job;
  const auto differs = [&](const auto& field) {
    return std::ranges::any_of(
        found, [&](const Candidate& other) { return other.job.*field != first.*field; });
  };
  std::string text;
  if (differs(&Job::dtype)) text += fmt::format(", {}", atoll::name(job.dtype));
  if (differs(&Job::prefetch)) text += fmt::format(", {} ahead", job.prefetch);
  return text;
}

std::string table(const std::vector<Candidate>& found) {
  std::string html =
      R"(<h2>Candidates</h2><div class="card scroll"><table><tr><th>strategy</th><th>mesh</th>)"
      R"(<th>rows x micro batches</th><th>recompute</th><th class="end">tokens/s</th><th class="end">MFU</th>)"
      R"(<th class="end">exposed</th><th class="end">memory</th><th class="end">step</th></tr>)";
  for (std::size_t i = 0; i < std::min(found.size(), most_rows); ++i) {
    const auto& [job, p] = found[i];
    const char* mark = "";
    if (!p.fits) mark = ", does not fit";
    if (is_tied(found[i], found.front())) mark = ", tied with the first";
    html += fmt::format(
        R"(<tr><td>{}{}</td><td>{}</td><td>{} x {}</td><td>{}</td><td class="num">{}{}</td>)"
        R"(<td class="num">{}</td><td class="num">{}</td><td class="num">{}</td>)"
        R"(<td class="num">{}</td></tr>)",
        fsdp::name(job.strategy), other_settings(found, job), mesh_text(job), job.micro_batch,
        job.micro_batches, name(job.recompute), format(p.tokens_per_s, Unit::count), mark,
        format(p.mfu, Unit::share), format(p.exposed_s / p.step_s, Unit::share),
        format(all_bytes(found[i]), Unit::bytes), format(p.step_s, Unit::seconds));
  }
  html += "</table>";
  if (found.size() > most_rows)
    html += fmt::format(R"(<p class="note">The best {} of {}.</p>)", most_rows, found.size());
  return html + "</div>";
}

std::string memory(const Job& job, const Prediction& p) {
  const auto total = static_cast<double>(p.bytes + job.cluster.process_bytes);
  std::string bar, rows;
  for (const auto& [key, what, bytes, colour] : memory_parts(job, p)) {
    if (bytes == 0) continue;
    const double share = static_cast<double>(bytes) / total;
    bar +=
        fmt::format(R"(<i class="c{}" style="flex:{:.6f}" title="{}"></i>)", colour, share, what);
    rows += fmt::format(R"(<tr><td><i class="key block c{}"></i>{}</td><td class="num">{}</td>)"
                        R"(<td class="num">{}</td></tr>)",
                        colour, what, format(static_cast<double>(bytes), Unit::bytes),
                        format(share, Unit::share));
  }
  const bool is_atoll = job.framework == train::simulated::Framework::atoll;
  return fmt::format(
      R"(<h2>Memory of a rank</h2><div class="card"><p class="note">{}</p>)"
      R"(<div class="bar">{}</div><table>{}<tr><td><b>total</b></td><td class="num"><b>{}</b></td>)"
      R"(<td></td></tr></table></div>)",
      is_atoll ? "All of it is allocated before the first step." : "", bar, rows,
      format(total, Unit::bytes));
}

std::string timeline(Job job) {
  constexpr int most_micro_batches = 4;  // more are too narrow to see
  std::string shown;
  if (job.micro_batches > most_micro_batches) {
    shown = fmt::format(" The step has {} micro batches; {} are shown.", job.micro_batches,
                        most_micro_batches);
    job.micro_batches = most_micro_batches;
  }
  const Prediction p = simulate(job, {.trace = true});
  std::vector<atoll::TraceRecord> records = p.trace;
  atoll::TraceRecord step;
  step.row = "step";
  step.label = "The predicted step";
  for (const auto& record : records) step.end_ns = std::max(step.end_ns, record.end_ns);
  records.push_back(step);
  const std::vector<std::string> events = {
      atoll::chrome_events({.rank = 0, .host = "host0"}, records)};
  const auto trace = nlohmann::json::parse(atoll::chrome_trace(events));
  nlohmann::json plan;
  for (const MemoryPart& part : memory_parts(job, p)) plan[part.key] = part.bytes;
  return fmt::format(
      R"(<h2>Timeline of one step</h2><div class="card"><p class="note">The best settings, on rank )"
      R"(0. Point at a span to read its name and time.{}</p>{}</div><div class="grid2">{}</div>)"
      R"(<p class="note">Memory that holds data; context, libraries and NCCL are not in it.</p>)",
      shown, train::page::draw_timeline(trace).svg, train::page::draw_step_memory(trace, plan));
}

std::string growth_charts(const Scaling& scaling) {
  train::page::Series rate{
      .name = "predicted", .colour = 1, .look = train::page::Series::Look::dots};
  train::page::Series ideal{.name = "linear", .colour = 3};
  train::page::Series mfu{.name = "MFU", .colour = 1, .look = train::page::Series::Look::dots};
  const double one = scaling.tokens_per_s_of_host();
  for (std::size_t i = 0; i < scaling.hosts.size(); ++i) {
    const double hosts = scaling.hosts[i];
    const Prediction& p = scaling.best[i].prediction;
    if (!p.fits) continue;
    for (auto* series : {&rate, &ideal, &mfu}) series->x.push_back(hosts);
    rate.y.push_back(p.tokens_per_s);
    ideal.y.push_back(one * hosts);
    mfu.y.push_back(p.mfu);
  }
  if (rate.x.size() < 2) return {};
  return R"(<h2>Growth over hosts</h2><div class="grid2">)" +
         train::page::draw({.title = "Tokens per second",
                            .unit = Unit::count,
                            .from_zero = true,
                            .x_name = "hosts",
                            .series = {rate, ideal}}) +
         train::page::draw({.title = "MFU",
                            .unit = Unit::share,
                            .from_zero = true,
                            .x_name = "hosts",
                            .series = {mfu}}) +
         "</div>";
}

}  // namespace

std::vector<MemoryPart> memory_parts(const Job& job, const Prediction& p) {
  const fsdp::MemoryPlan& m = p.memory;
  const std::uint64_t reserved = job.cluster.compute.reserved_bytes;
  // What the engine's plan does not have: ids, and the logits of PyTorch.
  const std::uint64_t rest = p.bytes - std::min(p.bytes, m.total() + reserved);
  const std::uint64_t process = job.cluster.process_bytes;
  return {{"parameters", "parameters (master shards)", m.parameters, 1},
          {"resident", "parameters (whole, resident)", m.resident, 6},
          {"optimizer", "optimizer", m.optimizer, 3},
          {"gradients", "gradients (shards)", m.gradients, 4},
          {"gathered", "parameters (gathered while used)", m.gathered, 5},
          {"inner_shards", "parameters (inner shards)", m.inner_shards, 6},
          {"whole_gradients", "whole gradients", m.whole_gradients, 7},
          {"staging", "staging", m.staging, 8},
          {"activations", "activations", m.activations, 2},
          {"rest", "logits and ids", rest, 7},
          {"reserved", "CUDA context, libraries, NCCL", reserved, 6},
          {"process", "process beside its buffers", process, 2}};
}

std::string page(const std::vector<Candidate>& found, const Scaling& scaling,
                 const std::vector<std::string>& remarks) {
  const auto& [job, prediction] = found.front();
  const std::string body =
      head(job) + tiles(found.front()) + notes(remarks) + table(found) + timeline(job) +
      memory(job, prediction) + growth_charts(scaling) +
      fmt::format(
          "<footer>Written by atoll-plan. Times of arithmetic: {}. Links inside a host: {:g} "
          "GB/s; between hosts: {:g} GB/s by {} NICs{}. The figures are "
          "predictions.</footer>",
          escape(job.cluster.compute.source), job.cluster.fabric.inside_gbyte_s,
          job.cluster.fabric.across_gbyte_s, job.cluster.fabric.nics,
          job.cluster.fabric.most_gbyte_s > 0
              ? fmt::format(", at most {:g} GB/s", job.cluster.fabric.most_gbyte_s)
              : "");
  return train::page::document("atoll-plan: " + job.model.name, body);
}

}  // namespace plan
