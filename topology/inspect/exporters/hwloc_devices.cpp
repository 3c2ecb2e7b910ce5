#include "inspect/exporters/hwloc_devices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <type_traits>

#include "facts.hpp"
#include "gpu_models.hpp"
#include "pcie_rate.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

using topology_sources::hex_numbers;
using topology_sources::HwlocPciDevice;

constexpr std::size_t most_bridges = 24;
constexpr unsigned most_domain = 0xffff;  // largest PCI domain in common builds of hwloc

auto address(const HwlocPciDevice& pci) {
  return std::tuple{pci.domain, pci.bus, pci.slot, pci.function};
}

bool contains(std::string_view text, std::string_view word) {
  return text.find(word) != std::string_view::npos;
}

// Reads a path such as "pci0000:17/00000000:17:01.0" into `slot`. Returns false when a part is
// malformed.
bool parse_path(std::string_view path, PciSlot& slot) {
  const auto slash = path.find('/');
  const std::string_view root = path.substr(0, slash);
  if (!root.starts_with("pci") || root.size() > 12) return false;
  const auto numbers = hex_numbers(root.substr(3), {":", ""});
  if (numbers.empty() || numbers[0] > most_domain || numbers[1] > 0xff) return false;
  std::vector<HwlocPciDevice> bridges;
  for (auto at = slash; at != std::string_view::npos; at = path.find('/', at + 1)) {
    HwlocPciDevice bridge;
    if (bridges.size() == most_bridges ||
        !topology_sources::parse_busid(path.substr(at + 1, path.find('/', at + 1) - at - 1),
                                       bridge) ||
        bridge.domain > most_domain)
      return false;
    bridges.push_back(bridge);
  }
  slot.root = root;
  slot.bridges = std::move(bridges);
  return true;
}

// Returns the payload bandwidth of a device's PCIe link in one direction, in GB/s; 0 when unknown.
double link_gbyte_s(const Facts& facts) {
  if (const auto stated = number_fact(facts, fact::pci_gbyte_s)) return *stated;
  const auto gt_s = number_fact(facts, fact::pci_gt_s);
  const auto width = number_fact(facts, fact::pci_width);
  if (!gt_s || !width) return 0;
  return pcie_gbyte_s(*gt_s, *width);
}

void set_pci(const Facts& facts, HwlocPciDevice& pci) {
  if (const auto ids = hex_numbers(get_fact(facts, fact::pci_device), {":", ""});
      !ids.empty() && std::ranges::max(ids) <= 0xffff && pci.vendor == 0) {
    pci.vendor = ids[0];
    pci.device = ids[1];
  }
  if (const auto number = hex_numbers(get_fact(facts, fact::pci_class), {""});
      !number.empty() && number[0] <= 0xffff && pci.pci_class == 0)
    pci.pci_class = number[0];
  const double gbyte_s = link_gbyte_s(facts);
  if (pci.link_gbyte_s <= 0 && gbyte_s > 0 && gbyte_s < 1e6) pci.link_gbyte_s = gbyte_s;
}

// Returns the PCI class of a network adapter with this link layer; 0 when the layer is unknown.
unsigned class_of(std::string_view layer) {
  if (layer == "infiniband") return 0x0207;
  if (layer == "omni-path") return 0x0208;
  if (layer == "ethernet" || layer == "slingshot" || layer == "efa") return 0x0200;
  return 0;
}

GpuDriver driver_by_name(const TopologyGpu& gpu) {
  const std::string_view device = get_fact(gpu.facts, fact::pci_device);
  if (device.starts_with("10de:")) return GpuDriver::nvml;
  if (device.starts_with("1002:")) return GpuDriver::rsmi;
  if (contains(gpu.model, "AMD") || contains(gpu.model, "Instinct") ||
      gpu.facts.contains(fact::gcn) || gpu.facts.contains(fact::xgmi_hive))
    return GpuDriver::rsmi;
  if (contains(gpu.model, "NVIDIA") || contains(gpu.model, "Tesla") ||
      gpu.uuid.starts_with("GPU-") || find_gpu_model(gpu) != nullptr)
    return GpuDriver::nvml;
  return GpuDriver::unknown;
}

class Arranger {
 public:
  Arranger(const Topology& topology, const HwlocLayout& layout, std::vector<std::string>& lost)
      : topology_(topology), layout_(layout), lost_(lost) {}

  HwlocDevices arrange() {
    for (const TopologyGpu& gpu : topology_.gpus) slot_of(gpu).gpus.push_back(&gpu);
    for (const TopologyNic& nic : topology_.nics) add_nic(nic);
    std::ranges::stable_sort(devices_.slots, {}, [](const std::unique_ptr<PciSlot>& slot) {
      return std::pair(!slot->has_address, address(slot->pci));
    });
    name_gpus();
    std::vector<std::string> moved;
    for (const Wish& wish : wishes_)
      if (!layout_.is_true(wish.slot->place, wish.numa, wish.package)) moved.push_back(wish.id);
    say("the NUMA node or package of", moved);
    say("the bus id of", without_address_);
    say("the PCI path of", without_path_);
    return std::move(devices_);
  }

 private:
  template <class Device>
  PciSlot& slot_of(const Device& device) {
    HwlocPciDevice pci;
    bool has_address =
        topology_sources::parse_busid(device.busid, pci) && pci.domain <= most_domain;
    // If two GPUs have the same bus id, the second one is written without a bus id.
    if (std::is_same_v<Device, TopologyGpu> && has_address)
      has_address = gpu_addresses_.insert(topology_sources::busid(pci)).second;
    if (!has_address && !device.busid.empty()) without_address_.push_back(device.id);
    PciSlot*& known = by_address_[has_address ? topology_sources::busid(pci) : device.id];
    if (known == nullptr) {
      known = devices_.slots.emplace_back(std::make_unique<PciSlot>()).get();
      if (has_address) known->pci = pci;
      known->has_address = has_address;
      known->place = layout_.place(device.numa, device.package);
    }
    if (has_address && known->root.empty() && !device.pci_path.empty() &&
        !parse_path(device.pci_path, *known))
      without_path_.push_back(device.id);
    wishes_.push_back({device.id, device.numa, device.package, known});
    if (has_address) set_pci(device.facts, known->pci);
    return *known;
  }

  // Adds a NIC as a port of its adapter: "mlx4_0:2" is the second port of the adapter mlx4_0.
  void add_nic(const TopologyNic& nic) {
    PciSlot& slot = slot_of(nic);
    if (slot.has_address && slot.pci.pci_class == 0) slot.pci.pci_class = class_of(nic.layer);
    for (AdapterEntry& adapter : slot.adapters)
      if (nic.name == fmt::format("{}:{}", adapter.name, adapter.ports.size() + 1)) {
        adapter.ports.push_back(&nic);
        return;
      }
    slot.adapters.push_back({nic.name, {&nic}});
  }

  void name_gpus() {
    bool xgmi = false, nvlink = false;
    for (const TopologyLink& link : topology_.links) {
      xgmi = xgmi || link.type == "xgmi";
      nvlink = nvlink || link.type == "nvlink";
    }
    std::map<GpuDriver, std::vector<const TopologyGpu*>> families;
    for (const auto& slot : devices_.slots)
      for (const TopologyGpu* gpu : slot->gpus) {
        GpuDriver driver = driver_by_name(*gpu);
        if (driver == GpuDriver::unknown && xgmi != nvlink)
          driver = xgmi ? GpuDriver::rsmi : GpuDriver::nvml;
        families[driver].push_back(gpu);
      }
    for (const auto& [driver, gpus] : families) {
      std::set<int> numbers;
      for (const TopologyGpu* gpu : gpus)
        if (gpu->index >= 0) numbers.insert(gpu->index);
      const bool numbered = numbers.size() == gpus.size();
      if (!numbered)
        lost_.emplace_back("the numbers of GPUs: GPUs are numbered in the order of bus ids");
      for (std::size_t i = 0; i < gpus.size(); ++i)
        devices_.gpus[gpus[i]->id] = {driver, numbered ? gpus[i]->index : static_cast<int>(i)};
    }
  }

  void say(std::string_view what, const std::vector<std::string>& ids) {
    if (!ids.empty()) lost_.push_back(fmt::format("{} {}", what, enumerate(ids)));
  }

  struct Wish {
    std::string id;
    int numa, package;
    const PciSlot* slot;
  };

  const Topology& topology_;
  const HwlocLayout& layout_;
  std::vector<std::string>& lost_;
  std::map<std::string, PciSlot*> by_address_;
  std::set<std::string> gpu_addresses_;
  std::vector<Wish> wishes_;
  std::vector<std::string> without_address_, without_path_;
  HwlocDevices devices_;
};

}  // namespace

const DriverNames& names_of(GpuDriver driver) {
  static constexpr std::array<DriverNames, 3> names{{{"nvml", " subtype=\"NVML\"", "NVIDIAUUID"},
                                                     {"rsmi", " subtype=\"RSMI\"", "AMDUUID"},
                                                     {"gpu", "", ""}}};
  return names[static_cast<std::size_t>(driver)];
}

HwlocDevices arrange_devices(const Topology& topology, const HwlocLayout& layout,
                             std::vector<std::string>& lost) {
  return Arranger(topology, layout, lost).arrange();
}

// Recognises RDMA devices by their names: the kernel names these devices after their drivers.
bool is_openfabrics(const TopologyNic& nic) {
  if (nic.layer == "infiniband" || nic.layer == "omni-path" || nic.layer == "efa") return true;
  if (nic.layer == "slingshot") return false;
  if (get_fact(nic.facts, fact::rdma) == "yes") return true;
  const std::string_view interface = get_fact(nic.facts, fact::netdev);
  if (!nic.adapter.empty() || nic.facts.contains(fact::node_guid) ||
      nic.facts.contains(fact::lid) || (!interface.empty() && interface != nic.name))
    return true;
  constexpr std::array drivers{"mlx", "bnxt_re", "irdma", "rdma", "roce", "hfi", "qib",
                               "efa", "erdma",   "rxe",   "siw",  "bxi",  "ibp", "mana_"};
  return std::ranges::any_of(drivers,
                             [&](const char* driver) { return nic.name.starts_with(driver); });
}

std::string_view port_state_number(std::string_view state) {
  if (state == "down") return "1";
  if (state == "init") return "2";
  if (state == "armed") return "3";
  if (state == "active") return "4";
  if (state == "deferred") return "5";
  return "";
}

}  // namespace atoll_v1::atoll
