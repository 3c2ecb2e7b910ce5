#include "page/page.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

#include "page/curves.hpp"
#include "page/mesh_picture.hpp"
#include "page/step_memory.hpp"
#include "page/style.hpp"
#include "page/text.hpp"
#include "page/timeline.hpp"
#include "report/files.hpp"
#include "report/traps.hpp"

namespace train::page {
namespace {

using nlohmann::json;

std::string plain(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string metric_text(const RunFiles& run, const char* key) {
  const auto found = run.metrics.find(key);
  return found == run.metrics.end() || found->is_null() ? "" : plain(*found);
}

std::string head(const RunFiles& run) {
  std::string sub = run.text("strategy");
  if (const auto model = metric_text(run, "model"); !model.empty()) sub = model + ", " + sub;
  if (const auto mesh = run.text("mesh"); !mesh.empty()) sub += ", mesh " + mesh;
  const double ranks = run.arg("world_size");
  if (std::isfinite(ranks)) sub += fmt::format(", {:.0f} rank{}", ranks, ranks == 1 ? "" : "s");
  if (const auto dtype = run.text("dtype"); !dtype.empty()) sub += ", " + dtype;
  if (run.args.value("fp8", json()) == true) sub += " with products in fp8";
  if (run.metrics.empty()) sub += ". The run has not ended, or ended early";
  return fmt::format(
      R"(<header><div><h1>{}</h1><p class="sub">{}</p></div><button id="theme">light / dark)"
      R"(</button></header>)",
      escape(run.name), escape(sub));
}

std::string tile(double value, Unit unit, const char* label, const std::string& below = {}) {
  if (!std::isfinite(value)) return {};
  const std::string small = below.empty() ? "" : "<small>" + escape(below) + "</small>";
  return fmt::format(R"(<div class="card tile"><span>{}</span><b>{}</b>{}</div>)", label,
                     format(value, unit), small);
}

std::string tiles(const RunFiles& run) {
  const auto when = [&](const char* key, Unit unit, const char* text) {
    const double value = run.metric(key);
    return std::isfinite(value) ? fmt::format("{} {}", text, format(value, unit)) : "";
  };
  std::string html = R"(<div class="tiles">)";
  html += tile(run.metric("loss_last"), Unit::number, "Loss, last 20 steps",
               when("loss_first", Unit::number, "first"));
  html += tile(run.metric("eval_loss_min"), Unit::number, "Best evaluation",
               when("eval_loss", Unit::number, "last"));
  html += tile(run.metric("tokens_per_s"), Unit::count, "Tokens per second",
               when("padding_fraction", Unit::share, "padding"));
  html +=
      tile(run.metric("mfu"), Unit::share, "MFU", when("peak_flops_per_rank", Unit::flops, "of"));
  html += tile(run.metric("exposed_comm_fraction"), Unit::share, "Exposed communication",
               when("exposed_s", Unit::seconds, "per step"));
  html += tile(run.metric("device_memory_bytes"), Unit::bytes, "Memory per rank, peak",
               when("planned_memory_bytes", Unit::bytes, "planned"));
  html += tile(run.metric("wall_time_s"), Unit::seconds, "Duration",
               when("steps", Unit::count, "steps"));
  return html + "</div>";
}

std::string warnings(const RunFiles& run) {
  std::string html;
  for (const Trap& trap : find_traps(run.args, run.metrics)) {
    html += fmt::format(R"(<div class="trap"><b>&#9888; {}.</b> <span>Remedy: {}.</span></div>)",
                        escape(trap.evidence), escape(trap.remedy));
  }
  return html.empty() ? "" : R"(<div class="traps">)" + html + "</div>";
}

struct MemoryPart {
  const char* key;
  const char* name;
  int colour;
};
constexpr std::array<MemoryPart, 9> memory_parts{
    {{"parameters", "parameters (master shards)", 1},
     {"resident", "parameters (whole, resident)", 6},
     {"optimizer", "optimizer", 3},
     {"gradients", "gradients (shards)", 4},
     {"gathered", "parameters (gathered while used)", 5},
     {"inner_shards", "parameters (inner shards)", 6},
     {"whole_gradients", "whole gradients", 7},
     {"staging", "staging", 8},
     {"activations", "activations", 2}}};

std::string memory(const json& plan) {
  const json parts = plan.value("memory", json::object());
  double total = 0;
  for (const auto& [key, name, colour] : memory_parts) {
    if (const double bytes = number(parts, key); bytes > 0) total += bytes;
  }
  if (!(total > 0)) return {};
  std::string bar, rows;
  for (const auto& [key, name, colour] : memory_parts) {
    const double bytes = number(parts, key);
    if (!(bytes > 0)) continue;
    bar += fmt::format(R"(<i class="c{}" style="flex:{:.6f}" title="{}: {}"></i>)", colour,
                       bytes / total, name, format(bytes, Unit::bytes));
    rows +=
        fmt::format(R"(<tr><td><i class="key block c{}"></i>{}</td><td class="num">{}</td>)"
                    R"(<td class="num">{}</td></tr>)",
                    colour, name, format(bytes, Unit::bytes), format(bytes / total, Unit::share));
  }
  return fmt::format(
      R"(<h2>Memory plan of a rank</h2><div class="card"><div class="bar">{}</div><table>{})"
      R"(<tr><td><b>total</b></td><td class="num"><b>{}</b></td><td class="num"></td></tr>)"
      R"(</table></div>)",
      bar, rows, format(total, Unit::bytes));
}

std::string timeline(const RunFiles& run, const json& plan) {
  Timeline drawn{run.trace_note, ""};
  std::string memory;
  if (run.trace.is_object()) {
    try {
      drawn = draw_timeline(run.trace);
      memory = draw_step_memory(run.trace, plan.value("memory", json::object()));
    } catch (const json::exception&) {
      drawn = {"The trace has events of another form than atoll's.", ""};
    }
  }
  return fmt::format(
      R"(<h2>Timeline of one step</h2><div class="card"><p class="note">{}</p>{}</div>)"
      R"(<div class="grid2">{}</div>{})",
      escape(drawn.caption), drawn.svg, memory,
      memory.empty() ? ""
                     : R"(<p class="note">Memory that holds data, by the trace and the plan. All )"
                       R"(of the plan is allocated before the first step.</p>)");
}

std::string mesh(const RunFiles& run, const json& plan) {
  const std::string svg = draw_mesh(plan);
  if (svg.empty()) return {};
  const double replicate = number(plan, "replicate"), shard = number(plan, "shard");
  return fmt::format(
      R"(<h2>Mesh</h2><div class="card"><p class="note">{:.0f} replica{} of {:.0f} shard{}: )"
      R"(ranks of one colour share one copy of the model (r: replica, s: shard). )"
      R"(Frames are hosts; a thick line separates islands of fast links. {}.</p><br>{}</div>)",
      replicate, replicate == 1 ? "" : "s", shard, shard == 1 ? "" : "s",
      escape("Chosen because " + run.text("mesh_reason")), svg);
}

std::string settings(const RunFiles& run) {
  std::string html;
  for (const auto& [name, value] : run.args.items()) {
    if (value.is_object()) continue;
    const std::string text = plain(value);
    html += fmt::format("<div><span>{}</span><code>{}</code></div>", escape(name),
                        text.empty() ? "&ndash;" : escape(text));
  }
  if (html.empty()) return {};
  return R"(<h2>Settings</h2><div class="card"><div class="columns">)" + html + "</div></div>";
}

std::string figures(const RunFiles& run) {
  std::string html;
  for (const auto& [name, value] : run.metrics.items()) {
    if (value.is_object()) continue;
    const std::string text =
        value.is_number_float() ? fmt::format("{:.6g}", value.get<double>()) : plain(value);
    html += fmt::format("<div><span>{}</span><code>{}</code></div>", escape(name), escape(text));
  }
  if (html.empty()) return {};
  return R"(<details><summary>All figures of metrics.json</summary><div class="card">)"
         R"(<div class="columns">)" +
         html + "</div></div></details>";
}

}  // namespace

std::string report_html(const RunFiles& run) {
  const json plan = run.args.value("plan", json::object());
  const json known = plan.is_object() ? plan : json::object();
  std::string body = head(run) + tiles(run) + warnings(run);
  body += R"(<h2>Learning</h2><div class="grid2">)" + learning_curves(run) + "</div>";
  body += R"(<h2>Speed</h2><div class="grid2">)" + speed_curves(run) + "</div>";
  body += memory(known) + timeline(run, known) + mesh(run, known) + settings(run) + figures(run);
  body +=
      "<footer>Written by atoll-train from steps.jsonl, metrics.json, run_args.json and the "
      "trace. Figures per rank are means, unless they say otherwise; rates exclude the first "
      "warmup_steps.</footer>";
  return document(run.name, body);
}

std::filesystem::path write_report(const std::filesystem::path& folder) {
  RunFiles run = read_run(folder);
  read_trace(run);
  const auto file = folder / "report.html";
  write_file_atomic(file, report_html(run));
  return file;
}

}  // namespace train::page
