// Checks of network ports: state, rate, errors, settings.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

// For each NIC, counts the GPUs that have this NIC among their nearest NICs, if none of these
// nearest NICs is active.
std::vector<std::size_t> gpus_without_other(const Machine& machine) {
  std::vector<std::size_t> gpus(machine.topology.nics.size());
  for (const Affinity& one : machine.affinity) {
    std::vector<std::size_t> nics;
    bool has_active = false;
    for (const std::string& id : one.nearest) {
      const std::size_t nic = machine.nic_number(id);
      if (nic == nowhere) continue;
      nics.push_back(nic);
      has_active = has_active || machine.may_be_active[nic];
    }
    if (has_active) continue;
    for (const std::size_t nic : nics) ++gpus[nic];
  }
  return gpus;
}

// Describes the remaining ports: "3 of 4 ports of this kind on the host are active, with 150 of 200
// GB/s".
std::string what_is_left(const Machine& machine, const HostView& view, std::string_view layer) {
  std::size_t all = 0, active = 0;
  double rate = 0;
  for (const std::size_t nic : view.nics) {
    if (!machine.is_rdma[nic] || machine.nic(nic).layer != layer) continue;
    ++all;
    if (!machine.may_be_active[nic]) continue;
    ++active;
    rate += machine.nic(nic).rate_gbit_s.value_or(0) / 8;
  }
  std::string text =
      fmt::format("{} of {} of this kind on the host are active", active, plural(all, "port"));
  if (active > 0 && rate > 0)
    text += fmt::format(", with {:.4g} of {:.4g} GB/s", rate,
                        rate / static_cast<double>(active) * static_cast<double>(all));
  return text;
}

bool is_ethernet(const TopologyNic& nic) { return nic.layer == "ethernet"; }

std::string why_idle(const TopologyNic& nic) {
  const std::string_view physical = get_fact(nic.facts, fact::phys_state);
  if (physical == "disabled") return " (disabled)";
  if (physical == "polling") return " (polling: no device answers)";
  if (nic.state != "down" && get_fact(nic.facts, fact::sm_lid) == "0")
    return " (no subnet manager has configured it)";
  return "";
}

Problem idle_port(const Machine& machine, std::size_t number, std::size_t gpus, std::string fix) {
  const TopologyNic& nic = machine.nic(number);
  Problem problem{gpus > 0 ? error : warning,
                  fmt::format("the port is {}{}", nic.state, why_idle(nic)),
                  what_is_left(machine, machine.host_of_nic(number), nic.layer), std::move(fix)};
  if (gpus > 0)
    problem.consequence =
        fmt::format("this is the nearest NIC of {}, which must send through farther NICs; {}",
                    plural(gpus, "GPU"), problem.consequence);
  if (!machine.is_rdma[number]) {
    problem.severity = info;
    problem.consequence = "none if no cable is plugged in";
  }
  return problem;
}

// Reports the ports that are in one of `states`. fix(nic) returns the remedy.
template <class Fix>
void idle_ports(const Machine& machine, CheckResult& result,
                std::span<const std::string_view> states, Fix fix) {
  std::vector<std::size_t> idle;
  for (std::size_t number = 0; number < machine.topology.nics.size(); ++number) {
    const TopologyNic& nic = machine.nic(number);
    if (nic.is_virtual) continue;
    if (nic.state.empty()) {
      result.lacks(*machine.host_of_nic(number).host, "link.state");
      continue;
    }
    result.looked();
    if (std::ranges::find(states, nic.state) != states.end()) idle.push_back(number);
  }
  if (idle.empty()) return;
  const std::vector<std::size_t> gpus = gpus_without_other(machine);
  for (const std::size_t number : idle)
    result.add(machine.nic(number),
               idle_port(machine, number, gpus[number], fix(machine.nic(number))));
}

void port_down(const Machine& machine, CheckResult& result) {
  constexpr std::array<std::string_view, 1> states{"down"};
  idle_ports(machine, result, states, [](const TopologyNic& nic) {
    std::string fix =
        is_ethernet(nic)
            ? "ip link set dev $(ls /sys/class/infiniband/NAME/device/net) up; check cable and "
              "switch port (mlxlink -d NAME)"
            : "check cable and switch port: ibstat NAME PORT; mlxlink -d NAME -p PORT";
    if (!is_rdma(nic)) fix = "ip link set dev NAME up; check cable and switch port";
    return fix + "; leave an unused port out of NCCL_IB_HCA";
  });
}

void port_initialising(const Machine& machine, CheckResult& result) {
  constexpr std::array<std::string_view, 2> states{"init", "armed"};
  idle_ports(machine, result, states, [](const TopologyNic&) {
    return "the link is up, but no subnet manager has set it up: sminfo; systemctl status opensm "
           "on the host (or check the switch) that should run the subnet manager";
  });
}

// Peers are ports that should be alike, because they have the same link layer and the same PCI
// device id. If the id is unknown, ports of the same link layer are peers; in a cluster they must
// also have the same name, since a host may have slow ports for storage and fast ports for GPUs.
using PeerKey = std::pair<std::string_view, std::string_view>;

PeerKey peers_of(const Machine& machine, std::size_t nic) {
  const std::string_view device = machine.nic_facts[fact::pci_device][nic];
  if (!device.empty()) return {machine.nic(nic).layer, device};
  if (machine.hosts.size() < 2) return {machine.nic(nic).layer, ""};
  return {machine.nic(nic).layer, machine.nic(nic).name};
}

// Compares each active port with its peers. If value_of(nic) is not the most frequent value among
// the peers, calls differs(nic, value, {most frequent value, its count}).
template <class Value, class Differs>
void compare(const Machine& machine, CheckResult& result, Value value_of, Differs differs) {
  std::map<PeerKey, Census<double>> peers;
  struct Entry {
    std::size_t nic;
    double value;
    Census<double>* census;
  };
  std::vector<Entry> entries;
  for (std::size_t nic = 0; nic < machine.topology.nics.size(); ++nic) {
    if (!machine.may_be_active[nic] || !machine.is_rdma[nic]) continue;
    const std::optional<double> value = value_of(nic);
    if (!value) continue;
    Census<double>& census = peers[peers_of(machine, nic)];
    census.add(*value);
    entries.push_back({nic, *value, &census});
  }
  for (const auto& [nic, value, census] : entries) {
    if (census->size() < 2) continue;
    result.looked();
    const auto& usual = census->majority();
    if (value != usual.first) differs(machine.nic(nic), value, usual);
  }
}

// Describes the most frequent value among the peers and its count: "3 peers have 400".
std::string others(const std::pair<double, std::size_t>& usual) {
  const auto& [value, count] = usual;
  return fmt::format("{} {} {:g}", count, count == 1 ? "peer has" : "peers have", value);
}

void port_slow(const Machine& machine, CheckResult& result) {
  std::set<std::string_view> used;
  for (const HostView& view : machine.hosts)
    for (const std::size_t nic : used_nics(machine, view)) used.insert(machine.nic(nic).id);
  const auto add = [&](const TopologyNic& nic, const std::string& evidence, std::string cost) {
    result.add(nic, {used.contains(nic.id) ? warning : info, evidence, std::move(cost),
                     "check cable, transceiver and the switch port's setting: mlxlink -d NAME -p "
                     "PORT; ibstat NAME PORT"});
  };
  Numbers widths(machine.nic_facts[fact::width]);
  compare(
      machine, result, [&](std::size_t nic) { return machine.nic(nic).rate_gbit_s; },
      [&](const TopologyNic& nic, double rate, const auto& most) {
        if (rate > most.first) return;
        add(nic, fmt::format("the port runs at {:g} Gbit/s, {}", rate, others(most)),
            fmt::format("the port carries {:.4g} of {:.4g} GB/s, and {}", rate / 8, most.first / 8,
                        used.contains(nic.id) ? "transfers over all rails wait for the slowest"
                                              : "no GPU sends through this port"));
      });
  compare(
      machine, result, [&](std::size_t nic) { return widths[nic]; },
      [&](const TopologyNic& nic, double lanes, const auto& most) {
        if (lanes > most.first) return;
        add(nic, fmt::format("the port has {:g} lanes, {}", lanes, others(most)),
            fmt::format("the port has {:.0f} % of its peers' bandwidth", 100 * lanes / most.first));
      });
}

void mtu_differs(const Machine& machine, CheckResult& result) {
  Numbers mtus(machine.nic_facts[fact::mtu]);
  compare(
      machine, result, [&](std::size_t nic) { return mtus[nic]; },
      [&](const TopologyNic& nic, double mtu, const auto& most) {
        result.add(nic, {warning, fmt::format("the MTU is {:g}, {}", mtu, others(most)),
                         "connections use the smaller MTU, and some fail",
                         is_ethernet(nic)
                             ? "ip link set dev $(ls /sys/class/infiniband/NAME/device/net) mtu "
                               "9000, and on the switch ports"
                             : "set one MTU for the partition in the subnet manager "
                               "(partitions.conf: mtu=5 is 4096)"});
      });
}

// Returns the first number of a firmware version: 28 for "28.39.1002". On NVIDIA's adapters this
// number identifies the type of device.
int firmware_family(std::string_view version) { return take_number<int>(version).value_or(-1); }

void firmware_differs(const Machine& machine, CheckResult& result) {
  // NICs with the same PCI device id should have the same firmware. If the id is unknown, NICs with
  // the same link layer and firmware family should.
  using Peers = std::pair<std::string_view, int>;
  std::map<Peers, Census<std::string_view>> peers;
  const auto devices = machine.nic_facts[fact::pci_device];
  const auto census_of = [&](std::size_t nic, std::string_view version) -> auto& {
    return devices[nic].empty() ? peers[{machine.nic(nic).layer, firmware_family(version)}]
                                : peers[{devices[nic], 0}];
  };
  each_nic(machine, result, fact::firmware, [&](std::size_t nic, std::string_view version) {
    census_of(nic, version).add(version);
  });
  each_nic(machine, result, fact::firmware, [&](std::size_t nic, std::string_view version) {
    const auto& [usual, count] = census_of(nic, version).majority();
    if (version == usual) return;
    result.add(machine.nic(nic),
               {info,
                fmt::format("the NIC has firmware {}, but {} of the same type {} {}", version,
                            plural(count, "NIC"), count == 1 ? "has" : "have", usual),
                "NICs with different firmware may behave differently under load",
                "mlxfwmanager --query; update all NICs to one version"});
  });
}

void link_errors(const Machine& machine, CheckResult& result) {
  std::vector<Subject> nics;
  std::vector<std::string> counts;
  each_nic(machine, result, fact::errors, [&](std::size_t nic, std::string_view errors) {
    if (errors == "none") return;
    nics.emplace_back(machine.nic(nic));
    if (counts.size() < 3)
      counts.push_back(fmt::format("{}: {}", machine.names.device(machine.nic(nic).id), errors));
  });
  if (nics.empty()) return;
  std::string evidence = fmt::format("{}", fmt::join(counts, "; "));
  if (nics.size() > counts.size())
    evidence += fmt::format("; and {} more", nics.size() - counts.size());
  result.add(
      nics,
      {warning, evidence,
       "packets are sent again or lost; rising counts mean a bad cable, transceiver or port",
       "check whether the counts rise: perfquery -x; mlxlink -d NAME -p PORT -c; clean or change "
       "the cable"});
}

Problem no_address() {
  return {warning, "the port has no routable RoCE v2 address (GID)",
          "the port reaches only hosts in its own network, or no host at all",
          "give the port's interface an IP address: ip address add ADDRESS/PREFIX dev $(ls "
          "/sys/class/infiniband/NAME/device/net); then show_gids NAME"};
}

Problem other_address(const Setting& setting, std::string_view index) {
  return {
      warning,
      fmt::format("NCCL_IB_GID_INDEX is {} ({}), but the routable RoCE v2 address has index {}",
                  setting.value, setting.where, index),
      "NCCL sends from another address, which peers may not reach",
      fmt::format("unset NCCL_IB_GID_INDEX (NCCL 2.21 and newer find the address), or set it to {}",
                  index)};
}

void roce_gid(const Machine& machine, CheckResult& result) {
  const auto indices = machine.nic_facts[fact::gid_roce_v2];
  for (std::size_t number = 0; number < indices.size(); ++number) {
    if (!machine.is_rdma[number] || !machine.may_be_active[number]) continue;
    const TopologyNic& nic = machine.nic(number);
    if (!is_ethernet(nic)) continue;
    const TopologyHost& host = *machine.host_of_nic(number).host;
    const std::string_view index = indices[number];
    if (index.empty()) {
      result.lacks(host, fact::gid_roce_v2);
      continue;
    }
    result.looked();
    const Setting setting = setting_of(host, "NCCL_IB_GID_INDEX");
    if (index == "none") {
      result.add(nic, no_address());
    } else if (!setting.value.empty() && setting.value != index && setting.value != "-1") {
      // With NCCL_IB_GID_INDEX=-1, NCCL chooses the address itself.
      result.add(nic, other_address(setting, index));
    }
  }
}

constexpr CheckRow rows[] = {
    {"port_down", "All ports are up", port_down, "no NICs"},
    {"port_initialising", "A subnet manager has set up all ports", port_initialising, "no NICs"},
    {"port_slow", "Ports are as fast as their peers", port_slow,
     "no two equal ports of known rate"},
    {"link_errors", "Ports count no errors", link_errors, "no NICs"},
    {"mtu_differs", "Ports have the same MTU", mtu_differs, "no two equal ports of known MTU"},
    {"firmware_differs", "NICs of one type have the same firmware", firmware_differs, "no NICs"},
    {"roce_gid", "RoCE ports have the address that NCCL uses", roce_gid, "no active RoCE ports"},
};

}  // namespace

const std::span<const CheckRow> network_checks(rows);

}  // namespace atoll_v1::atoll::doctor
