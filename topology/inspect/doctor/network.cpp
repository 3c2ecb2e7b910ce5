// Checks of network ports: state, rate, errors, settings.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

// For each NIC, counts the GPUs that have this NIC among their nearest NICs, if none of these
// nearest NICs is active.
std::map<const NicView*, std::size_t> gpus_without_other(const Machine& machine) {
  std::map<const NicView*, std::size_t> gpus;
  for (const Affinity& one : machine.affinity) {
    std::vector<const NicView*> nics;
    for (const std::string& id : one.nearest)
      if (const NicView* const nic = machine.nic(id)) nics.push_back(nic);
    if (std::ranges::any_of(nics, &NicView::may_be_active)) continue;
    for (const NicView* nic : nics) ++gpus[nic];
  }
  return gpus;
}

// Describes the remaining ports: "3 of 4 ports of this kind on the host are active, with 150 of 200
// GB/s".
std::string what_is_left(const HostView& host, std::string_view layer) {
  std::size_t all = 0, active = 0;
  double rate = 0;
  for (const NicView* nic : host.nics) {
    if (!nic->is_rdma || (*nic)->layer != layer) continue;
    ++all;
    if (!nic->may_be_active) continue;
    ++active;
    rate += (*nic)->rate_gbit_s.value_or(0) / 8;
  }
  std::string text =
      fmt::format("{} of {} of this kind on the host are active", active, plural(all, "port"));
  if (active > 0 && rate > 0)
    text += fmt::format(", with {:.4g} of {:.4g} GB/s", rate,
                        rate / static_cast<double>(active) * static_cast<double>(all));
  return text;
}

bool is_ethernet(const NicView& nic) { return nic->layer == "ethernet"; }

std::string why_idle(const NicView& nic) {
  const std::string_view physical = nic[fact::phys_state];
  if (physical == "disabled") return " (disabled)";
  if (physical == "polling") return " (polling: no device answers)";
  if (nic->state != "down" && nic[fact::sm_lid] == "0")
    return " (no subnet manager has configured it)";
  return "";
}

// Describes a port that is down. `gpus` GPUs have it as nearest NIC and no nearest NIC that is up.
Problem idle_port(const NicView& nic, std::size_t gpus) {
  const std::string evidence = fmt::format("the port is {}{}", nic->state, why_idle(nic));
  if (!nic.is_rdma) return {info, evidence, "none if no cable is plugged in"};
  const std::string left = what_is_left(nic.host(), nic->layer);
  if (gpus == 0) return {warning, evidence, left};
  return {error, evidence,
          fmt::format("this is the nearest NIC of {}, which must send through farther NICs; {}",
                      plural(gpus, "GPU"), left)};
}

// Reports the ports that are in one of `states`. fix(nic) returns the remedy.
template <class Fix>
void idle_ports(const Machine& machine, CheckResult& result,
                std::initializer_list<std::string_view> states, Fix fix) {
  std::vector<const NicView*> idle;
  for (const NicView& nic : machine.nics) {
    if (nic->is_virtual) continue;
    if (nic->state.empty())
      result.lacks(nic.host(), "link.state");
    else
      result.looked();
    if (std::ranges::find(states, nic->state) != states.end()) idle.push_back(&nic);
  }
  if (idle.empty()) return;
  auto gpus = gpus_without_other(machine);
  for (const NicView* nic : idle) {
    Problem problem = idle_port(*nic, gpus[nic]);
    problem.fix = fix(*nic);
    result.add(*nic, problem);
  }
}

void port_down(const Machine& machine, CheckResult& result) {
  idle_ports(machine, result, {"down"}, [](const NicView& nic) {
    std::string fix =
        is_ethernet(nic)
            ? "ip link set dev $(ls /sys/class/infiniband/NAME/device/net) up; check cable and "
              "switch port (mlxlink -d NAME)"
            : "check cable and switch port: ibstat NAME PORT; mlxlink -d NAME -p PORT";
    if (!nic.is_rdma) fix = "ip link set dev NAME up; check cable and switch port";
    return fix + "; leave an unused port out of NCCL_IB_HCA";
  });
}

void port_initialising(const Machine& machine, CheckResult& result) {
  idle_ports(machine, result, {"init", "armed"}, [](const NicView&) { return ""; });
}

// Peers are ports that should be alike, because they have the same link layer and the same PCI
// device id. If the id is unknown, ports of the same link layer are peers; in a cluster they must
// also have the same name, since a host may have slow ports for storage and fast ports for GPUs.
using PeerKey = std::pair<std::string_view, std::string_view>;

PeerKey peers_of(const Machine& machine, const NicView& nic) {
  const std::string_view device = nic[fact::pci_device];
  if (!device.empty()) return {nic->layer, device};
  if (machine.hosts.size() < 2) return {nic->layer, ""};
  return {nic->layer, nic->name};
}

// Compares each active port with its peers. If value_of(nic) is not the most frequent value among
// the peers, calls differs(nic, value, {most frequent value, its count}).
template <class Value, class Differs>
void compare(const Machine& machine, CheckResult& result, Value value_of, Differs differs) {
  std::map<PeerKey, Census<double>> peers;
  const auto each = [&](auto look) {
    for (const NicView& nic : machine.nics)
      if (const std::optional<double> value = value_of(nic);
          value && nic.may_be_active && nic.is_rdma)
        look(nic, *value, peers[peers_of(machine, nic)]);
  };
  each([](const NicView&, double value, auto& census) { census.add(value); });
  each([&](const NicView& nic, double value, const auto& census) {
    if (census.size() < 2) return;
    result.looked();
    if (value != census.majority().first) differs(nic, value, census.majority());
  });
}

// Describes the most frequent value among the peers and its count: "3 peers have 400".
std::string others(const std::pair<double, std::size_t>& usual) {
  const auto& [value, count] = usual;
  return fmt::format("{} {} {:g}", count, count == 1 ? "peer has" : "peers have", value);
}

void port_slow(const Machine& machine, CheckResult& result) {
  std::set<const NicView*> used;
  for (const GpuView& gpu : machine.gpus) used.insert(gpu.used.begin(), gpu.used.end());
  const auto severity = [&](const NicView& nic) { return used.contains(&nic) ? warning : info; };
  compare(
      machine, result, [](const NicView& nic) { return nic->rate_gbit_s; },
      [&](const NicView& nic, double rate, const auto& most) {
        if (rate > most.first) return;
        result.add(
            nic,
            {severity(nic), fmt::format("the port runs at {:g} Gbit/s, {}", rate, others(most)),
             fmt::format("the port carries {:.4g} of {:.4g} GB/s, and {}", rate / 8, most.first / 8,
                         used.contains(&nic) ? "transfers over all rails wait for the slowest"
                                             : "no GPU sends through this port")});
      });
  compare(
      machine, result, [](const NicView& nic) { return nic.number(fact::width); },
      [&](const NicView& nic, double lanes, const auto& most) {
        if (lanes > most.first) return;
        result.add(nic,
                   {severity(nic), fmt::format("the port has {:g} lanes, {}", lanes, others(most)),
                    fmt::format("the port has {:.0f} % of its peers' bandwidth",
                                100 * lanes / most.first)});
      });
}

void mtu_differs(const Machine& machine, CheckResult& result) {
  compare(
      machine, result, [](const NicView& nic) { return nic.number(fact::mtu); },
      [&](const NicView& nic, double mtu, const auto& most) {
        result.add(nic, {warning, fmt::format("the MTU is {:g}, {}", mtu, others(most)), "",
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
  const auto each = [&](auto look) {
    for (const NicView& nic : machine.nics) {
      if (nic->is_virtual) continue;
      const std::string_view version = result.look(nic, fact::firmware);
      const std::string_view device = nic[fact::pci_device];
      if (!version.empty())
        look(
            nic, version,
            peers[device.empty() ? Peers(nic->layer, firmware_family(version)) : Peers(device, 0)]);
    }
  };
  each([](const NicView&, std::string_view version, auto& census) { census.add(version); });
  each([&](const NicView& nic, std::string_view version, const auto& census) {
    const auto& [usual, count] = census.majority();
    if (version != usual)
      result.add(
          nic, {info, fmt::format("the NIC has firmware {}, but {} of the same type {} {}", version,
                                  plural(count, "NIC"), count == 1 ? "has" : "have", usual)});
  });
}

void link_errors(const Machine& machine, CheckResult& result) {
  std::vector<Subject> nics;
  std::vector<std::string> counts;
  for (const NicView& nic : machine.nics) {
    const std::string_view errors = nic->is_virtual ? "" : result.look(nic, fact::errors);
    if (errors.empty() || errors == "none") continue;
    nics.emplace_back(nic);
    if (counts.size() < 3)
      counts.push_back(fmt::format("{}: {}", machine.names.device(nic->id), errors));
  }
  if (nics.empty()) return;
  std::string evidence = fmt::format("{}", fmt::join(counts, "; "));
  if (nics.size() > counts.size())
    evidence += fmt::format("; and {} more", nics.size() - counts.size());
  result.add(nics, {warning, evidence});
}

void roce_gid(const Machine& machine, CheckResult& result) {
  for (const NicView& nic : machine.nics) {
    if (!nic.is_rdma || !nic.may_be_active || !is_ethernet(nic)) continue;
    const std::string_view index = result.look(nic, fact::gid_roce_v2);
    const Setting setting = setting_of(nic.host(), "NCCL_IB_GID_INDEX");
    // With NCCL_IB_GID_INDEX=-1, NCCL chooses the address itself.
    const bool is_set = !setting.value.empty() && setting.value != "-1";
    if (index == "none")
      result.add(nic, {warning, "the port has no routable RoCE v2 address (GID)"});
    else if (!index.empty() && is_set && setting.value != index)
      result.add(nic, {warning,
                       fmt::format("NCCL_IB_GID_INDEX is {} ({}), but the routable RoCE v2 address "
                                   "has index {}",
                                   setting.value, setting.where, index),
                       "NCCL sends from another address, which peers may not reach",
                       fmt::format("unset NCCL_IB_GID_INDEX (NCCL 2.21 and newer find the "
                                   "address), or set it to {}",
                                   index)});
  }
}

constexpr CheckRow network_rows[] = {
    {"port_down", "All physical ports are up", port_down, "no NICs"},
    {"port_initialising", "A subnet manager has set up all ports", port_initialising, "no NICs", "",
     "the link is up, but no subnet manager has set it up: sminfo; systemctl status opensm on the "
     "host (or check the switch) that should run the subnet manager"},
    {"port_slow", "Ports are as fast as their peers", port_slow,
     "no two ports of one type with known rates", "",
     "check cable, transceiver and the switch port's setting: mlxlink -d NAME -p PORT; ibstat NAME "
     "PORT"},
    {"link_errors", "Ports count no errors", link_errors, "no NICs",
     "packets are sent again or lost; rising counts mean a bad cable, transceiver or port",
     "check whether the counts rise: perfquery -x; mlxlink -d NAME -p PORT -c; clean or change the "
     "cable"},
    {"mtu_differs", "Ports have the same MTU", mtu_differs,
     "no two ports of one type with known MTU", "connections use the smaller MTU, and some fail"},
    {"firmware_differs", "NICs of one type have the same firmware", firmware_differs, "no NICs",
     "NICs with different firmware may behave differently under load",
     "mlxfwmanager --query; update all NICs to one version"},
    {"roce_gid", "RoCE ports have the address that NCCL uses", roce_gid, "no active RoCE ports",
     "the port reaches only hosts in its own network, or no host at all",
     "give the port's interface an IP address: ip address add ADDRESS/PREFIX dev $(ls "
     "/sys/class/infiniband/NAME/device/net); then show_gids NAME"},
};

}  // namespace

const std::span<const CheckRow> network_checks(network_rows);

}  // namespace atoll_v1::atoll::doctor
