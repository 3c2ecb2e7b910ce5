// Lists the information in a topology that hwloc's XML cannot hold. The user of an export sees this
// list.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "facts.hpp"
#include "inspect/exporters/hwloc_devices.hpp"
#include "sources/hwloc_graph.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

// Facts that the exporter writes into the XML as attributes or <info> elements.
constexpr std::array kept_facts{fact::kernel_release, fact::pci_device, fact::pci_class,
                                fact::pci_gbyte_s,    fact::xgmi_hive,  fact::lid,
                                fact::node_guid,      fact::rdma};

void collect(const Facts& facts, std::set<std::string>& names) {
  for (const auto& [name, unused] : facts)
    if (std::ranges::find(kept_facts, name) == kept_facts.end()) names.insert(name);
}

// Returns the link layer that atoll's importer derives for a NIC in the exported file.
std::string_view read_layer(const TopologyNic& nic, const PciSlot& slot) {
  topology_sources::NicTraits traits{.vendor = slot.pci.vendor,
                                     .pci_class = slot.pci.pci_class,
                                     .name = nic.name,
                                     .subtype = nic.layer == "slingshot" ? "Slingshot" : "",
                                     .state = nic.state};
  if (const auto lid = number_fact(nic.facts, fact::lid)) traits.lid = static_cast<long long>(*lid);
  return nic_layer(traits);
}

}  // namespace

void find_lost(const Topology& topology, const HwlocDevices& devices,
               std::vector<std::string>& lost) {
  const TopologyHost& host = topology.hosts.front();
  std::set<std::string> host_facts, gpu_facts, nic_facts;
  std::vector<std::string> partitioned, nameless, rates, layers, states;
  collect(host.facts, host_facts);
  for (const TopologyGpu& gpu : topology.gpus) {
    collect(gpu.facts, gpu_facts);
    if (!gpu.partitions.empty()) partitioned.push_back(gpu.id);
    if (!gpu.uuid.empty() && devices.gpus.at(gpu.id).driver == GpuDriver::unknown)
      nameless.push_back(gpu.id);
  }
  for (const auto& slot : devices.slots)
    for (const AdapterEntry& adapter : slot->adapters)
      for (const TopologyNic* nic : adapter.ports) {
        collect(nic->facts, nic_facts);
        if (nic->rate_gbit_s) rates.push_back(nic->id);
        if (!nic->layer.empty() && read_layer(*nic, *slot) != nic->layer) layers.push_back(nic->id);
        if (!nic->state.empty() && port_state_number(nic->state).empty()) states.push_back(nic->id);
      }
  const auto say = [&](std::string_view what, const auto& names) {
    if (!names.empty())
      lost.push_back(fmt::format("{} {}", what,
                                 enumerate(std::vector<std::string>(names.begin(), names.end()))));
  };
  say("facts of the host:", host_facts);
  say("facts of GPUs:", gpu_facts);
  say("the partitions of", partitioned);
  say("the UUID of", nameless);
  say("facts of NICs:", nic_facts);
  say("the rate of", rates);
  say("the link layer of", layers);
  say("the state of", states);
  if (host.id != host.name) lost.push_back(fmt::format("the id of the host, {}", host.id));
  if (host.threads < host.host_threads)
    lost.push_back(
        fmt::format("the information that the process may use only {} of {} hardware threads",
                    host.threads, host.host_threads));
  if (host.host_cores == 0)
    lost.emplace_back(
        "the information that the number of cores is unknown: the smallest possible number is "
        "written");
  else if (host.numa_nodes > 1 || host.packages > 1)
    lost.emplace_back("which cores are near which NUMA node: they are distributed evenly");
  if (!topology.paths.empty())
    lost.push_back(fmt::format("{} between devices that have no PCI path",
                               plural(topology.paths.size(), "distance")));
  if (!topology.conflicts.empty())
    lost.push_back(plural(topology.conflicts.size(), "conflict") + " between sources");
  for (const TopologyDocument& document : topology.documents)
    lost.push_back(
        fmt::format("contents of {} that only {} can hold", document.origin, document.format));
}

}  // namespace atoll_v1::atoll
