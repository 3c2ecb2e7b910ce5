// What a mesh costs that does not follow the islands.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "atoll/topology.hpp"
#include "mesh_sites.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

using Kind = Neighbourhood::Kind;

// A large job would repeat itself for every row.
constexpr std::size_t most_findings = 8;

void check_order(const MeshPlan& plan, std::size_t size) {
  const auto count = static_cast<std::int64_t>(plan.replicate) * plan.shard;
  if (plan.replicate < 1 || plan.shard < 1 || count != static_cast<std::int64_t>(size))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a mesh of {}x{} does not fit {}", plan.replicate, plan.shard,
                            plural(size, "rank")));
  std::vector<bool> seen(size, false);
  for (const int rank : plan.order) {
    const auto number = static_cast<std::size_t>(rank);
    if (rank < 0 || number >= size || seen[number])
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the order of a mesh names rank {} wrongly or twice", rank));
    seen[number] = true;
  }
  if (plan.order.size() != size)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the order of a mesh names {} of {} ranks", plan.order.size(), size));
}

class Crossings {
 public:
  Crossings(const Topology& topology, const MeshSites& sites) : sites_(sites), names_(topology) {
    for (const TopologyNic& nic : topology.nics)
      if (nic.state == "active" && nic.rate_gbit_s) nic_gbyte_s_[nic.host] += *nic.rate_gbit_s / 8;
  }

  // Empty when the row lies in one neighbourhood.
  std::string describe(int row, const std::vector<int>& ranks) const {
    std::map<Neighbourhood, std::vector<int>> parts;
    std::set<std::string> hosts;
    for (const int rank : ranks) {
      parts[sites_.nearest(rank)].push_back(rank);
      hosts.insert(sites_.hosts[static_cast<std::size_t>(sites_.at(rank).host)]);
    }
    if (parts.size() < 2) return "";
    std::string joined;
    std::size_t shown = 0;
    for (const auto& [where, members] : parts) {
      if (++shown > 4) break;
      joined += fmt::format("{}{} ({})", shown == 1 ? "" : ", ", label(where),
                            plural(members.size(), "rank"));
    }
    if (parts.size() > 4) joined += fmt::format(" and {} more", parts.size() - 4);
    return fmt::format("shard group {} crosses islands: it joins {}{}", row, joined,
                       cost(parts, hosts));
  }

 private:
  std::string label(const Neighbourhood& where) const {
    switch (where.kind) {
      case Kind::emulated:
        return fmt::format("emulated island {}", where.number);
      case Kind::island: {
        const Island& island = sites_.islands[static_cast<std::size_t>(where.number)];
        return fmt::format("{} island {}", fabric_name(island.fabric), names_.gpus(island.gpus));
      }
      case Kind::host:
        return "host " + names_.host(sites_.hosts[static_cast<std::size_t>(where.number)]);
    }
    return "";
  }

  // What lies between the parts, in figures where they are known.
  std::string cost(const std::map<Neighbourhood, std::vector<int>>& parts,
                   const std::set<std::string>& hosts) const {
    if (parts.begin()->first.kind == Kind::emulated) return "";
    if (hosts.size() == 1) return ", over the PCIe and socket links of the host" + inside(parts);
    std::optional<double> slowest;
    for (const std::string& host : hosts) {
      const auto rate = nic_gbyte_s_.find(host);
      if (rate == nic_gbyte_s_.end()) return ", over the network" + inside(parts);
      slowest = std::min(slowest.value_or(rate->second), rate->second);
    }
    return fmt::format(", over the network at {:.4g} GB/s a host{}", *slowest, inside(parts));
  }

  std::string inside(const std::map<Neighbourhood, std::vector<int>>& parts) const {
    std::optional<double> fastest;
    for (const auto& [where, members] : parts) {
      if (where.kind != Kind::island) continue;
      const auto rate = sites_.islands[static_cast<std::size_t>(where.number)].gpu_gbyte_s;
      if (rate) fastest = std::max(fastest.value_or(0), *rate);
    }
    return fastest ? fmt::format(", not at the {:.4g} GB/s a GPU of an island", *fastest) : "";
  }

  const MeshSites& sites_;
  DisplayNames names_;
  std::map<std::string, double> nic_gbyte_s_;
};

}  // namespace

std::vector<std::string> check_mesh(const Topology& topology, const std::vector<RankSite>& ranks,
                                    const MeshPlan& plan, const MeshPlanOptions& options) {
  const MeshSites sites = locate(topology, ranks, options);
  check_order(plan, ranks.size());
  const Crossings crossings(topology, sites);
  std::vector<std::string> findings;
  std::size_t unsaid = 0;
  for (int row = 0; row < plan.replicate; ++row) {
    const auto begin = plan.order.begin() + std::ptrdiff_t{row} * plan.shard;
    std::string finding = crossings.describe(row, std::vector<int>(begin, begin + plan.shard));
    if (finding.empty()) continue;
    if (findings.size() == most_findings)
      ++unsaid;
    else
      findings.push_back(std::move(finding));
  }
  if (unsaid > 0) {
    const bool one = unsaid == 1;
    findings.push_back(
        fmt::format("{} more cross{} islands too", plural(unsaid, "shard group"), one ? "es" : ""));
  }
  return findings;
}

}  // namespace atoll_v1::atoll
