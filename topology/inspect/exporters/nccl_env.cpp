// Writes the NCCL settings that a machine needs in addition to the defaults.
//
// A shell can source the text. The text can also serve as nccl.conf, because it contains no quotes.
// No line is written for settings whose defaults suffice. According to NCCL's manual ("Environment
// Variables") and source, NCCL by default skips ports that are not active; prefers interfaces named
// ib*, then others, then docker*, lo and virbr*; finds the RoCE address (2.21 or newer); uses
// GPUDirect up to distance PXB; uses relaxed ordering if the NIC supports it; and sends along rails
// unless that is slower.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <compare>
#include <set>

#include "atoll/tooling/inspection.hpp"
#include "inspect/doctor/check.hpp"
#include "inspect/importers/nccl_tree.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

using doctor::HostView;
using doctor::NicView;
using doctor::Setting;

// A setting with the reason for it. A line without a value is advice, which is written as a
// comment.
struct Line {
  std::string name, value, reason;
  auto operator<=>(const Line&) const = default;
};

// True for NICs that NCCL's InfiniBand transport supports. EFA and Slingshot have plugins of their
// own.
bool has_verbs(const NicView& nic) {
  return nic.is_rdma && nic->layer != "efa" && nic->layer != "slingshot";
}

bool is_never(std::string_view level) { return level == "LOC" || level == "0"; }

// Returns the name that Azure's images give to a type of machine, by the PCI domains of its GPUs,
// which Azure chooses (https://github.com/Azure/azhpc-images/tree/master/topology); "" for others.
std::string_view azure_type(const HostView& host) {
  std::string domains;
  for (const doctor::GpuView* gpu : host.gpus) {
    const std::string& busid = (*gpu)->busid;
    if (!busid.starts_with("0000000") || !busid.ends_with(":00:00.0")) return "";
    domains += busid[7];
  }
  std::ranges::sort(domains);
  if (domains == "1234bcde") return "ndv4";
  return domains == "12389abc" ? "ndv5" : "";
}

// Finds the settings that one host needs.
class HostLines {
 public:
  HostLines(const Inspection& inspection, const HostView& host)
      : inspection_(inspection), host_(host), nearest_(doctor::nearest_nics(host)) {
    const std::set<const NicView*> used = doctor::used_nics(host);
    for (const NicView* nic : host.nics)
      if (has_verbs(*nic) && nic->may_be_active)
        (used.contains(nic) ? used_ : spare_).push_back(nic->part);
  }

  std::vector<Line> find() {
    add_hca();
    add_gid_index();
    add_interface();
    add_overrides();
    add_vm_advice();
    add_network_advice();
    return std::move(lines_);
  }

 private:
  Setting setting(std::string_view name) const { return doctor::setting_of(host_, name); }

  void add(std::string_view name, std::string_view value, std::string reason) {
    lines_.push_back({std::string(name), std::string(value), std::move(reason)});
  }

  // Adds the advice to remove a setting. The advice is a comment instead of an `unset` command,
  // because a shell cannot undo nccl.conf.
  void unset(std::string_view name, std::string_view reason) {
    add(name, "",
        fmt::format("unset {}, which is {} ({}): {}", name, setting(name).value,
                    setting(name).where, reason));
  }

  void override_with(std::string_view name, std::string_view value, std::string_view reason) {
    add(name, value,
        fmt::format("{}, but {} is {} ({})", reason, name, setting(name).value,
                    setting(name).where));
  }

  bool has_finding(std::string_view id) const {
    return std::ranges::any_of(inspection_.diagnosis.findings, [&](const Finding& finding) {
      return finding.id == id &&
             std::ranges::find(finding.subjects, host_->id) != finding.subjects.end();
    });
  }

  // Returns the reason to leave a port out of NCCL_IB_HCA; "" when there is no reason.
  std::string why_spare(const TopologyNic& nic) const {
    const TopologyNic& usual = *used_.front();
    if (nic.layer != usual.layer && !nic.layer.empty() && !usual.layer.empty())
      return fmt::format("{} instead of {}", nic.layer, usual.layer);
    if (nic.rate_gbit_s && usual.rate_gbit_s && *nic.rate_gbit_s < *usual.rate_gbit_s)
      return fmt::format("{:g} instead of {:g} Gbit/s", *nic.rate_gbit_s, *usual.rate_gbit_s);
    if (nearest_.empty()) return "";
    return nearest_.contains(nic.id) ? "left over when the GPUs share the NICs evenly"
                                     : "nearest to no GPU";
  }

  void add_hca() {
    constexpr std::string_view name = "NCCL_IB_HCA";
    const bool wrong = has_finding("nccl_ib_hca");
    if (used_.empty()) {
      if (wrong) unset(name, "the value does not fit this machine");
      return;
    }
    std::vector<std::string> spare, used;
    bool must = wrong;
    for (const TopologyNic* nic : spare_) {
      const std::string why = why_spare(*nic);
      must = must || !why.empty();
      spare.push_back(fmt::format("{} ({})", nic->name,
                                  why.empty() ? "no source shows the path to this NIC" : why));
    }
    if (!must) return;
    std::string reason;
    if (wrong)
      reason = fmt::format("selects the ports near the GPUs, unlike the present value {} ({})",
                           setting(name).value, setting(name).where);
    if (!spare.empty())
      reason += (wrong ? "; leaves out " : "leaves out ") + enumerate(spare, spare.size());
    for (const TopologyNic* nic : used_)
      used.push_back(split_port(nic->name).port.empty() ? nic->name + ":1" : nic->name);
    std::ranges::sort(used, natural_less);
    if (std::ranges::all_of(used, is_plain))
      add(name, fmt::format("={}", fmt::join(used, ",")), reason);
    else
      add(name, "", "NCCL_IB_HCA cannot be written: the name of a NIC has unusual characters");
  }

  void add_gid_index() {
    constexpr std::string_view name = "NCCL_IB_GID_INDEX";
    std::set<std::string_view> indices;
    for (const TopologyNic* nic : used_)
      if (nic->layer == "ethernet") indices.insert(get_fact(nic->facts, fact::gid_roce_v2));
    const std::string_view set = setting(name).value;
    const bool is_set = !set.empty() && set != "-1";
    if (indices.size() > 1 && is_set) unset(name, "no single GID index fits all NICs");
    if (indices.size() != 1 || !parse_number<int>(*indices.begin())) return;
    const std::string_view index = *indices.begin();
    if (is_set && set != index)
      override_with(name, index, "the routable RoCE v2 address of all NICs");
    else if (set.empty() && index != "0")
      add(name, "",
          fmt::format("only NCCL before 2.21 needs NCCL_IB_GID_INDEX={}, the routable RoCE v2 "
                      "address of all NICs; newer versions find the address",
                      index));
  }

  void add_interface() {
    constexpr std::string_view name = "NCCL_SOCKET_IFNAME";
    std::set<std::string_view> of_rdma;
    for (const TopologyNic* nic : used_) of_rdma.insert(get_fact(nic->facts, fact::netdev));
    std::vector<std::string> physical;
    std::vector<std::string> made_up;  // names of virtual interfaces: containers, tunnels
    bool has_ib = false;
    each_word(host_[fact::net_interfaces], " ,", [&](std::string_view word) {
      if (starts_with_any(word, {"docker", "lo", "virbr"}) || of_rdma.contains(word)) return;
      const bool is_made_up = nccl::is_virtual_name(word);
      has_ib = has_ib || (!is_made_up && word.starts_with("ib"));
      (is_made_up ? made_up : physical).emplace_back(word);
    });
    const bool wrong = has_finding("nccl_socket_ifname");
    if (physical.size() != 1 || !is_plain(physical.front())) {
      if (wrong) unset(name, "the value names interfaces that this host does not have");
    } else if (wrong) {
      add(name, "=" + physical.front(),
          fmt::format("the only physical interface, unlike the present value {} ({})",
                      setting(name).value, setting(name).where));
    } else if (!made_up.empty() && !has_ib) {
      add(name, "=" + physical.front(),
          fmt::format("the only physical interface; NCCL would also use {}",
                      enumerate(made_up, 4)));
    }
  }

  void add_overrides() {
    const auto is_set = [&](std::string_view name) { return doctor::is_on(setting(name).value); };
    const bool has_ports = !used_.empty(), has_peers = host_.gpus.size() > 1;
    if (has_ports && is_set("NCCL_IB_DISABLE"))
      override_with("NCCL_IB_DISABLE", "0", "the RDMA ports are usable");
    if (has_peers && is_set("NCCL_P2P_DISABLE"))
      override_with("NCCL_P2P_DISABLE", "0", "GPUs reach each other directly");
    if (has_peers && is_set("NCCL_SHM_DISABLE"))
      override_with("NCCL_SHM_DISABLE", "0",
                    "without shared memory, data travels over the network even inside the host");
    if (has_peers && is_never(setting("NCCL_P2P_LEVEL").value))
      unset("NCCL_P2P_LEVEL", "GPUs reach each other directly");
    if (has_ports && is_never(setting("NCCL_NET_GDR_LEVEL").value))
      unset("NCCL_NET_GDR_LEVEL", "with this value, NICs never access GPU memory directly");
    constexpr std::string_view ordering = "NCCL_IB_PCI_RELAXED_ORDERING";
    if (has_ports && !setting(ordering).value.empty() && !is_set(ordering))
      override_with(ordering, "2", "NCCL should use relaxed ordering where it is available");
  }

  void add_vm_advice() {
    const std::string_view type = azure_type(host_);
    const bool is_azure = !type.empty() || host_[fact::cloud] == "azure";
    if ((!doctor::is_flattened(host_) && !is_azure) || used_.empty()) return;
    if (!setting("NCCL_TOPO_FILE").value.empty()) return;
    if (!type.empty()) {
      const auto source = fmt::format(
          "Azure's images for this machine set it in /etc/nccl.conf (https://github.com/Azure/"
          "azhpc-images/blob/8e9d055fb9e1/components/customizations/{}.sh)",
          type);
      add("NCCL_TOPO_FILE", fmt::format("/opt/microsoft/{}/topo.xml", type),
          "the virtual machine hides which NIC is near which GPU; " + source);
      add("NCCL_IGNORE_CPU_AFFINITY", "1",
          source +
              "; that file also sets NCCL_IB_PCI_RELAXED_ORDERING=1, which NCCL's default "
              "implies");
      return;
    }
    add("NCCL_TOPO_FILE", "",
        fmt::format("NCCL_TOPO_FILE=FILE is needed: this virtual machine hides which NIC is near "
                    "which GPU; use {}",
                    is_azure ? "Azure's file, which Azure's images for this machine set in "
                               "/etc/nccl.conf (https://github.com/Azure/azhpc-images)"
                             : "the provider's file or one from the catalog (atoll-topo --cluster "
                               "NAME --format nccl-xml)"));
    if (host_[fact::peermem] == "yes" || host_[fact::dma_buf] == "yes")
      add("NCCL_NET_GDR_LEVEL", "",
          "without a topology file, only NCCL_NET_GDR_LEVEL=PHB makes NCCL use GPUDirect, since "
          "every NIC seems to be at distance PHB");
  }

  // Adds settings that NCCL needs beyond its defaults: on some networks, which the link layer of a
  // NIC identifies, and at some cloud providers. Each text names its source.
  void add_network_advice() {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 7> needs{
        {{"efa",
          "EFA needs the network plugin aws-ofi-nccl; without it NCCL sends over TCP "
          "(https://github.com/aws/aws-ofi-nccl). Version 1.7 with libfabric 1.18 needs no "
          "settings, 1.6 needs FI_EFA_USE_DEVICE_RDMA=1, older ones also FI_PROVIDER=efa and "
          "NCCL_PROTO=simple "
          "(https://github.com/aws-samples/awsome-distributed-training/blob/main/1.architectures/"
          "efa-cheatsheet.md)"},
         {"slingshot",
          "Slingshot needs the network plugin aws-ofi-nccl; without it NCCL sends over TCP "
          "(https://docs.cscs.ch/software/communication/nccl)"},
         {"google",
          "Google's A3 Mega (a3-megagpu-8g) needs the network plugin GPUDirect-TCPXO, without "
          "which NCCL sends over TCP, at about 4 instead of 340 GB/s "
          "(https://docs.nvidia.com/aicr/latest/integrator-guide/gke-tcpxo-networking.md); A3 High "
          "(a3-highgpu) needs GPUDirect-TCPX"},
         {"google",
          "A3 Mega on GKE: install the plugin with nccl-tcpxo-installer.yaml, run the container "
          "tcpxo-daemon in each pod of the job, set NCCL_LIB_DIR=/usr/local/nvidia/lib64, and "
          "source $NCCL_LIB_DIR/nccl-env-profile.sh in the container of the job before the "
          "program; this script sets NCCL_FASTRAK_*, NCCL_SOCKET_IFNAME, NCCL_TUNER_PLUGIN, "
          "NCCL_TUNER_CONFIG_PATH, NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE and others, so "
          "set none of them by hand (https://github.com/GoogleCloudPlatform/"
          "container-engine-accelerators/blob/master/gpudirect-tcpxo/README.md)"},
         {"google",
          "A3 High on GKE: install the plugin with nccl-tcpx-installer.yaml, run the container "
          "tcpx-daemon in each pod of the job, and set LD_LIBRARY_PATH, NCCL_GPUDIRECTTCPX_* and "
          "the others that the newest release lists (https://github.com/GoogleCloudPlatform/"
          "container-engine-accelerators/blob/master/gpudirect-tcpx/README.md)"},
         {"google",
          "machines without GKE: https://docs.cloud.google.com/compute/docs/gpus/gpudirect"},
         {"oracle",
          "Oracle's script for H100 sets NCCL_NET_PLUGIN=none NCCL_IB_GID_INDEX=3 NCCL_IB_TC=41 "
          "NCCL_IB_SL=0 NCCL_IB_QPS_PER_CONNECTION=16, and for NCCL before 2.20.3 also "
          "NCCL_TOPO_FILE "
          "(https://github.com/oracle-quickstart/oci-hpc/tree/master/samples/gpu)"}}};
    for (const auto& [network, need] : needs)
      if (host_[fact::cloud] == network ||
          std::ranges::any_of(host_.nics, [&](auto* nic) { return (*nic)->layer == network; }))
        add("NCCL_NET_PLUGIN", "", std::string(need));
  }

  const Inspection& inspection_;
  const HostView& host_;
  std::set<std::string_view> nearest_;  // ids of the NICs that are nearest to a GPU
  std::vector<const TopologyNic*> used_, spare_;
  std::vector<Line> lines_;
};

std::string shown(const Line& line) {
  if (line.value.empty()) return fmt::format("# {}\n", printable(line.reason));
  return fmt::format("# {}\n{}={}\n", printable(line.reason), line.name, line.value);
}

// Formats a setting that only some hosts need: as a comment that names these hosts.
std::string shown_for(const std::vector<std::string>& hosts, const Line& line) {
  const std::string where = enumerate(hosts, 4);
  if (line.value.empty())
    return fmt::format("# on {}: {}\n", printable(where), printable(line.reason));
  return fmt::format("# on {} only: {}={} ({})\n", printable(where), line.name, line.value,
                     printable(line.reason));
}

}  // namespace

std::string to_nccl_env(const Inspection& inspection) {
  const doctor::Machine machine(inspection.topology, {}, nullptr);
  std::map<Line, std::vector<std::string>> needs;  // for each line, the hosts that need it
  std::vector<Line> order;
  std::size_t hosts = 0;
  bool shows_links = true;
  for (const HostView& host : machine.hosts) {
    if (host.gpus.empty()) continue;
    ++hosts;
    shows_links = shows_links && host->gpu_links != IslandState::unknown;
    for (const Line& line : HostLines(inspection, host).find()) {
      std::vector<std::string>& who = needs[line];
      if (who.empty()) order.push_back(line);
      who.push_back(machine.names.host(host->id));
    }
  }
  if (hosts == 0) return "# no settings: this machine has no GPUs\n";
  std::string for_all, for_some;
  for (const Line& line : order) {
    const auto& who = needs[line];
    if (who.size() == hosts)
      for_all += shown(line);
    else
      for_some += shown_for(who, line);
  }
  if (for_all.empty() && for_some.empty())
    return fmt::format(
        "# {}. They do not show the cloud: if --cluster list shows this machine, use --cluster "
        "NAME\n",
        shows_links ? "no settings: the files show no need for any"
                    : "not known: the files do not show the links of the GPUs");
  return for_all + for_some;
}

}  // namespace atoll_v1::atoll
