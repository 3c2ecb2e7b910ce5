// Lists the differences between two machines.
//
// Hosts are matched by name; if both machines have one host, these two are compared. Devices are
// matched by the part of their id after the host's id. Numbers of links are added up for each pair
// of ends. Facts that change from minute to minute (counters, throttling, the speed of an idle PCIe
// link) are not compared, and neither are notes about the files.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "atoll/tooling/inspection.hpp"
#include "facts.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

using Members = std::map<std::string, std::string>;
// Maps the name of each part of a machine (host, device, link, path or island) to the properties of
// the part. The same part has the same name in both machines.
using Things = std::map<std::string, Members>;

void add_facts(const Facts& facts, Members& members) {
  for (const auto& [name, value] : facts)
    if (!is_momentary(name) && !name.starts_with(fact::note_prefix)) members[name] = value;
}

void add(Members& members, const char* name, const std::string& value) {
  if (!value.empty()) members[name] = value;
}

void add(Members& members, const char* name, int value) {
  if (value >= 0) members[name] = std::to_string(value);
}

class Flattened {
 public:
  // `names` holds, for each host of the topology, the name that identifies the host in both
  // machines.
  Flattened(const Topology& topology, const std::vector<std::string>& names) {
    for (std::size_t i = 0; i < topology.hosts.size(); ++i) names_[topology.hosts[i].id] = names[i];
    for (const TopologyHost& host : topology.hosts) add_host(host);
    for (const TopologyGpu& gpu : topology.gpus) add_gpu(gpu);
    for (const TopologyNic& nic : topology.nics) add_nic(nic);
    for (const TopologyLink& link : topology.links) add_link(link);
    for (const TopologyPath& path : topology.paths) add_path(path);
    const auto islands = find_islands(topology);
    for (const Island& island : islands) add_island(island);
  }

  const Things& things() const { return things_; }

 private:
  std::string shared(const std::string& id) const {
    for (auto slash = id.rfind('/'); slash != std::string::npos && slash > 0;
         slash = id.rfind('/', slash - 1))
      if (const auto host = names_.find(id.substr(0, slash)); host != names_.end())
        return host->second + id.substr(slash);
    const auto host = names_.find(id);
    return host == names_.end() ? id : host->second;
  }

  void add_host(const TopologyHost& host) {
    Members& members = things_[shared(host.id)];
    add(members, "packages", host.packages);
    add(members, "NUMA nodes", host.numa_nodes);
    add(members, "cores", host.host_cores);
    add(members, "threads", host.host_threads);
    add(members, "memory bytes", std::to_string(host.memory_bytes));
    add_facts(host.facts, members);
  }

  // Adds the properties that GPUs and NICs have in common. Returns all properties of the device.
  template <class Device>
  Members& add_device(const Device& device) {
    Members& members = things_[shared(device.id)];
    add(members, "bus id", device.busid);
    add(members, "NUMA node", device.numa);
    add(members, "package", device.package);
    add(members, "PCI path", device.pci_path);
    add_facts(device.facts, members);
    return members;
  }

  void add_gpu(const TopologyGpu& gpu) {
    Members& members = add_device(gpu);
    add(members, "UUID", gpu.uuid);
    add(members, "model", gpu.model);
    members["partitions"] = std::to_string(gpu.partitions.size());
  }

  void add_nic(const TopologyNic& nic) {
    Members& members = add_device(nic);
    add(members, "adapter", nic.adapter);
    add(members, "layer", nic.layer);
    add(members, "state", nic.state);
    if (nic.rate_gbit_s) members["Gbit/s"] = fmt::format("{:g}", *nic.rate_gbit_s);
    if (nic.is_virtual) members["virtual"] = "yes";
  }

  void add_link(const TopologyLink& link) {
    std::string a = shared(link.a), b = shared(link.b);
    if (b < a) std::swap(a, b);
    Members& members = things_[fmt::format("{} - {} ({})", a, b, link.type)];
    const auto counted = members.find("links");
    const int before = counted == members.end() ? 0 : std::stoi(counted->second);
    members["links"] = std::to_string(before + link.count);
    if (link.gbyte_s) members["GB/s"] = fmt::format("{:.6g}", *link.gbyte_s);
  }

  void add_path(const TopologyPath& path) {
    std::string a = shared(path.a), b = shared(path.b);
    if (b < a) std::swap(a, b);
    things_[fmt::format("{} - {} (path)", a, b)]["level"] = name(path.level);
  }

  void add_island(const Island& island) {
    if (island.gpus.empty()) return;
    Members& members = things_["island of " + shared(island.gpus.front())];
    members["GPUs"] = std::to_string(island.gpus.size());
    members["known"] = name(island.state);
    if (island.gpu_gbyte_s) members["GB/s a GPU"] = fmt::format("{:.4g}", *island.gpu_gbyte_s);
  }

  std::map<std::string, std::string> names_;
  Things things_;
};

std::vector<std::string> names_of(const Topology& topology) {
  const DisplayNames shown(topology);
  std::vector<std::string> names;
  for (const TopologyHost& host : topology.hosts) names.push_back(shown.host(host.id));
  return names;
}

void compare(const std::string& thing, const Members& a, const Members& b,
             std::vector<std::string>& lines) {
  std::set<std::string> members;
  for (const auto* side : {&a, &b})
    for (const auto& [member, value] : *side) members.insert(member);
  for (const std::string& member : members) {
    const auto before = a.find(member), after = b.find(member);
    if (before != a.end() && after != b.end() && before->second == after->second) continue;
    lines.push_back(fmt::format("~ {}: {} {} -> {}", thing, member,
                                before == a.end() ? "unknown" : before->second,
                                after == b.end() ? "unknown" : after->second));
  }
}

}  // namespace

std::vector<std::string> diff(const Topology& a, const Topology& b) {
  std::vector<std::string> names_a = names_of(a), names_b = names_of(b);
  if (names_a.size() == 1 && names_b.size() == 1) names_b = names_a;
  const Flattened flat_a(a, names_a), flat_b(b, names_b);
  std::vector<std::string> lines;
  for (const auto& [thing, members] : flat_a.things()) {
    const auto other = flat_b.things().find(thing);
    if (other == flat_b.things().end())
      lines.push_back("- " + thing);
    else
      compare(thing, members, other->second, lines);
  }
  for (const auto& [thing, members] : flat_b.things())
    if (!flat_a.things().contains(thing)) lines.push_back("+ " + thing);
  for (std::string& line : lines) line = printable(line);
  return lines;
}

}  // namespace atoll_v1::atoll
