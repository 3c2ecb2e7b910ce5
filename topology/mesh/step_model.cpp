#include "mesh/step_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace atoll_v1::atoll {
namespace {

constexpr double assumed_inside_gbyte_s = 250;
constexpr double assumed_memory_gbyte_s =
    10;  // GB/s that one core copies in memory, for ranks without GPUs
constexpr double inside_to_across = 10;
constexpr double efficiency_inside = 0.8;

// Latencies in microseconds. For GPUs, they are NCCL's own values. For ranks without GPUs, they
// were measured with atoll's host backend and 8 bytes: 4 us among four ranks of a host, 80 us
// between hosts over TCP (tests/bench/results-host-backend.md).
struct Latencies {
  double base, inside, pcie, network;
};
constexpr Latencies latencies_of_gpus{8.4, 3.4, 5.7, 14};
constexpr Latencies latencies_of_cpus{1, 1, 1, 80};

// Share of the NICs' bandwidth that all-gathers of 512 MB reach over 1, 2, 4, ... 128 hosts: ratios
// that SimAI publishes (aliyun/SimAI, inputs/ratio), interpolated between its 256 MB and 1 GB.
double efficiency_across(std::size_t parts) {
  constexpr std::array measured{1.0, 0.89, 0.85, 0.80, 0.67, 0.56, 0.38, 0.21};
  const double doublings = std::log2(static_cast<double>(parts));
  const auto below = static_cast<std::size_t>(doublings);
  if (below + 1 >= measured.size()) return measured.back();
  return std::lerp(measured[below], measured[below + 1], doublings - static_cast<double>(below));
}

std::optional<double> least_of(const std::vector<std::optional<double>>& rates) {
  std::optional<double> least;
  for (const auto& rate : rates)
    if (rate) least = std::min(least.value_or(*rate), *rate);
  return least;
}

}  // namespace

StepModel::StepModel(LinkRates& rates)
    : sites_(rates.sites), groups_(rates.groups), parts_(groups_.wide.size()) {
  std::vector<std::optional<double>> inside, pcie, network;
  for (int near = 0; near < static_cast<int>(groups_.near.size()); ++near)
    inside.push_back(rates.inside(near));
  for (int host = 0; host < static_cast<int>(sites_.hosts.size()); ++host) {
    pcie.push_back(rates.pcie(host));
    network.push_back(rates.network(host));
  }
  const double assumed = all_have_gpus(sites_) ? assumed_inside_gbyte_s : assumed_memory_gbyte_s;
  double reference = least_of(network).value_or(assumed / inside_to_across);
  reference = least_of(inside).value_or(reference * inside_to_across);
  std::vector<bool> has_pair;
  for (const RankGroup& group : groups_.near) has_pair.push_back(group.size() > 1);
  inside_ = complete(inside, reference, has_pair);
  pcie_ = complete(pcie, reference / inside_to_across);
  network_ = complete(network, reference / inside_to_across);
}

StepModel::Rates StepModel::complete(const std::vector<std::optional<double>>& known,
                                     double assumed, const std::vector<bool>& counts) {
  Rates rates;
  std::optional<double> slowest;
  for (std::size_t i = 0; i < known.size(); ++i) {
    const double rate = known[i].value_or(assumed);
    rates.of.push_back(rate);
    rates.assumed.push_back(!known[i]);
    if (!counts.empty() && !counts[i]) continue;
    rates.is_assumed = rates.is_assumed || !known[i];
    slowest = std::min(slowest.value_or(rate), rate);
  }
  rates.slowest = slowest.value_or(assumed);
  return rates;
}

double StepModel::seconds(const MeshPlan& mesh, double gbytes) {
  const int shard = mesh.shard, inner = mesh.inner, replicate = mesh.replicate;
  double row = std::numeric_limits<double>::infinity(), column = row;
  const auto slowest = [this](double& least) {
    return [this, &least](const std::vector<int>& ranks) {
      least = std::min(least, rate(ranks).gbyte_s);
    };
  };
  if (shard > 1) each_shard_group(mesh, slowest(row));
  if (replicate > 1) each_replicate_group(mesh, slowest(column));
  const double part = gbytes / inner;
  return 3.0 * (shard - 1) / shard * part / row +
         2.0 * (replicate - 1) / replicate * part / shard / column;
}

bool StepModel::crosses(const MeshPlan& mesh) const {
  const int row = mesh.shard * mesh.inner;
  for (int first = 0; first < static_cast<int>(mesh.order.size()); first += row)
    for (int i = 1; i < row; ++i)
      if (groups_.near_of[at_index(mesh.order[at_index(first + i)])] !=
          groups_.near_of[at_index(mesh.order[at_index(first)])])
        return true;
  return false;
}

double StepModel::hop_us(int rank, bool leaves_near) const {
  if (sites_.at(rank).gpu < 0) return latencies_of_cpus.inside;
  const Neighbourhood& near = groups_.near[at_index(groups_.near_of[at_index(rank)])].where;
  const bool is_linked = near.kind != Neighbourhood::Kind::host && !leaves_near;
  return is_linked ? latencies_of_gpus.inside : latencies_of_gpus.pcie;
}

void StepModel::add(int rank, Part& part) const {
  const int near = groups_.near_of[at_index(rank)], host = sites_.at(rank).host;
  const double link = inside_.of[at_index(near)];
  const bool leaves_near = part.members > 0 && part.near != near;
  if (part.members > 0) part.latency_us += hop_us(rank, leaves_near);
  part.is_split = part.is_split || leaves_near;
  part.slowest = part.members == 0 ? link : std::min(part.slowest, link);
  if (part.is_split) part.slowest = std::min(part.slowest, pcie_.of[at_index(host)]);
  part.near = near;
  part.network += network_.of[at_index(host)];
  part.assumed_inside = part.assumed_inside || inside_.assumed[at_index(near)] ||
                        (part.is_split && pcie_.assumed[at_index(host)]);
  part.assumed_network = part.assumed_network || network_.assumed[at_index(host)];
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
    return {.gbyte_s = std::numeric_limits<double>::infinity()};
  }
  const Latencies& latencies = has_gpu ? latencies_of_gpus : latencies_of_cpus;
  GroupRate group{.gbyte_s = std::numeric_limits<double>::infinity(), .latency_us = latencies.base};
  group.latency_us += static_cast<double>(touched.size() - 1) * latencies.network;
  for (const std::size_t wide : touched) {
    const Part& part = parts_[wide];
    group.latency_us += part.latency_us;
    if (part.members > 1) {
      group.gbyte_s = std::min(group.gbyte_s, part.slowest * efficiency_inside);
      group.is_assumed = group.is_assumed || part.assumed_inside;
    }
    if (touched.size() > 1) {
      group.gbyte_s = std::min(group.gbyte_s, part.network * efficiency_across(touched.size()));
      group.is_assumed = group.is_assumed || part.assumed_network;
    }
    parts_[wide] = {};
  }
  return group;
}

std::string StepModel::Rates::text() const {
  return fmt::format("{:.4g} GB/s{}", slowest, is_assumed ? " (assumed)" : "");
}

std::string StepModel::rates_text() const {
  // True when some host has several near groups, so that traffic inside a host crosses PCIe.
  const bool splits_hosts = groups_.near.size() > groups_.wide.size();
  std::string text = fmt::format("{} a {} inside an island", inside_.text(),
                                 all_have_gpus(sites_) ? "GPU" : "rank");
  if (splits_hosts) text += fmt::format(", {} over PCIe", pcie_.text());
  if (groups_.wide.size() > 1) text += fmt::format(", {} over the network", network_.text());
  return text;
}

}  // namespace atoll_v1::atoll
