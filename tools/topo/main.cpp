// atoll-topo: what atoll sees of this machine or of this job, and which mesh it would lay on it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "atoll/config.hpp"
#include "atoll/mesh.hpp"
#include "atoll/topology.hpp"
#include "atoll/world.hpp"

namespace {

constexpr int exit_ok = 0;
constexpr int exit_failure = 2;

struct Options {
  std::string format = "tree";
  std::vector<std::string> from;
  std::optional<std::string> mesh;  // "": plan one
  int ranks = 0;
  int islands = 0;
  bool env = false;
};

// What there is to print; empty on the ranks that print nothing.
struct Report {
  atoll::Topology topology;
  std::optional<atoll::MeshPlan> plan;
};

atoll::MeshPlan row_major(atoll::MeshShape shape) {
  atoll::MeshPlan plan;
  plan.replicate = shape.replicate;
  plan.shard = shape.shard;
  plan.order.resize(static_cast<std::size_t>(shape.replicate) *
                    static_cast<std::size_t>(shape.shard));
  std::iota(plan.order.begin(), plan.order.end(), 0);
  return plan;
}

// A mesh for ranks that do not run: those of the option, or one a GPU.
atoll::MeshPlan plan_on_paper(const atoll::Topology& topology, const Options& options,
                              const atoll::Config& config) {
  const atoll::MeshPlanOptions plan_options{.emulated_islands = config.islands};
  const bool by_hand = !options.mesh->empty();
  atoll::MeshPlan plan;
  int ranks = options.ranks;
  if (by_hand) {
    plan = row_major(atoll::parse_mesh(*options.mesh));
    if (ranks == 0) ranks = static_cast<int>(plan.order.size());
  }
  const auto sites = atoll::fill_hosts(topology, ranks);
  atoll::MeshPlan suggested = atoll::plan_mesh(topology, sites, plan_options);
  if (!by_hand) return suggested;
  plan.findings = atoll::check_mesh(topology, sites, plan, plan_options);
  plan.why = fmt::format("asked for; atoll would take {}x{}: {}", suggested.replicate,
                         suggested.shard, suggested.why);
  return plan;
}

atoll::MeshPlan plan_for_job(const atoll::Topology& topology, const Options& options,
                             atoll::World& world) {
  if (options.ranks != 0 && options.ranks != world.size())
    throw atoll::Error(
        atoll::ErrorCode::invalid_argument,
        fmt::format("--ranks {} in a job of {} ranks: leave it out", options.ranks, world.size()));
  const atoll::Mesh suggested = atoll::Mesh::plan(topology, world);
  const bool by_hand = !options.mesh->empty();
  const atoll::Mesh mesh =
      by_hand ? atoll::Mesh::make(world, atoll::parse_mesh(*options.mesh), topology) : suggested;
  atoll::MeshPlan plan;
  plan.replicate = mesh.shape().replicate;
  plan.shard = mesh.shape().shard;
  plan.order = mesh.axis("world").ranks;
  plan.findings = mesh.findings();
  plan.why = by_hand ? fmt::format("asked for; atoll would take {}: {}", suggested.to_string(),
                                   suggested.reason())
                     : mesh.reason();
  return plan;
}

Report read_files(const Options& options, const atoll::Config& config) {
  Report report;
  std::vector<atoll::Topology> parts;
  for (const std::string& path : options.from) parts.push_back(atoll::Topology::load(path));
  report.topology = atoll::merge(parts);
  if (options.mesh) report.plan = plan_on_paper(report.topology, options, config);
  return report;
}

std::optional<Report> look(const Options& options, const atoll::Config& config) {
  atoll::World world = atoll::World::from_env(config);
  Report report;
  report.topology = atoll::Topology::discover(world);
  if (options.mesh)
    report.plan = world.size() == 1 ? plan_on_paper(report.topology, options, config)
                                    : plan_for_job(report.topology, options, world);
  if (world.rank() != 0) return std::nullopt;
  return report;
}

// "0-7, 12"; long lists are cut.
std::string ranks_text(const int* begin, const int* end) {
  std::string text;
  int pieces = 0;
  while (begin != end) {
    if (++pieces > 16) return text + ", ...";
    const int* last = begin;
    while (last + 1 != end && last[1] == *last + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", *begin);
    if (last != begin) text += fmt::format("-{}", *last);
    begin = last + 1;
  }
  return text;
}

std::string plan_text(const atoll::MeshPlan& plan) {
  constexpr int most_rows = 32;
  std::string text =
      fmt::format("mesh {}x{} (replicate x shard)\n  {}\n", plan.replicate, plan.shard, plan.why);
  for (int row = 0; row < std::min(plan.replicate, most_rows); ++row) {
    const int* begin = plan.order.data() + std::ptrdiff_t{row} * plan.shard;
    text += fmt::format("  shard group {}: ranks {}\n", row, ranks_text(begin, begin + plan.shard));
  }
  if (plan.replicate > most_rows)
    text += fmt::format("  and {} more shard groups\n", plan.replicate - most_rows);
  for (const std::string& finding : plan.findings) text += fmt::format("  finding: {}\n", finding);
  return text;
}

std::string render(const Report& report, std::string_view format) {
  if (format == "json")
    return report.plan ? atoll::to_json(report.topology, *report.plan) : report.topology.to_json();
  std::string text =
      format == "matrix" ? atoll::to_matrix(report.topology) : atoll::to_tree(report.topology);
  if (report.plan) text += '\n' + plan_text(*report.plan);
  return text;
}

void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw atoll::Error(atoll::ErrorCode::io, "standard output cannot be written");
}

int run(const Options& options) {
  atoll::Config config = atoll::Config::from_env();
  if (options.islands > 0) config.islands = options.islands;
  if (options.env) {
    print(atoll::describe(config));
    return exit_ok;
  }
  if (options.ranks > 0 && !options.mesh)
    throw atoll::Error(atoll::ErrorCode::invalid_argument, "--ranks needs --mesh");
  if (!options.from.empty())
    print(render(read_files(options, config), options.format));
  else if (const auto report = look(options, config))
    print(render(*report, options.format));
  return exit_ok;
}

void declare(CLI::App& app, Options& options) {
  app.add_option("--format", options.format,
                 "tree (for people), json (for --from) or matrix (GPUs x GPUs)")
      ->check(CLI::IsMember({"tree", "json", "matrix"}))
      ->option_text("tree|json|matrix");
  app.add_option("--from", options.from,
                 "describe the machine in FILE (atoll JSON) instead of this one; again for more "
                 "hosts")
      ->option_text("FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--mesh", options.mesh,
                 "plan a mesh and say why; with RxS (replicate x shard) check that one")
      ->option_text("[RxS]")
      ->expected(0, 1);
  app.add_option("--ranks", options.ranks,
                 "plan for N ranks, filled host by host (default: one a GPU; under a launcher: the "
                 "job's)")
      ->option_text("N")
      ->check(CLI::Range(1, 1'000'000))
      ->needs("--mesh");
  app.add_option("--islands", options.islands,
                 "treat the ranks, in order, as N equal islands (default: ATOLL_ISLANDS)")
      ->option_text("N")
      ->check(CLI::Range(1, 1'000'000))
      ->needs("--mesh");
  app.add_flag("--env", options.env, "list every ATOLL_* variable with its value and meaning");
  app.set_version_flag("--version", "atoll-topo " ATOLL_VERSION, "print the version");
  app.footer(
      "Under a launcher all hosts of the job are described, and rank 0 prints.\n\n"
      "Examples:\n"
      "  atoll-topo                                   this machine\n"
      "  mpirun -n 16 atoll-topo --mesh               the job's machine, and its mesh\n"
      "  atoll-topo --format json > node.json         keep it\n"
      "  atoll-topo --from a.json --from b.json --mesh 2x8   check a mesh without the machine\n"
      "  atoll-topo --mesh --ranks 8 --islands 2      rehearse two islands on one host\n\n"
      "Exit status: 0, or 2 after one line on standard error.");
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "What atoll sees of this machine: hosts, GPUs, NICs, NVLink islands, and the mesh "
      "that suits them.",
      "atoll-topo");
  declare(app, options);
  try {
    app.parse(argc, argv);
    return run(options);
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const std::exception& error) {
    fmt::print(stderr, "atoll-topo: {}\n", error.what());
    return exit_failure;
  }
}
