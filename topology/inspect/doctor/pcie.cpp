// Checks of the PCIe links of GPUs and NICs, and of the bridges between them.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "inspect/doctor/check.hpp"
#include "pcie_rate.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

// Calls look(device) for each GPU and each NIC.
template <class Look>
void each_pci_device(const Machine& machine, Look look) {
  for (const GpuView& gpu : machine.gpus) look(gpu);
  for (const NicView& nic : machine.nics)
    if (!nic->is_virtual) look(nic);
}

struct PciLink {
  double gt_s = 0, gt_s_max = 0, width = 0, width_max = 0;  // a rate or width of 0 is unknown
};

PciLink link_of(const auto& device) {
  return {device.number(fact::pci_gt_s).value_or(0), device.number(fact::pci_gt_s_max).value_or(0),
          device.number(fact::pci_width).value_or(0),
          device.number(fact::pci_width_max).value_or(0)};
}

// True for PCIe links that a virtual machine emulates: they show 2.5 GT/s, one lane or no lanes.
bool is_emulated(const HostView& host, const PciLink& link) {
  return host.is_vm &&
         (link.width <= 0 || link.width_max <= 1 || (link.gt_s_max > 0 && link.gt_s_max <= 2.5));
}

// Calls look(device, link) for each PCIe link whose fact `now` is less than its fact `most`.
template <class Look>
void each_slow_link(const Machine& machine, CheckResult& result, std::string_view now,
                    std::string_view most, Look look) {
  each_pci_device(machine, [&](const auto& device) {
    const PciLink link = link_of(device);
    const double is = device.number(now).value_or(0), may_be = device.number(most).value_or(0);
    if (device[now].empty()) return result.lacks(device.host(), now);
    if (is_emulated(device.host(), link))
      return result.not_checked("a virtual machine shows emulated PCIe links");
    if (is <= 0 || may_be <= 0) return result.lacks(device.host(), most);
    result.looked();
    if (is < may_be) look(device, link);
  });
}

void pcie_width(const Machine& machine, CheckResult& result) {
  const auto look = [&](const auto& device, const PciLink& link) {
    // Uses the maximum rate of the link, because an idle device lowers its current rate.
    const double gt_s = std::max(link.gt_s, link.gt_s_max);
    result.add(
        device,
        {warning, fmt::format("the PCIe link has {:g} of {:g} lanes", link.width, link.width_max),
         is_pcie_rate(gt_s)
             ? fmt::format("the link carries {:.3g} of {:.3g} GB/s", pcie_gbyte_s(gt_s, link.width),
                           pcie_gbyte_s(gt_s, link.width_max))
             : fmt::format("the link has {:.0f} % of its bandwidth",
                           100 * link.width / link.width_max)});
  };
  each_slow_link(machine, result, fact::pci_width, fact::pci_width_max, look);
}

// Describes a PCIe link that runs below its full speed. The link of a NIC must carry at least as
// much as the NIC's port. The link of a GPU may be slow while the GPU is idle.
Problem slow_link(const PciLink& link, double port_gbyte_s) {
  Problem problem{info,
                  fmt::format("the PCIe link runs at {:g} of {:g} GT/s", link.gt_s, link.gt_s_max)};
  if (!is_pcie_rate(link.gt_s) || port_gbyte_s <= 0 || link.width <= 0) return problem;
  const double carried = pcie_gbyte_s(link.gt_s, link.width);
  problem.consequence = "none: the link carries at least as much as the port";
  if (carried >= port_gbyte_s) return problem;
  problem.severity = warning;
  problem.consequence =
      fmt::format("the link carries {:.3g} GB/s, but the port {:.3g} GB/s", carried, port_gbyte_s);
  problem.fix =
      "lspci -vv -s BUSID | grep -e LnkCap -e LnkSta; use a faster slot, or lift the slot's limit "
      "in the BIOS";
  return problem;
}

double port_gbyte_s(const GpuView&) { return 0; }
double port_gbyte_s(const NicView& nic) { return nic->rate_gbit_s.value_or(0) / 8; }

void pcie_speed(const Machine& machine, CheckResult& result) {
  each_slow_link(machine, result, fact::pci_gt_s, fact::pci_gt_s_max,
                 [&](const auto& device, const PciLink& link) {
                   result.add(device, slow_link(link, port_gbyte_s(device)));
                 });
}

void pcie_replays(const Machine& machine, CheckResult& result) {
  constexpr double usual = 10;  // number of replays that link training may cause
  std::vector<Subject> few, many;
  Range few_range, many_range;
  each_pci_device(machine, [&](const auto& device) {
    result.look(device, fact::pci_replays);
    const double replays = device.number(fact::pci_replays).value_or(0);
    if (replays <= 0) return;
    (replays < usual ? few : many).emplace_back(device);
    (replays < usual ? few_range : many_range).add(replays);
  });
  const auto report = [&](const std::vector<Subject>& subjects, Severity severity,
                          const Range& range) {
    if (!subjects.empty())
      result.add(subjects, {severity, fmt::format("{} PCIe replays", range.text())});
  };
  report(many, warning, many_range);
  report(few, info, few_range);
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
  // The first two parts of a path are the root complex and a port of it. They must be common.
  if (fork - own.begin() < 2) return found;
  const std::vector<std::string_view> bridges = words_of(redirects, " ,");
  std::copy_if(fork, own.end(), std::back_inserter(found), [&](std::string_view bridge) {
    return std::ranges::find(bridges, bridge) != bridges.end();
  });
  return found;
}

// The GPUs and RDMA NICs whose traffic ACS redirects, and the bridges that redirect the traffic.
struct Redirected {
  std::set<const GpuView*> gpus;
  std::set<const NicView*> nics;
  std::set<std::string, std::less<>> bridges;

  void add_host(const HostView& host) {
    for (const GpuView* gpu : host.gpus)
      for (const NicView* nic : host.nics) {
        if (!nic->is_rdma) continue;
        const std::string_view a = (*gpu)->pci_path, b = (*nic)->pci_path;
        const auto above_gpu = redirecting((*gpu)[fact::pci_acs], a, b);
        const auto above_nic = redirecting((*nic)[fact::pci_acs], b, a);
        if (above_gpu.empty() && above_nic.empty()) continue;
        gpus.insert(gpu), nics.insert(nic);
        bridges.insert(above_gpu.begin(), above_gpu.end());
        bridges.insert(above_nic.begin(), above_nic.end());
      }
  }
};

// True when a source read the ACS setting of a bridge above a GPU or an RDMA NIC.
bool knows_acs(const HostView& host) {
  const auto knows = [](const auto* device) {
    return !(*device)[fact::pci_acs].empty() && !(*device)->pci_path.empty();
  };
  return std::ranges::any_of(host.gpus, knows) ||
         std::ranges::any_of(host.nics,
                             [&](const NicView* nic) { return nic->is_rdma && knows(nic); });
}

void acs(const Machine& machine, CheckResult& result) {
  Redirected redirected;
  for (const HostView& host : machine.hosts) {
    if (host.gpus.empty() || !host.has_rdma) continue;
    if (!knows_acs(host)) {
      result.lacks(host, fact::pci_acs);
    } else if (host.is_vm) {
      result.not_checked("a virtual machine needs ACS");
    } else {
      result.looked();
      redirected.add_host(host);
    }
  }
  if (redirected.bridges.empty()) return;
  std::vector<Subject> subjects;
  append(subjects, redirected.gpus);
  append(subjects, redirected.nics);
  const std::vector<std::string> names(redirected.bridges.begin(), redirected.bridges.end());
  result.add(subjects,
             {warning, fmt::format("ACS redirects the traffic of these devices at {}: {}",
                                   plural(names.size(), "PCIe bridge"), enumerate(names, 4))});
}

// True if a GPU belongs to a Grace superchip. Grace CPUs use address translation to access the
// memory of their GPUs, so the IOMMU must stay on.
bool has_grace(const HostView& host) {
  for (const GpuView* gpu : host.gpus)
    for (const std::string_view model : {"GH200", "GB200", "GB300"})
      if ((*gpu)->model.find(model) != std::string::npos) return true;
  return false;
}

void iommu(const Machine& machine, CheckResult& result) {
  for (const HostView& host : machine.hosts) {
    if (host.gpus.empty() || !host.has_rdma) continue;
    if (result.look(host, fact::iommu) == "translated" && !has_grace(host))
      result.add(host, {warning, "the IOMMU translates the addresses of devices"});
  }
}

void ats(const Machine& machine, CheckResult& result) {
  for (const NicView& nic : machine.nics) {
    if (!nic.is_rdma || result.look(nic, fact::pci_ats) != "no") continue;
    const bool translated = nic.host()[fact::iommu] == "translated";
    // If neither a VM nor the IOMMU translates addresses, ATS has no use.
    if (nic.host().is_vm || translated)
      result.add(nic, {warning, fmt::format("ATS is off, and {}",
                                            translated ? "the IOMMU translates addresses"
                                                       : "this is a virtual machine")});
  }
}

void max_read_request(const Machine& machine, CheckResult& result) {
  constexpr double best = 4096;  // largest read request that PCIe allows, in bytes
  // Small read requests limit the bandwidth of ports of at least this rate, in Gbit/s.
  constexpr double fast_port = 200;
  Range all;
  std::vector<const NicView*> limited;
  for (const NicView& nic : machine.nics) {
    if (!nic.is_rdma) continue;
    if (nic.host().is_vm && !nic[fact::pci_max_read_request].empty()) {
      result.not_checked("a virtual function does not show its maximum read request");
      continue;
    }
    result.look(nic, fact::pci_max_read_request);
    const auto bytes = nic.number(fact::pci_max_read_request);
    if (bytes) all.add(*bytes);
    if (bytes && *bytes < best) limited.push_back(&nic);
  }
  for (const NicView* nic : limited) {
    const double bytes = *nic->number(fact::pci_max_read_request);
    std::string evidence = fmt::format("the NIC reads at most {:g} bytes at once", bytes);
    if (all.most() > bytes) evidence += fmt::format(", but other NICs read {:g}", all.most());
    const bool fast = (*nic)->rate_gbit_s.value_or(0) >= fast_port;
    result.add(*nic, {fast ? warning : info, evidence});
  }
}

void relaxed_ordering(const Machine& machine, CheckResult& result) {
  for (const NicView& nic : machine.nics) {
    if (!nic.is_rdma) continue;
    if (nic.host().is_vm && !nic[fact::pci_relaxed_ordering].empty())
      result.not_checked("a virtual function does not show its relaxed ordering");
    else if (result.look(nic, fact::pci_relaxed_ordering) == "no")
      result.add(nic, {warning, "relaxed ordering is off"});
  }
  for (const HostView& host : machine.hosts) {
    const Setting setting = setting_of(host, "NCCL_IB_PCI_RELAXED_ORDERING");
    if (host.gpus.empty() || host.nics.empty() || setting.value.empty() || is_on(setting.value))
      continue;
    result.add(
        host, {warning,
               fmt::format("NCCL_IB_PCI_RELAXED_ORDERING is {} ({})", setting.value, setting.where),
               "NCCL's writes into GPU memory wait for each other, above all in virtual machines",
               "unset NCCL_IB_PCI_RELAXED_ORDERING: NCCL then uses relaxed ordering where it is "
               "available"});
  }
}

constexpr CheckRow pcie_rows[] = {
    {"pcie_width", "PCIe links use all their lanes", pcie_width, "no GPUs and no NICs", "",
     "lspci -vv -s BUSID | grep -e LnkCap -e LnkSta; reseat the card or its riser; check the "
     "slot's bifurcation in the BIOS"},
    {"pcie_speed", "PCIe links run at full speed", pcie_speed, "no GPUs and no NICs",
     "none if the device is idle: an idle GPU slows its link down",
     "check again under load: lspci -vv -s BUSID | grep LnkSta"},
    {"pcie_replays", "PCIe links count no replays", pcie_replays, "no GPUs and no NICs",
     "damaged packets are sent again; a rising count means a bad slot, riser or cable",
     "check whether the count rises under load: grep . "
     "/sys/bus/pci/devices/BUSID/aer_dev_correctable; reseat the card"},
    {"acs", "No bridge redirects peer-to-peer traffic", acs, "no host with GPUs and RDMA NICs",
     "transfers between GPUs and NICs go up to the root complex and back instead of through the "
     "switch, often at half the rate; some transfers hang",
     "as root, for each of these bridges and after each boot: setpci -s BRIDGE "
     "ECAP_ACS+0x6.w=0000; or switch off ACS in the BIOS"},
    {"iommu", "The IOMMU does not translate addresses", iommu, "no host with GPUs and RDMA NICs",
     "transfers between GPUs and NICs go through the root complex and wait for address "
     "translations: they are much slower, and some hang",
     "boot with iommu=pt (GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub), or switch "
     "the IOMMU off in the BIOS"},
    {"ats", "NICs behind an IOMMU that translates addresses cache the translations", ats,
     "no RDMA NICs", "every transfer to a GPU goes to the root complex to translate its address",
     "on the physical host: mlxconfig -d BUSID set ATS_ENABLED=true, then a cold reboot"},
    {"max_read_request", "NICs read 4096 bytes at once", max_read_request, "no RDMA NICs",
     "the same data needs more requests, which may limit a fast port",
     "as root, after each boot: setpci -s BUSID CAP_EXP+8.w=5000:7000"},
    {"relaxed_ordering", "NICs use relaxed ordering", relaxed_ordering, "no RDMA NICs",
     "writes into GPU memory wait for each other, above all on AMD hosts",
     "as root, after each boot: setpci -s BUSID CAP_EXP+8.w=0010:0010"},
};

}  // namespace

const std::span<const CheckRow> pcie_checks(pcie_rows);

}  // namespace atoll_v1::atoll::doctor
