// Reads ports of network adapters from /sys/class/infiniband (InfiniBand, RoCE, EFA, Omni-Path) and
// /sys/class/net. hwloc reports neither rate nor link layer of a port, and may see no port in a
// container. The kernel documents the files in Documentation/ABI/stable/sysfs-class-infiniband.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include "facts.hpp"
#include "parse_number.hpp"
#include "sources/small_file.hpp"
#include "sources/source.hpp"
#include "sources/sysfs_netdevs.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

namespace fs = std::filesystem;

constexpr long long vendor_amazon = 0x1d0f, vendor_intel = 0x8086;
constexpr unsigned most_gids = 256;
// The GID table may have gaps, but not long ones: reading stops after this many empty entries.
constexpr unsigned most_empty_gids = 32;

// Counters of cable errors and of errors at the far end. Discards are not among them, since
// congestion causes discards too.
constexpr std::array<const char*, 6> error_counters{
    "symbol_error",    "link_error_recovery",         "link_downed",
    "port_rcv_errors", "local_link_integrity_errors", "excessive_buffer_overrun_errors"};

// A port's rate: "400 Gb/sec (4X NDR)".
struct Rate {
  double gbit_s = 0;
  int lanes = 0;  // number of lanes; 0 if not given
};

std::optional<Rate> parse_rate(std::string_view text) {
  Rate rate;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, rate.gbit_s);
  std::string_view rest(end, static_cast<std::size_t>(last - end));
  constexpr std::string_view unit = " Gb/sec";
  if (error != std::errc() || !rest.starts_with(unit) || !(rate.gbit_s > 0) || rate.gbit_s > 1e6)
    return std::nullopt;
  rest.remove_prefix(unit.size());
  if (rest.starts_with(" (")) {
    rest.remove_prefix(2);
    std::from_chars(rest.data(), rest.data() + rest.size(), rate.lanes);
  }
  return rate;
}

// Returns the name of a numbered state: "4: ACTIVE" -> "active".
std::string second_word(const std::string& text) {
  const auto colon = text.find(": ");
  return lower_case(colon == std::string::npos ? text : text.substr(colon + 2));
}

std::string layer_of(std::string_view link_layer, long long vendor, std::string_view adapter) {
  if (vendor == vendor_amazon) return "efa";
  const std::string layer = lower_case(link_layer);
  if (layer == "infiniband" && (vendor == vendor_intel || adapter.starts_with("hfi1")))
    return "omni-path";
  return layer == "infiniband" || layer == "ethernet" ? layer : "";
}

bool is_zero_guid(std::string_view guid) {
  return guid.find_first_not_of("0:x") == std::string_view::npos;
}

// Lists the error counters that are not zero, or "none"; "" when no counter can be read.
std::string errors_of(const fs::path& counters) {
  std::string text;
  bool is_any_readable = false;
  for (const char* name : error_counters) {
    const auto count = read_number(counters / name);
    if (!count) continue;
    is_any_readable = true;
    if (*count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, *count);
  }
  return text.empty() && is_any_readable ? "none" : text;
}

// A routable GID is neither link-local (fe80::/10) nor 169.254/16 mapped into IPv6.
bool is_routable(std::string_view gid) {
  for (const std::string_view local :
       {"fe8", "fe9", "fea", "feb", "0000:0000:0000:0000:0000:ffff:a9fe:"})
    if (gid.starts_with(local)) return false;
  return !is_zero_guid(gid);
}

std::string roce_gid(const fs::path& port) {
  bool is_any_readable = false;
  unsigned empty = 0;
  for (unsigned i = 0; i < most_gids && empty < most_empty_gids; ++i) {
    std::string number = fmt::to_string(i);
    const std::string gid = first_line(port / "gids" / number);
    if (gid.empty() || is_zero_guid(gid)) {
      ++empty;
      continue;
    }
    empty = 0;
    const std::string type = first_line(port / "gid_attrs/types" / number);
    is_any_readable = is_any_readable || !type.empty();
    if (type == "RoCE v2" && is_routable(lower_case(gid))) return number;
  }
  return is_any_readable ? "none" : "";
}

// If one PCI function has several ports, dev_port tells their interfaces apart; it counts from 0.
std::string netdev_of(const fs::path& adapter, const fs::path& port, int number) {
  if (std::string name = first_line(port / "gid_attrs/ndevs/0"); !name.empty()) return name;
  const std::vector<std::string> names = entries(adapter / "device/net");
  for (const std::string& name : names)
    if (names.size() > 1 && read_number(adapter / "device/net" / name / "dev_port") == number - 1)
      return name;
  return names.empty() ? "" : names[0];
}

void set_number(Facts& facts, std::string_view name, const fs::path& file) {
  if (const auto number = read_number(file)) set_fact(facts, name, fmt::to_string(*number));
}

struct Port {
  fs::path adapter;  // folder of the adapter
  std::string adapter_name;
  int number = 1;
  fs::path folder() const { return adapter / "ports" / fmt::to_string(number); }
};

void describe_link(const fs::path& port, TopologyNic& nic) {
  if (const std::string state = first_line(port / "state"); !state.empty())
    nic.state = second_word(state);
  if (nic.state == "active_defer") nic.state = "active";
  if (const std::string state = first_line(port / "phys_state"); !state.empty())
    set_fact(nic.facts, fact::phys_state, second_word(state));
  // A port that is down reports the slowest rate of its kind, which is not the adapter's rate.
  if (nic.state == "active") {
    if (const auto rate = parse_rate(first_line(port / "rate"))) {
      nic.rate_gbit_s = rate->gbit_s;
      nic.evidence = "sysfs";
      if (rate->lanes > 0) set_fact(nic.facts, fact::width, fmt::to_string(rate->lanes));
    }
  }
  set_fact(nic.facts, fact::errors, errors_of(port / "counters"));
}

void describe(const LiveRequest& request, const Port& port, TopologyNic& nic) {
  const fs::path folder = port.folder();
  const long long vendor = read_number(port.adapter / "device/vendor").value_or(0);
  const std::string layer = layer_of(first_line(folder / "link_layer"), vendor, port.adapter_name);
  if (!layer.empty()) nic.layer = layer;
  describe_link(folder, nic);
  if (nic.adapter.empty() || is_zero_guid(nic.adapter)) {
    nic.adapter = first_line(port.adapter / "sys_image_guid");
    // All zeros means no GUID, which must not make several adapters look like one.
    if (is_zero_guid(nic.adapter)) nic.adapter.clear();
  }
  set_fact(nic.facts, fact::firmware, first_line(port.adapter / "fw_ver"));
  if (const std::string guid = first_line(port.adapter / "node_guid"); !is_zero_guid(guid))
    set_fact(nic.facts, fact::node_guid, guid);
  if (nic.layer == "infiniband" || nic.layer == "omni-path") {
    set_number(nic.facts, fact::lid, folder / "lid");
    set_number(nic.facts, fact::sm_lid, folder / "sm_lid");
  }
  set_fact(nic.facts, fact::netdev, netdev_of(port.adapter, folder, port.number));
  if (nic.layer != "ethernet") return;
  set_fact(nic.facts, fact::gid_roce_v2, roce_gid(folder));
  if (const auto netdev = get_fact(nic.facts, fact::netdev); !netdev.empty())
    set_number(nic.facts, fact::mtu, fs::path(request.sysfs) / "class/net" / netdev / "mtu");
}

// Returns the NIC of a port; adds it when no earlier source saw it.
TopologyNic& nic_of(const LiveRequest& request, const Port& port, Topology& topology) {
  std::string name = printable(port.adapter_name, 64);
  if (port.number != 1) name += fmt::format(":{}", port.number);
  for (TopologyNic& nic : topology.nics)
    if (nic.host == request.host_id && nic.name == name) return nic;
  TopologyNic nic;
  nic.id = fmt::format("{}/{}", request.host_id, name);
  nic.host = request.host_id;
  nic.name = std::move(name);
  std::error_code error;
  nic.busid = busid_of_class_device(port.adapter / "device");
  nic.is_virtual = !fs::exists(port.adapter / "device", error);  // RDMA in software
  topology.nics.push_back(std::move(nic));
  return topology.nics.back();
}

int port_number(std::string_view name) {
  const int number = parse_number<int>(name).value_or(0);
  return number <= 255 ? number : 0;
}

}  // namespace

void sysfs_ports(const LiveRequest& request, Topology& topology) {
  const fs::path adapters = fs::path(request.sysfs) / "class/infiniband";
  for (const std::string& adapter : entries(adapters))
    for (const std::string& name : entries(adapters / adapter / "ports")) {
      const Port port{adapters / adapter, adapter, port_number(name)};
      if (port.number > 0) describe(request, port, nic_of(request, port, topology));
    }
  const auto host = std::ranges::find(topology.hosts, request.host_id, &TopologyHost::id);
  if (host != topology.hosts.end()) add_netdevs(request, *host, topology);
}

}  // namespace atoll_v1::atoll::topology_sources
