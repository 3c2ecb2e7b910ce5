// atoll-topo shows a machine or the hosts of a job, reports faults and how to fix them, plans a
// mesh, and watches a running job.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "atoll/config.hpp"
#include "atoll/mesh.hpp"
#include "atoll/tooling/inspection.hpp"
#include "atoll/tooling/load.hpp"
#include "atoll/world.hpp"
#include "options.hpp"
#include "picture.hpp"
#include "top_report.hpp"

namespace {

using topo::Options;

constexpr int exit_ok = 0;
constexpr int exit_warnings = 1;  // exit status: --doctor found warnings, or --diff differences
constexpr int exit_errors = 2;    // exit status: --doctor found errors
constexpr int exit_failure = 2;
constexpr int exit_doctor_failure = 3;

using Sites = std::vector<atoll::RankSite>;

constexpr int most_ranks = 1'000'000;

atoll::MeshPlan row_major(atoll::MeshShape shape, int tensor) {
  atoll::MeshPlan plan;
  plan.replicate = shape.replicate;
  plan.shard = shape.shard;
  plan.tensor = tensor;
  plan.order.resize(static_cast<std::size_t>(shape.replicate) *
                    static_cast<std::size_t>(shape.shard) * static_cast<std::size_t>(tensor));
  std::iota(plan.order.begin(), plan.order.end(), 0);
  return plan;
}

// Plans a mesh, or checks the mesh that the user requested.
atoll::MeshPlan plan_for(const atoll::Topology& topology, const Sites& sites,
                         const Options& options, const atoll::Config& config) {
  atoll::MeshPlanOptions plan_options = options.plan;
  plan_options.emulated_islands = config.islands;
  atoll::MeshPlan suggested = atoll::plan_mesh(topology, sites, plan_options);
  if (options.mesh->empty()) return suggested;
  atoll::MeshPlan plan = row_major(atoll::parse_mesh(*options.mesh), options.plan.tensor);
  plan.findings = atoll::check_mesh(topology, sites, plan, plan_options);
  const std::string tensor =
      options.plan.tensor == 1 ? "" : fmt::format("x{}", options.plan.tensor);
  plan.why = fmt::format("requested; atoll would choose {}x{}{}: {}", suggested.replicate,
                         suggested.shard, tensor, suggested.why);
  return plan;
}

// Places the ranks of a job that is not running: as many ranks as the options request, or one rank
// on each GPU.
Sites sites_on_paper(const atoll::Topology& topology, const Options& options) {
  int ranks = options.ranks;
  if (ranks == 0 && !options.mesh->empty()) {
    const atoll::MeshShape shape = atoll::parse_mesh(*options.mesh);
    const auto asked = std::int64_t{shape.replicate} * shape.shard * options.plan.tensor;
    if (asked > most_ranks)
      throw atoll::Error(atoll::ErrorCode::invalid_argument,
                         fmt::format("--mesh {} with --tensor {}: more than {} ranks",
                                     *options.mesh, options.plan.tensor, most_ranks));
    ranks = static_cast<int>(asked);
  }
  if (ranks == 0 && topology.gpus.empty())
    throw atoll::Error(atoll::ErrorCode::invalid_argument,
                       "the machine has no GPUs, so the number of ranks is unknown: add --ranks N");
  return atoll::fill_hosts(topology, ranks);
}

// Returns the part of a topology that belongs to one host.
atoll::Topology only_host(const atoll::Topology& topology, const std::string& name) {
  const auto host = std::ranges::find_if(topology.hosts, [&](const atoll::TopologyHost& one) {
    return one.id == name || one.name == name;
  });
  if (host == topology.hosts.end()) {
    std::string names;
    for (std::size_t i = 0; i < std::min<std::size_t>(topology.hosts.size(), 8); ++i)
      names += (i == 0 ? "" : ", ") + topology.hosts[i].name;
    throw atoll::Error(atoll::ErrorCode::invalid_argument,
                       fmt::format("--host {}: no such host; the hosts are {}{}", name, names,
                                   topology.hosts.size() > 8 ? ", ..." : ""));
  }
  const auto is_here = [&](const std::string& id) { return id.starts_with(host->id + '/'); };
  atoll::Topology one;
  one.hosts = {*host};
  for (const auto& gpu : topology.gpus)
    if (gpu.host == host->id) one.gpus.push_back(gpu);
  for (const auto& nic : topology.nics)
    if (nic.host == host->id) one.nics.push_back(nic);
  for (const auto& link : topology.links)
    if (is_here(link.a) || is_here(link.b)) one.links.push_back(link);
  for (const auto& path : topology.paths)
    if (is_here(path.a)) one.paths.push_back(path);
  for (const auto& conflict : topology.conflicts)
    if (conflict.subject.starts_with(host->id)) one.conflicts.push_back(conflict);
  for (const auto& document : topology.documents)
    if (document.hosts == std::vector{host->id}) one.documents.push_back(document);
  return one;
}

atoll::Topology read(const Options& options) {
  std::vector<atoll::Topology> parts;
  for (const std::string& what : options.from) {
    const bool is_file = what.find_first_of("=,") == what.npos;
    const bool is_bare = std::ranges::find(options.bare, what) != options.bare.end();
    if (is_file && std::filesystem::path(what).has_extension() && !std::filesystem::exists(what))
      throw atoll::Error(atoll::ErrorCode::io,
                         fmt::format("{}: No such file or directory{}", what,
                                     is_bare ? "; to write a file, use -o " + what : ""));
    parts.push_back(atoll::load_topology(what));
  }
  for (const std::string& name : options.cluster) parts.push_back(atoll::catalog_cluster(name));
  return atoll::join_hosts(std::move(parts));
}

bool is_on_paper(const Options& options) {
  return !options.from.empty() || !options.cluster.empty();
}

struct Examination {
  atoll::Inspection inspection;
  bool by_launcher = false;  // true if a launcher started this process
};

// Loads or discovers the machine, and plans its mesh. Under a launcher, all ranks must call this
// function. The result is empty on ranks that print nothing.
std::optional<Examination> examine(const Options& options, const atoll::Config& config) {
  const bool on_paper = is_on_paper(options);
  atoll::World world = atoll::World::from_env(config);
  if (on_paper && world.rank() != 0) return std::nullopt;
  atoll::Topology topology = on_paper ? read(options) : atoll::Topology::discover(world);
  if (!options.fabric.empty()) atoll::apply_fabric(options.fabric, topology);
  const bool is_job = !on_paper && world.size() > 1;
  if (is_job && options.ranks != 0 && options.ranks != world.size())
    throw atoll::Error(
        atoll::ErrorCode::invalid_argument,
        fmt::format("--ranks {} does not match the job of {} ranks: remove the option",
                    options.ranks, world.size()));
  Sites sites;
  if (is_job) sites = atoll::locate_ranks(topology, world);
  if (world.rank() != 0) return std::nullopt;
  if (!options.host.empty()) topology = only_host(topology, options.host);
  std::optional<atoll::MeshPlan> plan;
  if (options.mesh) {
    if (!is_job) sites = sites_on_paper(topology, options);
    plan = plan_for(topology, sites, options, config);
  }
  return Examination{
      .inspection = atoll::inspect(std::move(topology), std::move(sites), std::move(plan)),
      .by_launcher = world.launcher() != "single"};
}

// Returns whether to use colours: by default only on a terminal, and not if NO_COLOR
// (no-color.org) is set or if a launcher started the process. A launcher gives its ranks a terminal
// even if the output of the launcher is a pipe.
atoll::Colour colour_of(const Options& options, bool by_launcher) {
  if (options.colour == "always") return atoll::Colour::on;
  const char* no_color = std::getenv("NO_COLOR");
  const bool unwanted = no_color != nullptr && *no_color != '\0';
  const bool terminal = options.output.empty() && !by_launcher && isatty(STDOUT_FILENO) == 1;
  return options.colour == "auto" && terminal && !unwanted ? atoll::Colour::on : atoll::Colour::off;
}

void write(const std::string& text, const std::string& path) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(nullptr, std::fclose);
  if (!path.empty()) {
    opened.reset(std::fopen(path.c_str(), "wbe"));
    if (!opened)
      throw atoll::Error(atoll::ErrorCode::io, fmt::format("{}: {}", path, std::strerror(errno)));
  }
  std::FILE* out = opened ? opened.get() : stdout;
  if (std::fwrite(text.data(), 1, text.size(), out) != text.size() || std::fflush(out) != 0)
    throw atoll::Error(
        atoll::ErrorCode::io,
        fmt::format("writing to {} failed", path.empty() ? std::string("standard output") : path));
}

std::string render(const Examination& examination, const Options& options) {
  const atoll::Inspection& inspection = examination.inspection;
  const atoll::Colour colour = colour_of(options, examination.by_launcher);
  const std::string& format = options.format;
  if (format == "json") return atoll::to_json(inspection);
  if (options.doctor)
    return atoll::to_report(
               inspection.diagnosis, colour,
               options.verbose ? atoll::PassedChecks::listed : atoll::PassedChecks::counted) +
           (is_on_paper(options) ? "a file or the catalog cannot answer the checks that need the "
                                   "live machine: run atoll-topo --doctor there\n"
                                 : "");
  if (format == "matrix") return atoll::to_matrix(inspection, colour);
  if (format == "svg") return atoll::to_svg(inspection);
  if (format == "nccl-xml") return atoll::to_nccl_xml(inspection.topology);
  if (format == "env") return atoll::to_nccl_env(inspection);
  return atoll::to_tree(inspection, colour);
}

int severity_status(const atoll::Diagnosis& diagnosis) {
  auto worst = atoll::Severity::info;
  for (const atoll::Finding& finding : diagnosis.findings)
    worst = std::max(worst, finding.severity);
  if (worst == atoll::Severity::error) return exit_errors;
  return worst == atoll::Severity::warning ? exit_warnings : exit_ok;
}

int compare(const Options& options) {
  const auto lines =
      atoll::diff(atoll::load_topology(options.diff[0]), atoll::load_topology(options.diff[1]));
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  write(text, options.output);
  return lines.empty() ? exit_ok : exit_warnings;
}

std::string catalog_text() {
  std::string text;
  for (const atoll::CatalogEntry& entry : atoll::catalog())
    text += fmt::format("{:20}  {}\n", entry.name, entry.title);
  return text;
}

int run(const Options& options) {
  atoll::Config config = atoll::Config::from_env();
  config.owns_process = 1;
  if (options.islands > 0) config.islands = options.islands;
  if (options.env) {
    write(atoll::describe(config), options.output);
    return exit_ok;
  }
  if (options.catalog) {
    write(catalog_text(), options.output);
    return exit_ok;
  }
  if (options.top.address) return topo::watch(options.top, config);
  if (!options.diff.empty()) return compare(options);
  const auto examination = examine(options, config);
  if (!examination) return exit_ok;
  const std::string text = render(*examination, options);
  if (options.output.empty() || options.format != "svg" || options.output.ends_with(".svg"))
    write(text, options.output);
  else
    topo::write_picture(text, options.output);
  return options.doctor ? severity_status(examination->inspection.diagnosis) : exit_ok;
}

}  // namespace

int main(int argc, char** argv) {
  int failure = exit_failure;
  try {
    const auto options = topo::parse_options(argc, argv);
    if (!options) return exit_ok;
    if (options->doctor) failure = exit_doctor_failure;
    return run(*options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "atoll-topo: {}\n", error.what());
    return failure;
  }
}
