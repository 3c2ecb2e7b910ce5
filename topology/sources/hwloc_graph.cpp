// Converts hwloc's objects to hosts, GPUs and NICs. hwloc_links.cpp converts the matrices of links.
//
// A PCI device is a GPU if it carries an OS device of NVML, CUDA or ROCm SMI. When hwloc was built
// without these libraries, the PCI class and vendor decide. A NIC is an OS device of type
// OpenFabrics, or a Slingshot adapter, which hwloc reports as Ethernet. A device is near the
// hardware threads of its closest ancestor that has any.
#include "sources/hwloc_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <tuple>

#include "facts.hpp"
#include "gpu_models.hpp"
#include "parse_number.hpp"
#include "rdma_name.hpp"
#include "sources/pci_address.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

constexpr unsigned vendor_nvidia = 0x10de;
constexpr unsigned vendor_amd = 0x1002;
constexpr unsigned class_display = 0x03;  // upper byte of the PCI class
constexpr unsigned class_accelerator = 0x1200;
constexpr unsigned class_display_other = 0x0380;
constexpr unsigned class_ethernet = 0x0200;
constexpr unsigned class_infiniband = 0x0207;
constexpr unsigned class_omni_path = 0x0208;
constexpr std::size_t most_instances = 64;
constexpr int most_ports = 16;

// Returns the number after a prefix: 3 for the name "nvml3" and the prefix "nvml". Returns -1 if
// the name has another form.
int number_after(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return -1;
  return parse_number<int>(name.substr(prefix.size())).value_or(-1);
}

// Anonymized files contain zeros in place of ids, so an id of zeros identifies nothing.
bool is_zero(std::string_view id) {
  if (id.starts_with("GPU-")) id.remove_prefix(4);
  return id.find_first_not_of("0-:x") == std::string_view::npos;
}

std::string identity(std::string_view id) { return is_zero(id) ? std::string() : std::string(id); }

// hwloc shows GPU memory as a NUMA node near processors, but no thread can run there.
bool has_cores(const HwlocNode& node) { return !node.cpus.empty() && node.subtype != "GPUMemory"; }

// Properties that determine the link layer of a network adapter.
struct NicTraits {
  unsigned vendor = 0, pci_class = 0;  // vendor and class of the PCI device; 0 if unknown
  std::string_view name = {}, subtype = {}, state = {};
  std::optional<long long> lid = {};
};

// Returns TopologyNic::layer; "" when the properties do not determine it.
std::string_view nic_layer(const NicTraits& nic) {
  constexpr long long no_lid = 0xffff;  // LID of a port before a subnet manager assigns one
  if (nic.vendor == vendor_cray || nic.subtype == "Slingshot") return "slingshot";
  if (nic.vendor == vendor_amazon) return "efa";
  if (nic.name.starts_with("hfi1") ||
      (nic.vendor == vendor_intel && nic.pci_class == class_omni_path))
    return "omni-path";
  if (nic.pci_class == class_infiniband) return "infiniband";
  if (nic.pci_class == class_ethernet) return "ethernet";
  if (!nic.lid) return layer_of_rdma_name(nic.name);
  if (*nic.lid > 0 && *nic.lid < no_lid) return "infiniband";
  // An InfiniBand port gets its LID before it becomes active, so an active port without a LID is an
  // Ethernet port.
  return nic.state == "active" ? "ethernet" : "";
}

// Returns the provider whose machines have this product name or asset tag; "" for any other. The
// texts are those of https://github.com/canonical/cloud-init/blob/main/tools/ds-identify.
std::string_view cloud_of(std::string_view product, std::string_view asset_tag) {
  if (asset_tag == "7783-7084-3265-9085-8269-3286-77") return "azure";
  if (asset_tag == "OracleCloud.com") return "oracle";
  return product == "Google Compute Engine" ? "google" : "";
}

// Returns the fact about a package: "18 cores, L3 45 MiB, 18 x L2 256 KiB, 18 x L1d 32 KiB".
std::string package_text(const HwlocPackage& package) {
  constexpr std::uint64_t kib = 1024, mib = kib * kib;
  std::string text = plural(static_cast<std::size_t>(package.cores), "core");
  for (const auto& [kind, count] : package.caches) {
    const auto [level, bytes] = kind;
    text += fmt::format(", {}L{}{} {} {}", count == 1 ? "" : fmt::format("{} x ", count), level,
                        level == 1 ? "d" : "", bytes % mib == 0 ? bytes / mib : bytes / kib,
                        bytes % mib == 0 ? "MiB" : "KiB");
  }
  return text;
}

// A GPU that has no id yet, with the numbers that each library gives it.
struct Candidate {
  TopologyGpu gpu;
  std::vector<std::size_t> os;  // indices of the GPU's OS devices
  std::optional<std::size_t> pci;
  int nvml = -1, cuda = -1, rsmi = -1;
};

struct Locality {
  int numa = -1, package = -1;
};

class HostReader {
 public:
  HostReader(const HwlocMachine& machine, TopologyHost host, Topology& topology)
      : machine_(machine), host_(std::move(host)), topology_(topology) {}

  void read() {
    count_cores();
    sort_devices();
    add_gpus();
    for (std::size_t i = 0; i < machine_.packages.size(); ++i)
      names_.ids[{HwlocEndKind::package, i}] =
          fmt::format("{}/package{}", host_.id, machine_.packages[i].number);
    add_nics();
    names_.host = host_.id;
    host_.gpu_links = add_links(machine_, names_, topology_);
    set_fact(host_.facts, fact::hwloc_version, machine_.version);
    set_fact(host_.facts, fact::kernel_release, machine_.kernel);
    set_fact(host_.facts, fact::cloud, cloud_of(machine_.product, machine_.asset_tag));
    for (const HwlocPackage& package : machine_.packages)
      if (package.cores > 0 && package.number >= 0)
        set_fact(host_.facts, fmt::format("{}{}", fact::package_prefix, package.number),
                 package_text(package));
    topology_.hosts.push_back(std::move(host_));
  }

 private:
  void count_cores() {
    CpuSet usable = machine_.usable;
    usable &= machine_.threads;
    host_.packages = static_cast<int>(machine_.packages.size());
    // Threads of the NUMA nodes that were counted. Two kinds of memory near the same threads count
    // as one node.
    std::vector<const CpuSet*> seen;
    for (const HwlocNode& node : machine_.nodes) {
      if (!has_cores(node)) continue;
      host_.memory_bytes += node.memory_bytes;
      if (std::ranges::any_of(seen, [&](const CpuSet* cpus) { return *cpus == node.cpus; }))
        continue;
      seen.push_back(&node.cpus);
      ++host_.numa_nodes;
    }
    host_.host_cores = static_cast<int>(machine_.cores.size());
    host_.cores = static_cast<int>(std::ranges::count_if(
        machine_.cores, [&](const CpuSet& core) { return core.intersects(usable); }));
    host_.host_threads = machine_.thread_count;
    host_.threads = usable.count();
    if (host_.host_cores == 0) {  // some virtual machines show threads but no cores
      host_.host_cores = host_.host_threads;
      host_.cores = host_.threads;
    }
  }

  // Returns the NUMA node and the package of a set of threads, and -1 for a number that is
  // ambiguous.
  Locality find_locality(const CpuSet& cpus) const {
    Locality found;
    const CpuSet* near = nullptr;
    for (const HwlocNode& node : machine_.nodes) {
      if (!has_cores(node) || !node.cpus.intersects(cpus)) continue;
      if (near != nullptr && *near != node.cpus) {
        found.numa = -1;
        break;
      }
      if (near == nullptr) found.numa = node.number;
      near = &node.cpus;
    }
    int packages = 0;
    for (const HwlocPackage& package : machine_.packages)
      if (package.cpus.intersects(cpus)) found.package = ++packages == 1 ? package.number : -1;
    return found;
  }

  // Sets NUMA node and package of a GPU or NIC.
  template <class Device>
  void place(const std::optional<std::size_t>& locality, Device& device) {
    if (!locality) return;
    const auto [found, is_new] = localities_.try_emplace(*locality);
    if (is_new) found->second = find_locality(machine_.localities[*locality]);
    device.numa = found->second.numa;
    device.package = found->second.package;
  }

  void require_room(std::size_t gpus, std::ptrdiff_t offset) const {
    if (gpus == most_hwloc_gpus)
      fail(machine_, offset, fmt::format("more than {} GPUs", most_hwloc_gpus));
  }

  // hwloc orders devices by locality. This function sorts them by bus id, the order in which
  // drivers number devices.
  void sort_devices() {
    pci_order_.resize(machine_.pci.size());
    std::iota(pci_order_.begin(), pci_order_.end(), std::size_t{0});
    std::ranges::stable_sort(pci_order_, {}, [&](std::size_t i) {
      const HwlocPciDevice& at = machine_.pci[i];
      return std::tuple{at.domain, at.bus, at.slot, at.function};
    });
    children_.resize(machine_.pci.size());
    for (std::size_t i = 0; i < machine_.os.size(); ++i)
      if (const auto pci = machine_.os[i].pci) children_[*pci].push_back(i);
  }

  void add_gpus() {
    int switches = 0;
    for (const std::size_t pci : pci_order_) {
      const HwlocPciDevice& device = machine_.pci[pci];
      // NVSwitches are recognized by subtype, since some show no vendor.
      if (device.subtype == "NVSwitch") {
        names_.ids[{HwlocEndKind::pci, pci}] = fmt::format("{}/nvswitch{}", host_.id, switches++);
        continue;
      }
      Candidate gpu;
      gpu.pci = pci;
      gpu.os = children_[pci];
      number(gpu);
      if (!is_gpu(device, gpu)) continue;
      require_room(gpus_.size(), device.offset);
      describe(device, gpu);
      gpus_.push_back(std::move(gpu));
    }
    add_gpus_without_pci();
    number_gpus();
  }

  void number(Candidate& gpu) const {
    for (const std::size_t i : gpu.os) {
      const HwlocOsDevice& device = machine_.os[i];
      if (device.kind != HwlocOsKind::other) continue;  // a network interface may be called "nvml0"
      const auto lower = [&](int& least, std::string_view prefix) {
        const int found = number_after(device.name, prefix);
        if (found >= 0 && (least < 0 || found < least)) least = found;
      };
      lower(gpu.nvml, "nvml");
      lower(gpu.cuda, "cuda");
      lower(gpu.rsmi, "rsmi");
    }
  }

  // Graphics units inside AMD processors have the PCI class of a graphics card, so only ROCm
  // identifies AMD GPUs of that class.
  static bool is_gpu(const HwlocPciDevice& device, const Candidate& gpu) {
    if (std::max({gpu.nvml, gpu.cuda, gpu.rsmi}) >= 0) return true;
    if (device.vendor == vendor_nvidia) return (device.pci_class >> 8) == class_display;
    return device.vendor == vendor_amd &&
           (device.pci_class == class_accelerator || device.pci_class == class_display_other);
  }

  void describe(const HwlocPciDevice& device, Candidate& candidate) {
    TopologyGpu& gpu = candidate.gpu;
    gpu.busid = busid(device);
    gpu.pci_path = device.path;
    place(device.locality, gpu);
    set_pci_facts(device, gpu.facts);
    describe_os(candidate);
    if (gpu.model.empty()) gpu.model = device.model;
    if (gpu.model.empty()) gpu.model = model_of_pci_device(get_fact(gpu.facts, fact::pci_device));
  }

  static void set_pci_facts(const HwlocPciDevice& device, Facts& facts) {
    if (device.vendor != 0)
      set_fact(facts, fact::pci_device, fmt::format("{:04x}:{:04x}", device.vendor, device.device));
    if (device.pci_class != 0)
      set_fact(facts, fact::pci_class, fmt::format("{:04x}", device.pci_class));
    if (device.link_gbyte_s > 0)
      set_fact(facts, fact::pci_gbyte_s, fmt::format("{:.6g}", device.link_gbyte_s));
  }

  // Adds what hwloc's NVML, CUDA and ROCm SMI plugins know about the GPU.
  void describe_os(Candidate& candidate) const {
    TopologyGpu& gpu = candidate.gpu;
    std::vector<const HwlocOsDevice*> instances;
    for (const std::size_t i : candidate.os) {
      const HwlocOsDevice& device = machine_.os[i];
      const bool driver = device.name.starts_with("nvml") || device.name.starts_with("rsmi");
      if (const auto model = device.info("GPUModel"); driver || gpu.model.empty())
        if (!model.empty()) gpu.model = model;
      if (number_after(device.name, "rsmi") >= 0) instances.push_back(&device);
      for (const char* key : {"NVIDIAUUID", "AMDUUID"})
        if (gpu.uuid.empty()) gpu.uuid = identity(device.info(key));
      set_fact(gpu.facts, fact::xgmi_hive, hive(device.info("XGMIHiveID")));
    }
    if (instances.size() < 2) return;
    if (instances.size() > most_instances)
      fail(machine_, instances[0]->offset,
           fmt::format("more than {} partitions of one GPU", most_instances));
    std::ranges::sort(instances, {},
                      [](const HwlocOsDevice* os) { return number_after(os->name, "rsmi"); });
    gpu.partitions = identities(instances);
  }

  // Returns the UUIDs of the instances, or their serial numbers or names, whichever are all
  // different.
  static std::vector<std::string> identities(const std::vector<const HwlocOsDevice*>& instances) {
    for (const char* key : {"AMDUUID", "AMDSerial"}) {
      std::vector<std::string> ids;
      std::set<std::string> different;
      for (const HwlocOsDevice* device : instances) {
        ids.push_back(identity(device->info(key)));
        if (!ids.back().empty()) different.insert(ids.back());
      }
      if (different.size() == instances.size()) return ids;
    }
    std::vector<std::string> names;
    names.reserve(instances.size());
    for (const HwlocOsDevice* device : instances) names.push_back(device->name);
    return names;
  }

  // Removes "0x" and leading zeros from the id of an xGMI hive; "0" for no hive.
  static std::string hive(std::string_view id) {
    if (id.empty()) return {};
    if (id.starts_with("0x")) id.remove_prefix(2);
    const auto first = id.find_first_not_of('0');
    return first == std::string_view::npos ? "0" : std::string(id.substr(first));
  }

  // Adds GPUs that drivers report but whose PCI devices hwloc does not see, as in some virtual
  // machines.
  void add_gpus_without_pci() {
    const bool has_nvml = std::ranges::any_of(machine_.os, [](const HwlocOsDevice& device) {
      return number_after(device.name, "nvml") >= 0;
    });
    std::vector<Candidate> found;
    for (std::size_t i = 0; i < machine_.os.size(); ++i) {
      const HwlocOsDevice& device = machine_.os[i];
      if (device.pci) continue;
      Candidate gpu;
      gpu.os = {i};
      number(gpu);
      if (std::max(gpu.nvml, gpu.rsmi) < 0 && (has_nvml || gpu.cuda < 0)) continue;
      require_room(gpus_.size() + found.size(), device.offset);
      describe_os(gpu);
      place(device.locality, gpu.gpu);
      found.push_back(std::move(gpu));
    }
    std::ranges::stable_sort(found, {}, [](const Candidate& gpu) {
      return std::max({gpu.nvml, gpu.cuda, gpu.rsmi});
    });
    std::ranges::move(found, std::back_inserter(gpus_));
  }

  // Numbers the GPUs. CUDA's numbers depend on CUDA_VISIBLE_DEVICES, so they are used only without
  // NVML. ROCm numbers partitions, so its numbers are used only when no GPU is partitioned.
  void number_gpus() {
    const auto any = [&](auto&& holds) { return std::ranges::any_of(gpus_, holds); };
    const bool has_nvml = any([](const Candidate& gpu) { return gpu.nvml >= 0; });
    const bool partitioned = any([](const Candidate& gpu) { return !gpu.gpu.partitions.empty(); });
    std::set<int> numbers;
    for (Candidate& gpu : gpus_) {
      int& index = gpu.gpu.index = gpu.nvml;
      if (index < 0 && !has_nvml) index = gpu.cuda;
      if (index < 0 && !partitioned) index = gpu.rsmi;
      if (index >= 0) numbers.insert(index);
    }
    const bool numbered = numbers.size() == gpus_.size();
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      TopologyGpu& gpu = gpus_[i].gpu;
      gpu.host = host_.id;
      gpu.id = fmt::format("{}/gpu{}", host_.id, numbered ? gpu.index : static_cast<int>(i));
      if (gpus_[i].pci) names_.ids[{HwlocEndKind::pci, *gpus_[i].pci}] = gpu.id;
      for (const std::size_t os : gpus_[i].os) names_.ids[{HwlocEndKind::os, os}] = gpu.id;
      topology_.gpus.push_back(std::move(gpu));
    }
  }

  void add_nics() {
    for (const std::size_t pci : pci_order_)
      for (const std::size_t os : by_name(children_[pci]))
        if (is_nic(machine_.os[os])) add_ports(machine_.os[os]);
    std::vector<std::size_t> others;
    for (std::size_t i = 0; i < machine_.os.size(); ++i)
      if (!machine_.os[i].pci && is_nic(machine_.os[i])) others.push_back(i);
    for (const std::size_t os : by_name(std::move(others))) add_ports(machine_.os[os]);
  }

  std::vector<std::size_t> by_name(std::vector<std::size_t> devices) const {
    std::ranges::stable_sort(devices, {}, [&](std::size_t i) {
      return std::pair(machine_.os[i].name.size(), machine_.os[i].name);
    });
    return devices;
  }

  // Slingshot adapters are recognized by vendor, because some sites call IP over InfiniBand "hsi0"
  // too. An adapter has two names: cxi0 for the fabric and hsn0 for the interface. Libraries use
  // cxi0.
  bool is_nic(const HwlocOsDevice& device) const {
    if (device.name.empty()) return false;
    if (device.kind == HwlocOsKind::openfabrics) return true;
    if (device.kind != HwlocOsKind::network) return false;
    if (!device.pci) return device.subtype == "Slingshot";
    if (machine_.pci[*device.pci].vendor != vendor_cray && device.subtype != "Slingshot")
      return false;
    return number_after(device.name, "cxi") >= 0 ||
           std::ranges::none_of(children_[*device.pci], [&](std::size_t i) {
             return number_after(machine_.os[i].name, "cxi") >= 0;
           });
  }

  void add_ports(const HwlocOsDevice& device) {
    TopologyNic nic;
    nic.host = host_.id;
    nic.adapter = identity(device.info("SysImageGUID"));
    NicTraits traits{.name = device.name, .subtype = device.subtype};
    if (device.pci) {
      const HwlocPciDevice& pci = machine_.pci[*device.pci];
      nic.busid = busid(pci);
      nic.pci_path = pci.path;
      traits.vendor = pci.vendor;
      traits.pci_class = pci.pci_class;
      set_pci_facts(pci, nic.facts);
    } else {
      nic.is_virtual = device.name.starts_with("rxe") || device.name.starts_with("siw");
    }
    place(device.pci ? machine_.pci[*device.pci].locality : device.locality, nic);
    set_fact(nic.facts, fact::node_guid, identity(device.info("NodeGUID")));
    for (int port = 1; port <= most_ports; ++port) {
      const auto state = device.info(fmt::format("Port{}State", port));
      if (port > 1 && state.empty()) break;
      add_port(device, port, nic, traits);
    }
  }

  void add_port(const HwlocOsDevice& device, int port, TopologyNic nic, NicTraits traits) {
    nic.name = port == 1 ? device.name : fmt::format("{}:{}", device.name, port);
    nic.id = fmt::format("{}/{}", host_.id, nic.name);
    nic.state = port_state(device.info(fmt::format("Port{}State", port)));
    traits.lid = parse_lid(device.info(fmt::format("Port{}LID", port)));
    traits.state = nic.state;
    if (traits.lid) set_fact(nic.facts, fact::lid, fmt::format("{}", *traits.lid));
    nic.layer = nic_layer(traits);
    if (nic.layer.empty() && device.kind == HwlocOsKind::openfabrics)
      set_fact(nic.facts, fact::rdma, "yes");
    if (nics_.size() == most_hwloc_parts)
      fail(machine_, device.offset, fmt::format("more than {} NICs", most_hwloc_parts));
    if (!nics_.insert(nic.name).second)
      fail(machine_, device.offset, fmt::format("two NICs are called {}", nic.name));
    if (std::ranges::find(topology_.gpus, nic.id, &TopologyGpu::id) != topology_.gpus.end())
      fail(machine_, device.offset,
           fmt::format("a NIC and a GPU have the same name, {}", nic.name));
    topology_.nics.push_back(std::move(nic));
  }

  static std::string port_state(std::string_view number) {
    constexpr std::array states{"", "down", "init", "armed", "active", "deferred"};
    const auto state = parse_number<std::size_t>(number).value_or(0);
    return state < states.size() ? states[state] : "";
  }

  // Parses a LID such as "0x3a4".
  static std::optional<long long> parse_lid(std::string_view text) {
    if (!text.starts_with("0x")) return std::nullopt;
    return parse_number<unsigned>(text.substr(2), 16);
  }

  const HwlocMachine& machine_;
  TopologyHost host_;
  Topology& topology_;
  std::map<std::size_t, Locality> localities_;      // keys: indices in HwlocMachine::localities
  std::vector<std::size_t> pci_order_;              // indices of PCI devices, sorted by bus id
  std::vector<std::vector<std::size_t>> children_;  // OS devices of each PCI device
  std::vector<Candidate> gpus_;
  std::set<std::string> nics_;
  HwlocNames names_;
};

}  // namespace

void add_host(const HwlocMachine& machine, TopologyHost host, Topology& topology) {
  HostReader(machine, std::move(host), topology).read();
}

std::string_view HwlocOsDevice::info(std::string_view key) const {
  const auto found = std::ranges::find(infos, key, &std::pair<std::string, std::string>::first);
  return found == infos.end() ? std::string_view() : std::string_view(found->second);
}

std::string root_path(unsigned domain, unsigned bus) {
  return fmt::format("pci{:04x}:{:02x}", domain, bus);
}

void fail(const HwlocMachine& machine, std::ptrdiff_t offset, std::string_view what) {
  if (offset >= 0) fail_at(machine.origin, static_cast<std::size_t>(offset), what);
  throw Error(ErrorCode::bad_data, fmt::format("{}: {}", machine.origin, what));
}

}  // namespace atoll_v1::atoll::topology_sources
