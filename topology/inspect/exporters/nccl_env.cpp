// The NCCL settings that a machine needs beyond the defaults.
//
// The text is read by a shell and, since it quotes nothing, as nccl.conf too. NCCL's defaults are
// those of its manual ("Environment Variables") and source: ports that are not active are skipped;
// interfaces called ib* come first, docker*, lo and virbr* last; the RoCE address is found since
// 2.21; GPUDirect is used up to distance PXB; relaxed ordering is used where it is available; rails
// are kept where that is not slower. So nothing is said about any of these where they hold.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "atoll/inspect/inspection.hpp"
#include "inspect/doctor/check.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

using doctor::HostView;
using doctor::Machine;
using doctor::Setting;

// A line of the text. Without a value it is advice, and stands as a comment.
struct Line {
  std::string name, value, reason;
  bool operator<(const Line& other) const {
    return std::tie(name, value, reason) < std::tie(other.name, other.value, other.reason);
  }
};

// --- NCCL_IB_HCA ---

// What NCCL's InfiniBand transport can drive; EFA and Slingshot come with plugins of their own.
bool has_verbs(const TopologyNic& nic) {
  return doctor::is_rdma(nic) && nic.layer != "efa" && nic.layer != "slingshot";
}

// "mlx5_0:1", as NCCL_IB_HCA has it.
std::string port_name(const TopologyNic& nic) {
  return nic.name.find(':') == std::string::npos ? nic.name + ":1" : nic.name;
}

struct Ports {
  std::vector<const TopologyNic*> used, spare;
  std::set<std::string_view> nearest;  // ids; empty where no source tells the way to any NIC
};

Ports ports_of(const Machine& machine, const HostView& view) {
  std::set<std::size_t> used;
  Ports ports;
  for (const std::size_t gpu : view.gpus) {
    used.insert(machine.used[gpu].begin(), machine.used[gpu].end());
    if (machine.affinity[gpu].level)
      ports.nearest.insert(machine.affinity[gpu].nearest.begin(),
                           machine.affinity[gpu].nearest.end());
  }
  for (const std::size_t number : view.nics) {
    const TopologyNic& nic = machine.nic(number);
    if (!has_verbs(nic) || !doctor::may_be_active(nic)) continue;
    (used.contains(number) ? ports.used : ports.spare).push_back(&nic);
  }
  return ports;
}

// A setting that should go: what is run by a shell undoes none in nccl.conf, so this is a comment.
Line unset(std::string_view name, const Setting& setting, std::string_view reason) {
  return {std::string(name), "",
          fmt::format("unset {}: {} says {}; {}", name, setting.where, setting.value, reason)};
}

// Why a port must not be used; "" when nothing speaks against it.
std::string why_spare(const TopologyNic& nic, const Ports& ports) {
  const TopologyNic& usual = *ports.used.front();
  if (nic.layer != usual.layer && !nic.layer.empty() && !usual.layer.empty())
    return fmt::format("{}, not {}", nic.layer, usual.layer);
  if (nic.rate_gbit_s && usual.rate_gbit_s && *nic.rate_gbit_s < *usual.rate_gbit_s)
    return fmt::format("{:g}, not {:g} Gbit/s", *nic.rate_gbit_s, *usual.rate_gbit_s);
  if (ports.nearest.empty()) return "";
  return ports.nearest.contains(nic.id) ? "left over when the GPUs share alike"
                                        : "nearest to no GPU";
}

bool has_finding(const Inspection& inspection, std::string_view id, const std::string& host) {
  return std::ranges::any_of(inspection.diagnosis.findings, [&](const Finding& finding) {
    return finding.id == id && std::ranges::find(finding.subjects, host) != finding.subjects.end();
  });
}

void add_hca(const Inspection& inspection, const Machine& machine, const HostView& view,
             std::vector<Line>& lines) {
  const Ports ports = ports_of(machine, view);
  const Setting setting = doctor::setting_of(*view.host, "NCCL_IB_HCA");
  const bool wrong = has_finding(inspection, "nccl_ib_hca", view.host->id);
  if (ports.used.empty()) {
    if (wrong) lines.push_back(unset("NCCL_IB_HCA", setting, "it does not fit this machine"));
    return;
  }
  std::vector<std::string> spare, used;
  bool must = wrong;
  for (const TopologyNic* nic : ports.spare) {
    const std::string why = why_spare(*nic, ports);
    must = must || !why.empty();
    spare.push_back(
        fmt::format("{} ({})", nic->name, why.empty() ? "no source tells the way to it" : why));
  }
  if (!must) return;
  std::string reason;
  if (wrong)
    reason = fmt::format("names the GPUs' own ports, unlike the {} here ({})", setting.value,
                         setting.where);
  if (!spare.empty())
    reason += (wrong ? "; leaves out " : "leaves out ") + enumerate(spare, spare.size());
  used.reserve(ports.used.size());
  for (const TopologyNic* nic : ports.used) used.push_back(port_name(*nic));
  std::ranges::sort(used, natural_less);
  if (!std::ranges::all_of(used, doctor::is_plain)) {
    lines.push_back({"NCCL_IB_HCA", "", "cannot be written: a NIC has an odd name"});
    return;
  }
  lines.push_back({"NCCL_IB_HCA", fmt::format("={}", fmt::join(used, ",")), reason});
}

// --- NCCL_IB_GID_INDEX ---

void add_gid_index(const Machine& machine, const HostView& view, std::vector<Line>& lines) {
  std::set<std::string_view> indices;
  for (const TopologyNic* nic : ports_of(machine, view).used)
    if (nic->layer == "ethernet") indices.insert(get_fact(nic->facts, fact::gid_roce_v2));
  const Setting setting = doctor::setting_of(*view.host, "NCCL_IB_GID_INDEX");
  if (indices.size() > 1 && !setting.value.empty() && setting.value != "-1")
    lines.push_back(unset("NCCL_IB_GID_INDEX", setting, "no one index fits all NICs"));
  if (indices.size() != 1 || !doctor::number_of(*indices.begin())) return;
  const std::string index(*indices.begin());
  if (!setting.value.empty() && setting.value != "-1" && setting.value != index)
    lines.push_back({"NCCL_IB_GID_INDEX", index,
                     fmt::format("the routable RoCE v2 address of all NICs; {} says {}",
                                 setting.where, setting.value)});
  else if (setting.value.empty() && index != "0")
    lines.push_back({"NCCL_IB_GID_INDEX", "",
                     fmt::format("only NCCL before 2.21 needs NCCL_IB_GID_INDEX={}, the routable "
                                 "RoCE v2 address of all NICs; newer ones find it",
                                 index)});
}

// --- NCCL_SOCKET_IFNAME ---

bool starts_with_any(std::string_view name, std::span<const std::string_view> prefixes) {
  return std::ranges::any_of(prefixes,
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}

struct Interfaces {
  std::vector<std::string> physical, made_up;  // made up: by containers, tunnels
};

Interfaces interfaces_of(const Machine& machine, const HostView& view) {
  constexpr std::array<std::string_view, 3> taken_last{"docker", "lo", "virbr"};
  constexpr std::array<std::string_view, 22> made_up{
      "veth",  "br-", "cni",       "flannel",      "cali",  "cilium", "lxc", "lxd",
      "kube",  "tun", "tap",       "vxlan",        "vnet",  "wg",     "zt",  "podman",
      "weave", "ovs", "tailscale", "nodelocaldns", "dummy", "genev"};
  std::set<std::string_view> of_rdma;
  for (const TopologyNic* nic : ports_of(machine, view).used)
    of_rdma.insert(get_fact(nic->facts, fact::netdev));
  Interfaces interfaces;
  for (const std::string_view name :
       doctor::words_of(get_fact(view.host->facts, fact::net_interfaces), " ,")) {
    if (starts_with_any(name, taken_last) || of_rdma.contains(name)) continue;
    (starts_with_any(name, made_up) ? interfaces.made_up : interfaces.physical).emplace_back(name);
  }
  return interfaces;
}

void add_interface(const Inspection& inspection, const Machine& machine, const HostView& view,
                   std::vector<Line>& lines) {
  const Interfaces interfaces = interfaces_of(machine, view);
  const bool has_ib = std::ranges::any_of(
      interfaces.physical, [](const std::string& name) { return name.starts_with("ib"); });
  const Setting setting = doctor::setting_of(*view.host, "NCCL_SOCKET_IFNAME");
  const bool wrong = has_finding(inspection, "nccl_socket_ifname", view.host->id);
  const bool confusing = !interfaces.made_up.empty() && !has_ib;
  if (interfaces.physical.size() != 1 || !doctor::is_plain(interfaces.physical.front())) {
    if (wrong)
      lines.push_back(
          unset("NCCL_SOCKET_IFNAME", setting, "it names interfaces that this host does not have"));
    return;
  }
  if (wrong)
    lines.push_back({"NCCL_SOCKET_IFNAME", "=" + interfaces.physical.front(),
                     fmt::format("the one physical interface, unlike the {} here ({})",
                                 setting.value, setting.where)});
  else if (confusing)
    lines.push_back({"NCCL_SOCKET_IFNAME", "=" + interfaces.physical.front(),
                     fmt::format("the one physical interface; NCCL would also take {}",
                                 enumerate(interfaces.made_up, 4))});
}

// --- settings to be undone, and virtual machines ---

void add_overrides(const Machine& machine, const HostView& view, std::vector<Line>& lines) {
  const auto undo = [&](std::string_view name, std::string_view value, std::string_view reason) {
    const Setting setting = doctor::setting_of(*view.host, name);
    lines.push_back({std::string(name), std::string(value),
                     fmt::format("{}; {} says {}", reason, setting.where, setting.value)});
  };
  const auto is_set = [&](std::string_view name) {
    return doctor::is_on(doctor::setting_of(*view.host, name).value);
  };
  const bool has_ports = !ports_of(machine, view).used.empty();
  if (has_ports && is_set("NCCL_IB_DISABLE"))
    undo("NCCL_IB_DISABLE", "0", "the RDMA ports are there to be used");
  if (view.gpus.size() > 1 && is_set("NCCL_P2P_DISABLE"))
    undo("NCCL_P2P_DISABLE", "0", "GPUs reach each other directly");
  if (view.gpus.size() > 1 && is_set("NCCL_SHM_DISABLE"))
    undo("NCCL_SHM_DISABLE", "0", "without shared memory data takes the network inside the host");
  const auto is_never = [&](std::string_view name) {
    const std::string_view value = doctor::setting_of(*view.host, name).value;
    return value == "LOC" || value == "0";
  };
  if (view.gpus.size() > 1 && is_never("NCCL_P2P_LEVEL"))
    lines.push_back(unset("NCCL_P2P_LEVEL", doctor::setting_of(*view.host, "NCCL_P2P_LEVEL"),
                          "GPUs reach each other directly"));
  if (has_ports && is_never("NCCL_NET_GDR_LEVEL"))
    lines.push_back(unset("NCCL_NET_GDR_LEVEL",
                          doctor::setting_of(*view.host, "NCCL_NET_GDR_LEVEL"),
                          "NICs then never reach GPU memory directly"));
  const Setting ordering = doctor::setting_of(*view.host, "NCCL_IB_PCI_RELAXED_ORDERING");
  if (has_ports && !ordering.value.empty() && !doctor::is_on(ordering.value))
    undo("NCCL_IB_PCI_RELAXED_ORDERING", "2", "uses relaxed ordering where it is available");
}

void add_vm_advice(const Machine& machine, const HostView& view, std::vector<Line>& lines) {
  if (!doctor::is_flattened(machine, view) || ports_of(machine, view).used.empty()) return;
  if (!doctor::setting_of(*view.host, "NCCL_TOPO_FILE").value.empty()) return;
  lines.push_back({"NCCL_TOPO_FILE", "",
                   "NCCL_TOPO_FILE=FILE is needed: this virtual machine hides which NIC is near "
                   "which GPU; take the provider's file for it, or the catalog's (atoll-topo "
                   "--cluster NAME --format nccl-xml)"});
  const Facts& facts = view.host->facts;
  if (get_fact(facts, fact::peermem) == "yes" || get_fact(facts, fact::dma_buf) == "yes")
    lines.push_back({"NCCL_NET_GDR_LEVEL", "",
                     "without such a file only NCCL_NET_GDR_LEVEL=PHB makes NCCL use GPUDirect, "
                     "since every NIC seems to be at distance PHB"});
}

std::string shown(const Line& line) {
  if (line.value.empty()) return fmt::format("# {}\n", printable(line.reason));
  return fmt::format("# {}\n{}={}\n", printable(line.reason), line.name, line.value);
}

// Lines that hosts need differently: each as a comment with the hosts that need it.
std::string shown_for(const Machine& machine, const Line& line,
                      const std::vector<const TopologyHost*>& hosts) {
  std::vector<std::string> names;
  names.reserve(hosts.size());
  for (const TopologyHost* host : hosts) names.push_back(machine.names.host(host->id));
  const std::string where = enumerate(names, 4);
  if (line.value.empty())
    return fmt::format("# on {}: {}\n", printable(where), printable(line.reason));
  return fmt::format("# on {} only: {}={} ({})\n", printable(where), line.name, line.value,
                     printable(line.reason));
}

}  // namespace

std::string to_nccl_env(const Inspection& inspection) {
  const Machine machine(inspection.topology, {}, nullptr);
  std::map<Line, std::vector<const TopologyHost*>> needs;
  std::vector<Line> order;
  std::size_t hosts = 0;
  for (const HostView& view : machine.hosts) {
    if (view.gpus.empty()) continue;
    ++hosts;
    std::vector<Line> lines;
    add_hca(inspection, machine, view, lines);
    add_gid_index(machine, view, lines);
    add_interface(inspection, machine, view, lines);
    add_overrides(machine, view, lines);
    add_vm_advice(machine, view, lines);
    for (Line& line : lines) {
      std::vector<const TopologyHost*>& who = needs[line];
      if (who.empty()) order.push_back(line);
      who.push_back(view.host);
    }
  }
  if (hosts == 0) return "# nothing: NCCL joins GPUs, and this machine has none\n";
  std::string for_all, for_some;
  for (const Line& line : order) {
    const auto& who = needs[line];
    if (who.size() == hosts)
      for_all += shown(line);
    else
      for_some += shown_for(machine, line, who);
  }
  if (for_all.empty() && for_some.empty()) return "# nothing: NCCL's defaults fit this machine\n";
  return for_all + for_some;
}

}  // namespace atoll_v1::atoll
