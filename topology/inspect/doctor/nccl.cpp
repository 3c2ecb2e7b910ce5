// Checks of NCCL's settings in the environment and in nccl.conf.
//
// NCCL_IB_HCA and NCCL_SOCKET_IFNAME hold lists of names, separated by commas, each with an
// optional ":port" (NCCL's manual, "Environment Variables"). A '^' before the list excludes the
// names. An '=' before the list, after any '^', makes NCCL compare whole names instead of prefixes.
// NCCL reads at most 32 names.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

constexpr std::size_t most_names = 32;

struct NameList {
  struct Entry {
    std::string_view name;
    int port = -1;  // port of the adapter; -1 means all ports
    std::string_view text;
  };
  bool exclude = false, exact = false;
  std::vector<Entry> entries;

  explicit NameList(std::string_view list) {
    if (list.starts_with('^')) exclude = true, list.remove_prefix(1);
    if (list.starts_with('=')) exact = true, list.remove_prefix(1);
    for (const std::string_view text : words_of(list, ",")) {
      if (entries.size() == most_names) break;
      const std::size_t colon = std::min(text.find(':'), text.size());
      const std::string_view name = text.substr(0, colon), rest = text.substr(colon);
      const std::string_view port = rest.substr(0, rest.find(':', 1));
      if (!name.empty())
        entries.push_back(
            {name, parse_number<int>(port.substr(port.empty() ? 0 : 1)).value_or(-1), text});
    }
  }

  bool names(const Entry& entry, std::string_view name, int port) const {
    const bool same = exact ? name == entry.name : name.starts_with(entry.name);
    return same && (entry.port == -1 || port == -1 || port == entry.port);
  }
  // True if NCCL would use this port. An empty list selects all ports.
  bool selects(std::string_view name, int port) const {
    const bool named = entries.empty() || std::ranges::any_of(entries, [&](const Entry& entry) {
                         return names(entry, name, port);
                       });
    return named != exclude;
  }
};

struct Port {
  const NicView* nic = nullptr;
  std::string_view name;  // name of the adapter: "mlx5_0"
  int port = 1;
};

std::vector<Port> rdma_ports(const HostView& host) {
  std::vector<Port> ports;
  for (const NicView* nic : host.nics) {
    if (!nic->is_rdma) continue;
    const PortName name = split_port((*nic)->name);
    ports.push_back({nic, name.device, parse_number<int>(name.port).value_or(1)});
  }
  return ports;
}

std::string quoted(std::string_view name, const Setting& setting) {
  return fmt::format("{}={} ({})", name, setting.value, setting.where);
}

double gbyte_s(const std::vector<const NicView*>& nics) {
  double sum = 0;
  for (const NicView* nic : nics) sum += nic->usable_gbyte_s.value_or(0);
  return sum;
}

// Records whether a source read the NCCL settings of the host, or that it lacks the setting.
bool looks_at_settings(const HostView& host, std::string_view setting, CheckResult& result) {
  if (host.has_environment)
    result.looked();
  else
    result.lacks(host, setting);
  return host.has_environment;
}

// True if the prefix ends inside a number of the name. The prefix "mlx5_1" of "mlx5_10" is hardly
// intended; the prefix "mlx5" of "mlx5_0" usually is intended.
bool cuts_a_number(std::string_view prefix, std::string_view name) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return prefix.size() < name.size() && is_digit(prefix.back()) && is_digit(name[prefix.size()]);
}

// Reports names in NCCL_IB_HCA that match no adapter of the host, and names that also match other
// adapters as prefixes.
void judge_entries(const HostView& host, const std::string& setting, const NameList& list,
                   const std::vector<Port>& ports, CheckResult& result) {
  for (const NameList::Entry& entry : list.entries) {
    std::vector<std::string> also, longer;
    bool found = false, whole = false;
    for (const Port& port : ports) {
      if (!list.names(entry, port.name, port.port)) continue;
      found = true;
      if (port.name == entry.name) whole = true;
      if (port.name != entry.name) also.emplace_back(port.name);
      if (cuts_a_number(entry.name, port.name)) longer.emplace_back(port.name);
    }
    if (!found)
      result.add(host, {warning,
                        fmt::format("the setting {} names {}, which this host does not have",
                                    setting, entry.text),
                        list.exclude ? "this name excludes no NIC"
                                     : "NCCL uses fewer NICs than intended"});
    if (!whole) also = std::move(longer);
    also.erase(std::unique(also.begin(), also.end()), also.end());
    if (!also.empty())
      result.add(
          host, {warning,
                 fmt::format("{}: {}{}", setting,
                             whole ? fmt::format("as a prefix, {} also matches ", entry.name)
                                   : fmt::format("no adapter is called {}; as a prefix it matches ",
                                                 entry.name),
                             enumerate(also, 4)),
                 list.exclude ? "NCCL leaves out more NICs than intended"
                              : "NCCL uses more NICs than intended"});
  }
}

// Reports ports that NCCL_IB_HCA selects although no GPU should send through them.
void judge_excess(const HostView& host, const std::string& setting,
                  const std::vector<const NicView*>& useless, CheckResult& result) {
  const std::set<std::string_view> nearest = nearest_nics(host);
  // Without PCI paths, `nearest` is empty, so it is unknown which ports are far from the GPUs.
  if (useless.empty() || nearest.empty()) return;
  std::vector<std::string> names;
  bool far = false;
  for (const NicView* nic : useless) {
    names.push_back((*nic)->name);
    far = far || !nearest.contains((*nic)->id);
  }
  std::ranges::sort(names, natural_less);
  result.add(host, {far ? warning : info,
                    fmt::format("the setting {} selects {}, which no GPU should use", setting,
                                enumerate(names, 4)),
                    far ? "NCCL may send through ports that are slower or farther from the GPUs"
                        : "GPUs may get unequal shares of the ports"});
}

// Compares the ports that NCCL_IB_HCA selects with the ports that the GPUs should use.
void judge_choice(const HostView& host, const std::string& setting, const NameList& list,
                  const std::vector<Port>& ports, CheckResult& result) {
  const std::set<const NicView*> wanted = used_nics(host);
  std::vector<const NicView*> useful, kept, useless;
  std::set<std::string_view> layers;
  bool any = false;
  for (const Port& port : ports) {
    if (!port.nic->may_be_active) continue;
    const bool selected = list.selects(port.name, port.port);
    const bool is_wanted = wanted.contains(port.nic);
    any = any || selected;
    if (selected) layers.insert((*port.nic)->layer);
    if (selected) (is_wanted ? kept : useless).push_back(port.nic);
    if (is_wanted) useful.push_back(port.nic);
  }
  if (!any) {
    result.add(host, {error, fmt::format("the setting {} leaves NCCL no active port", setting),
                      "NCCL falls back to TCP sockets, or stops",
                      "unset NCCL_IB_HCA, or use the line that atoll-topo --format env prints"});
    return;
  }
  if (kept.size() < useful.size())
    result.add(host,
               {warning,
                fmt::format("the setting {} selects {} of the {} NICs that the GPUs should use",
                            setting, kept.size(), useful.size()),
                fmt::format("NCCL can use {:.4g} of {:.4g} GB/s", gbyte_s(kept), gbyte_s(useful))});
  if (layers.size() > 1)
    result.add(host, {warning,
                      fmt::format("the setting {} selects ports of several link layers: {}",
                                  setting, fmt::join(layers, ", ")),
                      "NCCL cannot connect ports of different link layers"});
  else
    judge_excess(host, setting, useless, result);
}

void nccl_ib_hca(const Machine& machine, CheckResult& result) {
  for (const HostView& host : machine.hosts) {
    const Setting setting = setting_of(host, "NCCL_IB_HCA");
    if (!host.has_rdma && setting.value.empty()) continue;
    if (!looks_at_settings(host, "env.NCCL_IB_HCA", result) || setting.value.empty()) continue;
    const std::vector<Port> ports = rdma_ports(host);
    const NameList list(setting.value);
    const std::string text = quoted("NCCL_IB_HCA", setting);
    judge_entries(host, text, list, ports, result);
    judge_choice(host, text, list, ports, result);
  }
}

void nccl_ib_disabled(const Machine& machine, CheckResult& result) {
  for (const HostView& host : machine.hosts) {
    std::vector<const NicView*> active;
    for (const NicView* nic : host.nics)
      if (nic->is_rdma && nic->may_be_active) active.push_back(nic);
    if (active.empty() || !looks_at_settings(host, "env.NCCL_IB_DISABLE", result)) continue;
    const Setting setting = setting_of(host, "NCCL_IB_DISABLE");
    if (!is_on(setting.value)) continue;
    const double lost = gbyte_s(active);
    result.add(
        host, {error,
               fmt::format("{}, and {} active", quoted("NCCL_IB_DISABLE", setting),
                           active.size() == 1 ? "an RDMA port is"
                                              : fmt::format("{} RDMA ports are", active.size())),
               lost > 0 ? fmt::format("{:.4g} GB/s are not used: NCCL sends over TCP sockets", lost)
                        : "NCCL sends over TCP sockets",
               setting.where == "environment" ? "unset NCCL_IB_DISABLE"
                                              : "remove NCCL_IB_DISABLE from nccl.conf, or set "
                                                "NCCL_IB_DISABLE=0 in the environment"});
  }
}

void nccl_p2p_disabled(const Machine& machine, CheckResult& result) {
  for (const HostView& host : machine.hosts) {
    if (host.gpus.size() < 2 || !looks_at_settings(host, "env.NCCL_P2P_DISABLE", result)) continue;
    const Setting disable = setting_of(host, "NCCL_P2P_DISABLE");
    const Setting level = setting_of(host, "NCCL_P2P_LEVEL");
    const bool is_disabled = is_on(disable.value);
    if (!is_disabled && level.value != "LOC" && level.value != "0") continue;
    std::optional<double> rate;
    bool linked = false;
    for (const GpuView* gpu : host.gpus) {
      if (gpu->island == nullptr || gpu->island->state != IslandState::known) continue;
      linked = true;
      if (gpu->island->gpu_gbyte_s) rate = gpu->island->gpu_gbyte_s;
    }
    std::string cost = "GPUs exchange data through CPU memory";
    if (linked)
      cost += rate ? fmt::format(" instead of their links of {:.4g} GB/s per GPU", *rate)
                   : " instead of their links";
    result.add(host,
               {linked ? error : warning,
                is_disabled ? quoted("NCCL_P2P_DISABLE", disable) : quoted("NCCL_P2P_LEVEL", level),
                cost});
  }
}

void nccl_shm_disabled(const Machine& machine, CheckResult& result) {
  for (const HostView& host : machine.hosts) {
    if (host.gpus.size() < 2 || !looks_at_settings(host, "env.NCCL_SHM_DISABLE", result)) continue;
    const Setting setting = setting_of(host, "NCCL_SHM_DISABLE");
    if (is_on(setting.value)) result.add(host, {warning, quoted("NCCL_SHM_DISABLE", setting)});
  }
}

void nccl_socket_ifname(const Machine& machine, CheckResult& result) {
  for (const HostView& host : machine.hosts) {
    const std::string_view interfaces = result.look(host, fact::net_interfaces);
    const Setting setting = setting_of(host, "NCCL_SOCKET_IFNAME");
    // NCCL ignores a value of one character, so the check does too.
    if (interfaces.empty() || setting.value.size() < 2) continue;
    const NameList list(setting.value);
    const std::vector<std::string_view> names = words_of(interfaces, " ,");
    const std::vector<std::string> present(names.begin(), names.end());
    std::vector<std::string> absent;
    for (const NameList::Entry& entry : list.entries)
      if (std::ranges::none_of(names, [&](auto name) { return list.names(entry, name, -1); }))
        absent.emplace_back(entry.name);
    const std::string text = quoted("NCCL_SOCKET_IFNAME", setting);
    if (std::ranges::none_of(names, [&](auto name) { return list.selects(name, -1); }))
      result.add(host, {error,
                        fmt::format("the setting {} leaves NCCL no interface; the host has {}",
                                    text, enumerate(present)),
                        "NCCL does not start",
                        "unset NCCL_SOCKET_IFNAME, or name an interface of this host"});
    else if (!absent.empty() && !list.exclude)
      result.add(host, {warning, fmt::format("the setting {} names {}, but the host has only {}",
                                             text, enumerate(absent), enumerate(present))});
  }
}

bool changes_transport(std::string_view name) {
  return starts_with_any(
      name, {"NCCL_IB_", "NCCL_NET", "NCCL_SOCKET_", "NCCL_P2P_", "NCCL_SHM_", "NCCL_ALGO",
             "NCCL_PROTO", "NCCL_TOPO_FILE", "NCCL_NVLS", "NCCL_MNNVL", "NCCL_CROSS_",
             "NCCL_COLLNET", "NCCL_GRAPH_", "NCCL_MIN_", "NCCL_MAX_", "NCCL_NCHANNELS"});
}

void nccl_conf(const Machine& machine, CheckResult& result) {
  for (const HostView& host : machine.hosts) {
    if (!looks_at_settings(host, "nccl.conf.*", result)) continue;
    const Facts& facts = host->facts;
    std::vector<std::string> settings;
    for (auto at = facts.lower_bound(fact::nccl_conf_prefix);
         at != facts.end() && at->first.starts_with(fact::nccl_conf_prefix); ++at) {
      const std::string name = at->first.substr(fact::nccl_conf_prefix.size());
      if (!changes_transport(name)) continue;
      const std::string_view env = host[fmt::format("{}{}", fact::env_prefix, name)];
      settings.push_back(fmt::format("{}={}", name, at->second));
      if (!env.empty()) settings.back() += fmt::format(" (the environment sets {})", env);
    }
    if (!settings.empty())
      result.add(host, {info, fmt::format("nccl.conf sets {}", fmt::join(settings, ", "))});
  }
}

constexpr CheckRow nccl_rows[] = {
    {"nccl_ib_hca", "NCCL_IB_HCA names the right NICs", nccl_ib_hca, "no RDMA NICs", "",
     "write '=' and whole names with ports, as in NCCL_IB_HCA==mlx5_0:1; atoll-topo --format env "
     "prints the whole line"},
    {"nccl_ib_disabled", "NCCL may use RDMA", nccl_ib_disabled, "no active RDMA ports"},
    {"nccl_socket_ifname", "NCCL_SOCKET_IFNAME names interfaces that exist", nccl_socket_ifname,
     "no hosts", "NCCL uses fewer interfaces than intended", "name interfaces of this host"},
    {"nccl_p2p_disabled", "NCCL may transfer data directly between GPUs", nccl_p2p_disabled,
     "no host with several GPUs", "", "unset NCCL_P2P_DISABLE NCCL_P2P_LEVEL (also in nccl.conf)"},
    {"nccl_shm_disabled", "NCCL may use shared memory", nccl_shm_disabled,
     "no host with several GPUs",
     "GPUs that cannot reach each other directly use the network even inside the host",
     "unset NCCL_SHM_DISABLE (also in nccl.conf)"},
    {"nccl_conf", "nccl.conf does not change the transports of NCCL", nccl_conf, "no hosts",
     "the settings apply to every job on the host that does not override them",
     "check that the settings are intended: /etc/nccl.conf, ~/.nccl.conf, $NCCL_CONF_FILE"},
};

}  // namespace

const std::span<const CheckRow> nccl_checks(nccl_rows);

}  // namespace atoll_v1::atoll::doctor
