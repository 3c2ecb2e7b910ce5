#include "machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "atoll/mesh.hpp"
#include "atoll/world.hpp"

namespace topo {
namespace {

using Sites = std::vector<atoll::RankSite>;

constexpr int most_ranks = 1'000'000;

atoll::MeshPlan row_major(atoll::MeshShape shape, int inner) {
  atoll::MeshPlan plan;
  plan.replicate = shape.replicate;
  plan.shard = shape.shard;
  plan.inner = inner;
  plan.order.resize(static_cast<std::size_t>(shape.replicate) *
                    static_cast<std::size_t>(shape.shard) * static_cast<std::size_t>(inner));
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
  atoll::MeshPlan plan = row_major(atoll::parse_mesh(*options.mesh), options.plan.inner);
  plan.findings = atoll::check_mesh(topology, sites, plan, plan_options);
  const std::string inner = options.plan.inner == 1 ? "" : fmt::format("x{}", options.plan.inner);
  plan.why = fmt::format("requested; atoll would choose {}x{}{}: {}", suggested.replicate,
                         suggested.shard, inner, suggested.why);
  return plan;
}

// Places the ranks of a job that is not running: as many ranks as the options request, or one rank
// on each GPU.
Sites sites_on_paper(const atoll::Topology& topology, const Options& options) {
  int ranks = options.ranks;
  if (ranks == 0 && !options.mesh->empty()) {
    const atoll::MeshShape shape = atoll::parse_mesh(*options.mesh);
    const auto asked = std::int64_t{shape.replicate} * shape.shard * options.plan.inner;
    if (asked > most_ranks)
      throw atoll::Error(atoll::ErrorCode::invalid_argument,
                         fmt::format("--mesh {} with --inner {}: more than {} ranks", *options.mesh,
                                     options.plan.inner, most_ranks));
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
  for (const std::string& what : options.from) parts.push_back(atoll::load_topology(what));
  for (const std::string& name : options.cluster) parts.push_back(atoll::catalog_cluster(name));
  return atoll::join_hosts(std::move(parts));
}

}  // namespace

std::optional<Examination> examine(const Options& options, const atoll::Config& config) {
  const bool on_paper = !options.from.empty() || !options.cluster.empty();
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

}  // namespace topo
