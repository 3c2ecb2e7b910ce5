// Checks of the PCIe links of GPUs and NICs, and of the bridges between them.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

// A GPU or NIC, given by its position in the topology.
struct Device {
  bool is_nic = false;
  std::size_t number = 0;
};

Subject subject_of(const Machine& machine, const Device& device) {
  return device.is_nic ? Subject(machine.nic(device.number)) : Subject(machine.gpu(device.number));
}

const HostView& host_of(const Machine& machine, const Device& device) {
  return device.is_nic ? machine.host_of_nic(device.number) : machine.host_of_gpu(device.number);
}

// Calls look(device, value) for each GPU and each NIC for which the topology knows the fact.
template <class Look>
void each_pci_device(const Machine& machine, CheckResult& result, std::string_view fact,
                     Look look) {
  for (const bool is_nic : {false, true})
    each_device(machine, result, is_nic ? Among::nics : Among::gpus, fact,
                [&](std::size_t number, std::string_view value) {
                  look(Device{is_nic, number}, value);
                });
}

struct PciLink {
  double gt_s = 0, gt_s_max = 0, width = 0, width_max = 0;  // a rate or width of 0 is unknown
};

// The PCIe links of all GPUs, or of all NICs.
class PciLinks {
 public:
  explicit PciLinks(const FactColumns& facts)
      : gt_s_(facts[fact::pci_gt_s]),
        gt_s_max_(facts[fact::pci_gt_s_max]),
        width_(facts[fact::pci_width]),
        width_max_(facts[fact::pci_width_max]) {}
  PciLink operator[](std::size_t device) {
    return {gt_s_[device].value_or(0), gt_s_max_[device].value_or(0), width_[device].value_or(0),
            width_max_[device].value_or(0)};
  }

 private:
  Numbers gt_s_, gt_s_max_, width_, width_max_;
};

// True for PCIe links that a virtual machine emulates: they show 2.5 GT/s, one lane or no lanes.
bool is_emulated(const HostView& view, const PciLink& link) {
  return view.is_vm &&
         (link.width <= 0 || link.width_max <= 1 || (link.gt_s_max > 0 && link.gt_s_max <= 2.5));
}

std::string carries(double gt_s, double width, double gt_s_max, double width_max) {
  const auto now = lane_gbyte_s(gt_s), most = lane_gbyte_s(gt_s_max);
  if (!now || !most)
    return fmt::format("the link has {:.0f} % of its bandwidth", 100 * width / width_max);
  return fmt::format("the link carries {:.3g} of {:.3g} GB/s", *now * width, *most * width_max);
}

void pcie_width(const Machine& machine, CheckResult& result) {
  PciLinks of_gpus(machine.gpu_facts), of_nics(machine.nic_facts);
  each_pci_device(machine, result, fact::pci_width, [&](const Device& device, std::string_view) {
    const HostView& view = host_of(machine, device);
    const PciLink link = (device.is_nic ? of_nics : of_gpus)[device.number];
    if (is_emulated(view, link))
      return result.not_checked("a virtual machine shows emulated PCIe links");
    if (link.width <= 0 || link.width_max <= 0)
      return result.lacks(*view.host, fact::pci_width_max);
    result.looked();
    if (link.width >= link.width_max) return;
    // Uses the maximum rate of the link, because an idle device lowers its current rate.
    const double gt_s = std::max(link.gt_s, link.gt_s_max);
    result.add(
        subject_of(machine, device),
        {warning, fmt::format("the PCIe link has {:g} of {:g} lanes", link.width, link.width_max),
         carries(gt_s, link.width, gt_s, link.width_max),
         "lspci -vv -s BUSID | grep -e LnkCap -e LnkSta; reseat the card or its riser; check the "
         "slot's bifurcation in the BIOS"});
  });
}

// Describes a PCIe link that runs below its full speed. The link of a NIC must carry at least as
// much as the NIC's port. The link of a GPU may be slow while the GPU is idle.
Problem slow_link(const PciLink& link, double port_gbyte_s) {
  Problem problem{info,
                  fmt::format("the PCIe link runs at {:g} of {:g} GT/s", link.gt_s, link.gt_s_max),
                  "none if the device is idle: an idle GPU slows its link down",
                  "check again under load: lspci -vv -s BUSID | grep LnkSta"};
  const auto lane = lane_gbyte_s(link.gt_s);
  if (!lane || port_gbyte_s <= 0 || link.width <= 0) return problem;
  problem.consequence = "none: the link carries at least as much as the port";
  if (*lane * link.width >= port_gbyte_s) return problem;
  problem.severity = warning;
  problem.consequence = fmt::format("the link carries {:.3g} GB/s, but the port {:.3g} GB/s",
                                    *lane * link.width, port_gbyte_s);
  problem.fix =
      "lspci -vv -s BUSID | grep -e LnkCap -e LnkSta; use a faster slot, or lift the slot's limit "
      "in the BIOS";
  return problem;
}

void pcie_speed(const Machine& machine, CheckResult& result) {
  PciLinks of_gpus(machine.gpu_facts), of_nics(machine.nic_facts);
  each_pci_device(machine, result, fact::pci_gt_s, [&](const Device& device, std::string_view) {
    const HostView& view = host_of(machine, device);
    const PciLink link = (device.is_nic ? of_nics : of_gpus)[device.number];
    if (is_emulated(view, link))
      return result.not_checked("a virtual machine shows emulated PCIe links");
    if (link.gt_s <= 0 || link.gt_s_max <= 0) return result.lacks(*view.host, fact::pci_gt_s_max);
    result.looked();
    if (link.gt_s >= link.gt_s_max) return;
    const double port = device.is_nic ? machine.nic(device.number).rate_gbit_s.value_or(0) / 8 : 0;
    result.add(subject_of(machine, device), slow_link(link, port));
  });
}

void pcie_replays(const Machine& machine, CheckResult& result) {
  constexpr double usual = 10;  // link training causes a few replays
  std::vector<Subject> few, many;
  Range few_range, many_range;
  each_pci_device(machine, result, fact::pci_replays,
                  [&](const Device& device, std::string_view value) {
                    result.looked();
                    const double replays = value == "0" ? 0 : number_of(value).value_or(0);
                    if (replays <= 0) return;
                    (replays < usual ? few : many).push_back(subject_of(machine, device));
                    (replays < usual ? few_range : many_range).add(replays);
                  });
  const auto tell = [&](const std::vector<Subject>& subjects, Severity severity,
                        const Range& range) {
    if (subjects.empty()) return;
    result.add(subjects,
               {severity, fmt::format("{} PCIe replays", range.text()),
                "damaged packets are sent again; a rising count means a bad slot, riser or cable",
                "check whether the count rises under load: grep . "
                "/sys/bus/pci/devices/BUSID/aer_dev_correctable; reseat the card"});
  };
  tell(many, warning, many_range);
  tell(few, info, few_range);
}

// Returns the bridges that redirect traffic from the device at `path` to the device at `other`.
// Only bridges below the lowest common bridge of the two paths matter. The result is empty when the
// paths meet only in the root complex, since all traffic between the devices then goes there.
std::vector<std::string_view> redirecting(std::string_view redirects, std::string_view path,
                                          std::string_view other) {
  std::vector<std::string_view> found;
  if (redirects.empty() || redirects == "off") return found;
  const std::vector<std::string_view> own = words_of(path, "/"), theirs = words_of(other, "/");
  const auto fork = std::ranges::mismatch(own, theirs).in1;
  // The first two parts of a PCI path are the root complex and one of its ports.
  if (fork - own.begin() < 2) return found;
  const std::vector<std::string_view> bridges = words_of(redirects, " ,");
  std::copy_if(fork, own.end(), std::back_inserter(found), [&](std::string_view bridge) {
    return std::ranges::find(bridges, bridge) != bridges.end();
  });
  return found;
}

// The GPUs and RDMA NICs whose traffic ACS redirects, and the bridges that redirect the traffic.
struct Redirected {
  std::set<std::size_t> gpus, nics;
  std::set<std::string, std::less<>> bridges;

  void add_host(const Machine& machine, const HostView& view) {
    const auto of_gpus = machine.gpu_facts[fact::pci_acs],
               of_nics = machine.nic_facts[fact::pci_acs];
    for (const std::size_t gpu : view.gpus)
      for (const std::size_t nic : view.nics) {
        if (!machine.is_rdma[nic]) continue;
        const std::string_view a = machine.gpu(gpu).pci_path, b = machine.nic(nic).pci_path;
        const auto above_gpu = redirecting(of_gpus[gpu], a, b);
        const auto above_nic = redirecting(of_nics[nic], b, a);
        if (above_gpu.empty() && above_nic.empty()) continue;
        gpus.insert(gpu), nics.insert(nic);
        bridges.insert(above_gpu.begin(), above_gpu.end());
        bridges.insert(above_nic.begin(), above_nic.end());
      }
  }
};

// True when a source read the ACS setting of a bridge above a GPU or an RDMA NIC.
bool knows_acs(const Machine& machine, const HostView& view) {
  const auto of_gpus = machine.gpu_facts[fact::pci_acs], of_nics = machine.nic_facts[fact::pci_acs];
  return std::ranges::any_of(view.gpus,
                             [&](std::size_t gpu) {
                               return !of_gpus[gpu].empty() && !machine.gpu(gpu).pci_path.empty();
                             }) ||
         std::ranges::any_of(view.nics, [&](std::size_t nic) {
           return machine.is_rdma[nic] && !of_nics[nic].empty() &&
                  !machine.nic(nic).pci_path.empty();
         });
}

// Calls look(view) for each host that has both GPUs and RDMA NICs.
template <class Look>
void each_pairing_host(const Machine& machine, Look look) {
  for (const HostView& view : machine.hosts)
    if (!view.gpus.empty() && has_rdma(machine, view)) look(view);
}

void acs(const Machine& machine, CheckResult& result) {
  Redirected redirected;
  each_pairing_host(machine, [&](const HostView& view) {
    if (!knows_acs(machine, view)) return result.lacks(*view.host, fact::pci_acs);
    if (view.is_vm) return result.not_checked("a virtual machine needs ACS");
    result.looked();
    redirected.add_host(machine, view);
  });
  if (redirected.bridges.empty()) return;
  std::vector<Subject> subjects;
  for (const std::size_t gpu : redirected.gpus) subjects.emplace_back(machine.gpu(gpu));
  for (const std::size_t nic : redirected.nics) subjects.emplace_back(machine.nic(nic));
  const std::vector<std::string> names(redirected.bridges.begin(), redirected.bridges.end());
  result.add(subjects, {warning,
                        fmt::format("ACS redirects the traffic of these devices at {}: {}",
                                    plural(names.size(), "PCIe bridge"), enumerate(names, 4)),
                        "transfers between GPUs and NICs go up to the root complex and back "
                        "instead of through the switch, often at half the rate; some transfers "
                        "hang",
                        "as root, for each of these bridges and after each boot: setpci -s BRIDGE "
                        "ECAP_ACS+0x6.w=0000; or switch off ACS in the BIOS"});
}

// True if a GPU belongs to a Grace superchip. Grace CPUs use address translation to access the
// memory of their GPUs, so the IOMMU must stay on.
bool has_grace(const Machine& machine, const HostView& view) {
  for (const std::size_t gpu : view.gpus)
    for (const std::string_view model : {"GH200", "GB200", "GB300"})
      if (machine.gpu(gpu).model.find(model) != std::string::npos) return true;
  return false;
}

void iommu(const Machine& machine, CheckResult& result) {
  each_pairing_host(machine, [&](const HostView& view) {
    const std::string_view value = get_fact(view.host->facts, fact::iommu);
    if (value.empty()) return result.lacks(*view.host, fact::iommu);
    result.looked();
    if (value != "translated" || has_grace(machine, view)) return;
    result.add(*view.host, {warning, "the IOMMU translates the addresses of devices",
                            "transfers between GPUs and NICs go through the root complex and wait "
                            "for address translations: they are much slower, and some hang",
                            "boot with iommu=pt (GRUB_CMDLINE_LINUX in /etc/default/grub, then "
                            "update-grub), or switch the IOMMU off in the BIOS"});
  });
}

void ats(const Machine& machine, CheckResult& result) {
  each_device(
      machine, result, Among::rdma_nics, fact::pci_ats,
      [&](std::size_t nic, std::string_view value) {
        result.looked();
        if (value != "no") return;
        const HostView& view = machine.host_of_nic(nic);
        const bool translated = get_fact(view.host->facts, fact::iommu) == "translated";
        if (!view.is_vm && !translated) return;  // nothing is translated, so ATS has no use
        result.add(
            machine.nic(nic),
            {warning,
             fmt::format("ATS is off, and {}", translated ? "the IOMMU translates addresses"
                                                          : "this is a virtual machine"),
             "every transfer to a GPU goes to the root complex to translate its address",
             "on the physical host: mlxconfig -d BUSID set ATS_ENABLED=true, then a cold reboot"});
      });
}

void max_read_request(const Machine& machine, CheckResult& result) {
  constexpr double best = 4096;  // largest read request that PCIe allows, in bytes
  // Small read requests limit the bandwidth of ports of at least this rate, in Gbit/s.
  constexpr double fast_port = 200;
  Range all;
  const auto look = [&](auto judge) {
    Numbers sizes(machine.nic_facts[fact::pci_max_read_request]);
    each_device(
        machine, result, Among::rdma_nics, fact::pci_max_read_request,
        [&](std::size_t nic, std::string_view) {
          if (machine.host_of_nic(nic).is_vm)
            return result.not_checked("a virtual function does not show its maximum read request");
          result.looked();
          if (const auto bytes = sizes[nic]) judge(nic, *bytes);
        });
  };
  look([&](std::size_t, double bytes) { all.add(bytes); });
  look([&](std::size_t nic, double bytes) {
    if (bytes >= best) return;
    std::string evidence = fmt::format("the NIC reads at most {:g} bytes at once", bytes);
    if (all.most() > bytes) evidence += fmt::format(", but other NICs read {:g}", all.most());
    const bool fast = machine.nic(nic).rate_gbit_s.value_or(0) >= fast_port;
    result.add(machine.nic(nic),
               {fast ? warning : info, evidence,
                "the same data needs more requests, which may limit a fast port",
                "as root, after each boot: setpci -s BUSID CAP_EXP+8.w=5000:7000"});
  });
}

void relaxed_ordering(const Machine& machine, CheckResult& result) {
  each_device(
      machine, result, Among::rdma_nics, fact::pci_relaxed_ordering,
      [&](std::size_t nic, std::string_view value) {
        if (machine.host_of_nic(nic).is_vm)
          return result.not_checked("a virtual function does not show its relaxed ordering");
        result.looked();
        if (value != "no") return;
        result.add(machine.nic(nic),
                   {warning, "relaxed ordering is off",
                    "writes into GPU memory wait for each other, above all on AMD hosts",
                    "as root, after each boot: setpci -s BUSID CAP_EXP+8.w=0010:0010"});
      });
  for (const HostView& view : machine.hosts) {
    const Setting setting = setting_of(*view.host, "NCCL_IB_PCI_RELAXED_ORDERING");
    if (view.gpus.empty() || view.nics.empty() || setting.value.empty() || is_on(setting.value))
      continue;
    result.add(
        *view.host,
        {warning,
         fmt::format("NCCL_IB_PCI_RELAXED_ORDERING is {} ({})", setting.value, setting.where),
         "NCCL's writes into GPU memory wait for each other, above all in virtual machines",
         "unset NCCL_IB_PCI_RELAXED_ORDERING: NCCL then uses relaxed ordering where it is "
         "available"});
  }
}

constexpr CheckRow rows[] = {
    {"pcie_width", "PCIe links use all their lanes", pcie_width, "no GPUs and no NICs"},
    {"pcie_speed", "PCIe links run at full speed", pcie_speed, "no GPUs and no NICs"},
    {"pcie_replays", "PCIe links count no replays", pcie_replays, "no GPUs and no NICs"},
    {"acs", "No bridge redirects peer-to-peer traffic", acs, "no host with GPUs and RDMA NICs"},
    {"iommu", "The IOMMU does not translate addresses", iommu, "no host with GPUs and RDMA NICs"},
    {"ats", "NICs that need address translations cache them", ats, "no RDMA NICs"},
    {"max_read_request", "NICs read 4096 bytes at once", max_read_request, "no RDMA NICs"},
    {"relaxed_ordering", "NICs use relaxed ordering", relaxed_ordering, "no RDMA NICs"},
};

}  // namespace

const std::span<const CheckRow> pcie_checks(rows);

}  // namespace atoll_v1::atoll::doctor
