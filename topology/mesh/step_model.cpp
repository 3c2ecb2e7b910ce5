// Models how long a sharded step communicates, to compare meshes over unequal islands.
//
// The model counts bandwidth only, by GroupRate::transfer_s(). With P bytes of parameters over
// S x R ranks, each rank gathers the parameters twice and reduces the gradients once along the
// shard axis, and sums its shard, P / S, over the replicate axis.
//
// The rate of a group is that of the slowest part of its ring. Inside an island this is the rate of
// one GPU. Across islands, the bytes of the whole ring cross once, through all NICs of the group's
// members; groups that cross at the same time have their own NICs. Rings inside a machine reach 80
// % of their link rate (measured 360 of 450 GB/s); across hosts they reach nic_efficiency().
//
// Latency follows NCCL's ring (src/graph/tuning.cc, protocol Simple): a base, and a step for each
// hop by the kind of link. For 16 GPUs on two hosts, the model predicts 70 us; fits of measurements
// show 72 us.
#include "mesh/planning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "affinity.hpp"
#include "atoll/level_schedule.hpp"

namespace atoll_v1::atoll {
namespace {

// GB/s inside an island of GPUs, and GB/s that one core copies in memory, for ranks without GPUs.
constexpr double assumed_intra_gbyte_s = 250, assumed_memory_gbyte_s = 10;
constexpr double intra_to_inter = 10, efficiency_intra = 0.8;

// Latencies in microseconds. For GPUs, they are NCCL's own values. For ranks without GPUs, they
// were measured with atoll's host backend and 8 bytes: 4 us among four ranks of a host, 80 us
// between hosts over TCP (tests/bench/results-host-backend.md).
struct Latencies {
  double base, intra, pcie, network;
};
constexpr Latencies latencies_of_gpus{8.4, 3.4, 5.7, 14};
constexpr Latencies latencies_of_cpus{1, 1, 1, 80};

void take_slower(GroupRate& slowest, const GroupRate& other) {
  slowest.gbyte_s = std::min(slowest.gbyte_s, other.gbyte_s);
  slowest.latency_us = std::max(slowest.latency_us, other.latency_us);
  slowest.is_assumed = slowest.is_assumed || other.is_assumed;
}

constexpr GroupRate fastest{.gbyte_s = std::numeric_limits<double>::infinity()};

std::vector<GroupRate> complete(const std::vector<std::optional<double>>& known, double assumed) {
  std::vector<GroupRate> rates;
  for (const auto& rate : known)
    rates.push_back({.gbyte_s = rate.value_or(assumed), .is_assumed = !rate});
  return rates;
}

std::string text_of(const std::vector<GroupRate>& rates) {
  GroupRate slowest = fastest;
  for (const GroupRate& rate : rates) take_slower(slowest, rate);
  return fmt::format("{:.4g} GB/s{}", slowest.gbyte_s, slowest.is_assumed ? " (assumed)" : "");
}

std::optional<double> least_of(const std::vector<std::optional<double>>& rates) {
  std::optional<double> least;
  for (const auto& rate : rates)
    if (rate) least = std::min(least.value_or(*rate), *rate);
  return least;
}

// Collects, over many groups, the slowest rate inside hosts and the slowest rate between hosts.
class SlowestLevels {
 public:
  SlowestLevels(const MeshSites& sites, StepModel& model) : sites_(sites), model_(model) {}

  void add(std::span<const int> group) {
    std::vector<int> hosts;
    for (const int rank : group) hosts.push_back(sites_.at(rank).host);
    const auto per_host = at_index(atoll_levels::HostLayout(hosts).ranks_per_host());
    everywhere_ = everywhere_ && per_host > 0;
    if (!everywhere_) return;
    for (std::size_t first = 0; first < group.size(); first += per_host) {
      const auto here = group.subspan(first, per_host);
      take_slower(slowest_.intra, model_.rate({here.begin(), here.end()}));
    }
    std::vector<int> column;
    for (std::size_t first = 0; first < per_host; ++first) {
      column.clear();
      for (std::size_t rank = first; rank < group.size(); rank += per_host)
        column.push_back(group[rank]);
      take_slower(slowest_.inter, model_.rate(column));
    }
  }
  LevelRates found() const { return everywhere_ ? slowest_ : LevelRates{}; }

 private:
  const MeshSites& sites_;
  StepModel& model_;
  LevelRates slowest_{fastest, fastest};
  bool everywhere_ = true;
};

}  // namespace

StepModel::StepModel(LinkRates& rates)
    : sites_(rates.sites), groups_(rates.groups), parts_(groups_.wide.size()) {
  std::vector<std::optional<double>> intra, pcie, network;
  for (int near = 0; near < static_cast<int>(groups_.near.size()); ++near)
    intra.push_back(rates.intra(near));
  for (int host = 0; host < static_cast<int>(sites_.hosts.size()); ++host) {
    pcie.push_back(rates.pcie(host));
    network.push_back(rates.network(host));
  }
  const double assumed = all_have_gpus(sites_) ? assumed_intra_gbyte_s : assumed_memory_gbyte_s;
  double reference = least_of(network).value_or(assumed / intra_to_inter);
  reference = least_of(intra).value_or(reference * intra_to_inter);
  intra_ = complete(intra, reference);
  pcie_ = complete(pcie, reference / intra_to_inter);
  network_ = complete(network, reference / intra_to_inter);
}

double StepModel::seconds(const MeshPlan& mesh, double gbytes) {
  GroupRate row = fastest, column = fastest;
  const auto slowest = [this](GroupRate& least) {
    return [this, &least](const std::vector<int>& ranks) { take_slower(least, rate(ranks)); };
  };
  if (mesh.shard > 1) each_shard_group(mesh, slowest(row));
  if (mesh.replicate > 1) each_replicate_group(mesh, slowest(column));
  const double bytes = gbytes * 1e9 / mesh.tensor;
  return 3 * row.transfer_s(bytes, mesh.shard) +
         2 * column.transfer_s(bytes / mesh.shard, mesh.replicate);
}

bool StepModel::crosses(const MeshPlan& mesh) const {
  const int row = mesh.shard * mesh.tensor;
  for (int first = 0; first < static_cast<int>(mesh.order.size()); first += row)
    for (int i = 1; i < row; ++i)
      if (groups_.near_of[at_index(mesh.order[at_index(first + i)])] !=
          groups_.near_of[at_index(mesh.order[at_index(first)])])
        return true;
  return false;
}

double StepModel::hop_us(int rank, bool leaves_near) const {
  if (sites_.at(rank).gpu < 0) return latencies_of_cpus.intra;
  const Neighbourhood& near = groups_.near[at_index(groups_.near_of[at_index(rank)])].where;
  const bool is_linked = near.kind != Neighbourhood::Kind::host && !leaves_near;
  return is_linked ? latencies_of_gpus.intra : latencies_of_gpus.pcie;
}

void StepModel::add(int rank, Part& part) const {
  const int near = groups_.near_of[at_index(rank)], host = sites_.at(rank).host;
  const bool leaves_near = part.members > 0 && part.near != near;
  part.is_split = part.is_split || leaves_near;
  if (part.members == 0) part.links = fastest;
  if (part.members > 0) part.links.latency_us += hop_us(rank, leaves_near);
  take_slower(part.links, intra_[at_index(near)]);
  if (part.is_split) take_slower(part.links, pcie_[at_index(host)]);
  part.near = near;
  part.network.gbyte_s += network_[at_index(host)].gbyte_s;
  part.network.is_assumed = part.network.is_assumed || network_[at_index(host)].is_assumed;
  ++part.members;
}

GroupRate StepModel::rate(const std::vector<int>& members) {
  std::vector<std::size_t> touched;
  bool has_gpu = false;
  for (const int rank : members) {
    const auto wide = at_index(groups_.wide_of[at_index(rank)]);
    if (parts_[wide].members == 0) touched.push_back(wide);
    add(rank, parts_[wide]);
    has_gpu = has_gpu || sites_.at(rank).gpu >= 0;
  }
  if (members.size() < 2) {
    for (const std::size_t wide : touched) parts_[wide] = {};
    return fastest;
  }
  const Latencies& latencies = has_gpu ? latencies_of_gpus : latencies_of_cpus;
  GroupRate group = fastest;
  group.latency_us = latencies.base;
  group.latency_us += static_cast<double>(touched.size() - 1) * latencies.network;
  for (const std::size_t wide : touched) {
    const Part& part = parts_[wide];
    group.latency_us += part.links.latency_us;
    const auto pass = [&group](GroupRate link, double efficiency) {
      link.gbyte_s *= efficiency;
      take_slower(group, link);
    };
    if (part.members > 1) pass(part.links, efficiency_intra);
    if (touched.size() > 1) pass(part.network, nic_efficiency(static_cast<int>(touched.size())));
    parts_[wide] = {};
  }
  return group;
}

std::string StepModel::rates_text() const {
  // True when some host has several groups of GPUs that NVLink joins (near groups; each host is one
  // wide group), so that traffic between them crosses PCIe.
  const bool splits_hosts = groups_.near.size() > groups_.wide.size();
  std::vector<GroupRate> intra;
  for (std::size_t near = 0; near < intra_.size(); ++near)
    if (groups_.near[near].size() > 1) intra.push_back(intra_[near]);
  std::string text =
      fmt::format("{} a {} inside an island", text_of(intra.empty() ? intra_ : intra),
                  all_have_gpus(sites_) ? "GPU" : "rank");
  if (splits_hosts) text += fmt::format(", {} over PCIe", text_of(pcie_));
  if (groups_.wide.size() > 1) text += fmt::format(", {} over the network", text_of(network_));
  return text;
}

GroupRate group_rate(const Topology& topology, const std::vector<RankSite>& ranks,
                     const std::vector<int>& group, const MeshPlanOptions& options) {
  LinkRates rates(topology, ranks, options);
  for (const int rank : group)
    if (rank < 0 || at_index(rank) >= ranks.size())
      refuse("rank {} of a group does not exist: there are {} ranks", rank, ranks.size());
  return StepModel(rates).rate(group);
}

MeshRates mesh_rates(const Topology& topology, const std::vector<RankSite>& ranks,
                     const MeshPlan& plan, const MeshPlanOptions& options) {
  LinkRates rates(topology, ranks, options);
  check_order(plan, ranks.size());
  StepModel model(rates);
  MeshRates found{.shard = fastest, .replicate = fastest, .world = model.rate(plan.order)};
  SlowestLevels shard(rates.sites, model), replicate(rates.sites, model), world(rates.sites, model);
  world.add(plan.order);
  each_shard_group(plan, [&](const std::vector<int>& group) {
    take_slower(found.shard, model.rate(group));
    shard.add(group);
  });
  each_replicate_group(plan, [&](const std::vector<int>& group) {
    take_slower(found.replicate, model.rate(group));
    replicate.add(group);
  });
  found.shard_levels = shard.found();
  found.replicate_levels = replicate.found();
  found.world_levels = world.found();
  return found;
}

}  // namespace atoll_v1::atoll
