// Reads from a fabric file which leaf switch each NIC port is connected to. The file is atoll's own
// JSON or the output of `ibnetdiscover`.
//
// The output of ibnetdiscover(8) has a block for each node, and shows each cable twice:
//
//   Switch  40 "S-b8599f0300fc6de4"      # "leaf-3" enhanced port 0 lid 13 lmc 0
//   [1]     "H-ec0d9a03007d7d0a"[1](ec0d9a03007d7d0a)    # "node0 mlx5_0" lid 9 4xEDR
//
//   Ca      1 "H-ec0d9a03007d7d0a"       # "node0 mlx5_0"
//   [1](ec0d9a03007d7d0a)   "S-b8599f0300fc6de4"[1]      # lid 9 lmc 0 "leaf-3" lid 13 4xEDR
//
// A port in the file is matched with a NIC by the GUID of the port's node, else by the description
// of the node. rdma-ndd writes the host and the device as description ("node0 mlx5_0"); older
// scripts number the devices ("node0 HCA-1"). A GUID or description that fits several NICs is
// ignored. Ports of other hosts are ignored too, because a fabric is larger than a job.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "atoll/tooling/load.hpp"
#include "facts.hpp"
#include "inspect/importers/importer.hpp"
#include "json/document.hpp"
#include "parse_number.hpp"
#include "sources/small_file.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

using namespace topology_sources;

constexpr std::size_t longest_line = std::size_t{64} << 10;
constexpr std::size_t longest_part = 256;
constexpr std::size_t most_ports = 1'000'000;
constexpr std::string_view schema = "atoll-fabric-1";

// Converts "506b:4b03:00cb:b4e2" or "0x506b4b0300cbb4e2" to "506b4b0300cbb4e2", without leading
// zeros. Returns "" when the text is not a GUID, and for a GUID of zeros.
std::string guid_of(std::string_view text) {
  std::string guid(text);
  std::erase(guid, ':');
  guid = hex_digits(guid);
  guid.erase(0, std::min(guid.find_first_not_of('0'), guid.size()));
  return guid;
}

std::string short_name(std::string_view host) { return lower_case(host.substr(0, host.find('.'))); }

// Finds the NICs of a topology by the names that fabric files use.
class NicNames {
 public:
  explicit NicNames(const Topology& topology) {
    for (const TopologyHost& host : topology.hosts) {
      hosts_[lower_case(host.id)].insert(host.id);
      hosts_[lower_case(host.name)].insert(host.id);
      if (short_name(host.name) != lower_case(host.name))
        short_hosts_[short_name(host.name)].insert(host.id);
    }
    for (std::size_t nic = 0; nic < topology.nics.size(); ++nic) {
      const TopologyNic& one = topology.nics[nic];
      ports_[{one.host, port_name(one)}].insert(nic);
      devices_[{one.host, one.name}].insert(nic);
      const std::string guid = guid_of(get_fact(one.facts, fact::node_guid));
      if (!guid.empty()) guids_[{guid, port_of(one)}].insert(nic);
      if (one.name.starts_with("mlx") && port_of(one) == 1) numbered_[one.host].push_back(one.name);
    }
    for (auto& [host, names] : numbered_) std::ranges::sort(names, natural_less);
  }

  // Returns the ids of the hosts with this name. The domain may be missing in the file or in the
  // topology.
  const std::set<std::string>& hosts(std::string_view text) const {
    const auto& whole = look_up(hosts_, lower_case(text));
    if (!whole.empty()) return whole;
    const auto& without_domain = look_up(short_hosts_, lower_case(text));
    return without_domain.empty() ? look_up(hosts_, short_name(text)) : without_domain;
  }

  // Returns the position of the NIC called "mlx5_0" or "mlx5_0:2" on a host.
  std::optional<std::size_t> nic(const std::string& host, std::string_view text) const {
    const std::pair key(host, std::string(text));
    const auto port = only(look_up(ports_, key));
    return port ? port : only(look_up(devices_, key));
  }

  std::optional<std::size_t> by_guid(std::string_view guid, int port) const {
    return only(look_up(guids_, {guid_of(guid), port}));
  }

  // Returns the id of the host in a description such as "node0 mlx5_0"; null for other hosts.
  const std::string* host_in(std::string_view text) const {
    const std::size_t space = trimmed(text).rfind(' ');
    if (space == std::string_view::npos) return nullptr;
    const std::set<std::string>& found = hosts(trimmed(trimmed(text).substr(0, space)));
    return found.size() == 1 ? &*found.begin() : nullptr;
  }

  // Finds a NIC by a description such as "node0 mlx5_0" or "node0 HCA-1". HCA-1 is the first mlx
  // device of the host.
  std::optional<std::size_t> by_description(std::string_view text, int port) const {
    const std::string* const host = host_in(text);
    if (host == nullptr) return std::nullopt;
    const std::string& id = *host;
    std::string device(trimmed(text).substr(trimmed(text).rfind(' ') + 1));
    if (device.starts_with("HCA-")) {
      const auto names = numbered_.find(id);
      const auto number = parse_number<std::size_t>(device.substr(4)).value_or(0);
      if (names == numbered_.end() || number < 1 || number > names->second.size())
        return std::nullopt;
      device = names->second[number - 1];
    }
    return nic(id, port > 1 ? fmt::format("{}:{}", device, port) : device);
  }

 private:
  // Maps each name to all hosts or NICs that have this name.
  template <class Key, class Value>
  using Names = std::map<Key, std::set<Value>>;

  // Returns no copy of the set: a million ports may look up one name that many hosts have.
  template <class Key, class Value>
  static const std::set<Value>& look_up(const Names<Key, Value>& names, const Key& key) {
    static const std::set<Value> none;
    const auto found = names.find(key);
    return found == names.end() ? none : found->second;
  }

  static std::optional<std::size_t> only(const std::set<std::size_t>& found) {
    return found.size() == 1 ? std::optional(*found.begin()) : std::nullopt;
  }

  static std::string port_name(const TopologyNic& nic) {
    return nic.id.starts_with(nic.host + '/') ? nic.id.substr(nic.host.size() + 1) : nic.name;
  }

  // Returns the port number of a NIC: 2 for the id "HOST/mlx5_0:2".
  static int port_of(const TopologyNic& nic) {
    return parse_number<int>(split_port(port_name(nic)).port).value_or(1);
  }

  Names<std::string, std::string> hosts_, short_hosts_;
  Names<std::pair<std::string, std::string>, std::size_t> ports_, devices_;
  Names<std::pair<std::string, int>, std::size_t> guids_;
  // The mlx devices of each host, sorted by name.
  std::map<std::string, std::vector<std::string>> numbered_;
};

// The leaf switches that a file contains.
struct Leaves {
  std::map<std::size_t, std::string> of_nic;  // leaf switch of each NIC that the topology contains
  std::size_t ports = 0;                      // number of all ports in the file
  // For each host of the topology, the names of its ports in the file that match none of its NICs.
  std::map<std::string, std::set<std::string>> unmatched = {};
};

Leaves read_json(std::string_view text, const std::string& path, const NicNames& names) {
  const JsonValue document = parse_json(text, path);
  const JsonObject root(document, path, "");
  if (root.text("schema") != schema) root.fail("schema", fmt::format("is not \"{}\"", schema));
  Leaves leaves;
  for (const JsonObject& port : root.list("ports", most_ports)) {
    ++leaves.ports;
    const std::string nic_name = port.text("nic"), leaf = port.text("leaf");
    if (leaf.empty() || leaf.size() > longest_part)
      port.fail("leaf", fmt::format("is empty or longer than {} bytes", longest_part));
    const std::set<std::string>& hosts = names.hosts(port.text("host"));
    if (hosts.size() > 1) port.fail("host", "is the name of several hosts");
    const auto nic = hosts.empty() ? std::nullopt : names.nic(*hosts.begin(), nic_name);
    if (!nic && !hosts.empty()) leaves.unmatched[*hosts.begin()].insert(nic_name);
    if (!nic) continue;
    const auto [at, is_new] = leaves.of_nic.try_emplace(*nic, leaf);
    if (!is_new && at->second != leaf)
      port.fail("leaf", fmt::format("differs from \"{}\" above", at->second));
  }
  return leaves;
}

// The id and the description of a fabric node: "S-b8599f0300fc6de4", "leaf-3".
struct FabricNode {
  std::string_view id, description;
};

// A NIC port with a cable, and the switch at the other end of the cable.
struct FabricPort {
  FabricNode node;  // the adapter, which is a node of the fabric
  int port = 1;
  std::string_view leaf;   // id of the leaf switch
  std::size_t offset = 0;  // byte offset of the line in the file
};

class DiscoverReader {
 public:
  DiscoverReader(std::string_view text, std::string_view path) : text_(text), path_(path) {}

  // Returns the ports in the order of the text. A cable occurs twice if the text has a block for
  // both of its ends.
  std::vector<FabricPort> read() {
    for (std::size_t at = 0; at < text_.size();) {
      const std::size_t end = std::min(text_.find('\n', at), text_.size());
      if (end - at > longest_line)
        fail_at(path_, at, fmt::format("the line is longer than {} bytes", longest_line));
      read_line(text_.substr(at, end - at), at);
      at = end + 1;
    }
    if (blocks_ == 0) {
      const auto why = importers::why_not_read(text_);
      fail_at(path_, 0,
              !why.empty() ? why
                           : fmt::format("the file is neither JSON with the schema \"{}\" nor the "
                                         "output of ibnetdiscover",
                                         schema));
    }
    if (ports_.empty() && first_direct_)
      fail_at(path_, *first_direct_,
              "this cable joins two adapters, and no cable of the file leads to a switch: without "
              "leaf switches there are no rails to read, so leave out --fabric");
    return std::move(ports_);
  }

  // Returns the name of a leaf switch. Administrators set these names; if several switches have the
  // same name, the id of the switch is appended.
  std::string leaf_name(std::string_view id) const {
    const auto name = switches_.find(id);
    if (name == switches_.end() || name->second.empty()) return std::string(id);
    return uses_.at(name->second) > 1 ? fmt::format("{} ({})", name->second, id)
                                      : std::string(name->second);
  }

 private:
  // Returns the text between the next two quotes of `rest`, and removes everything up to the second
  // quote.
  std::optional<std::string_view> next_quoted(std::string_view& rest) const {
    const std::size_t begin = rest.find('"');
    if (begin == std::string_view::npos) return std::nullopt;
    const std::size_t end = rest.find('"', begin + 1);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view quoted = rest.substr(begin + 1, end - begin - 1);
    rest.remove_prefix(end + 1);
    return quoted.substr(0, longest_part);
  }

  // Returns the port number at the beginning of a text: 12 for "[12]...".
  static std::optional<int> bracketed(std::string_view text) {
    if (!text.starts_with('[') || text.find(']') == std::string_view::npos) return std::nullopt;
    const auto number = parse_number<int>(text.substr(1, text.find(']') - 1));
    return number && *number >= 0 ? number : std::nullopt;
  }

  void read_line(std::string_view line, std::size_t offset) {
    const std::string_view text = trimmed(line);
    if (text.starts_with('[')) {
      read_port(text, offset);
      return;
    }
    const std::string_view kind = text.substr(0, text.find_first_of(" \t"));
    if (kind != "Switch" && kind != "Ca" && kind != "Rt") return;
    std::string_view rest = text;
    const auto id = next_quoted(rest);
    if (!id || id->size() < 3 || (*id)[1] != '-')
      fail_at(path_, offset, fmt::format("the line of a {} has no GUID", kind));
    kind_ = kind;
    block_ = {*id, next_quoted(rest).value_or("")};
    if (kind == "Switch" && switches_.try_emplace(block_.id, block_.description).second)
      ++uses_[block_.description];
    ++blocks_;
  }

  void read_port(std::string_view line, std::size_t offset) {
    if (kind_.empty()) fail_at(path_, offset, "a port precedes the first Switch or Ca");
    const auto port = bracketed(line);
    std::string_view rest = line;
    const auto peer = next_quoted(rest);
    const auto peer_port = bracketed(rest);
    if (!port || !peer || !peer_port)
      fail_at(path_, offset,
              "the line is not a port as ibnetdiscover prints it ([1] \"H-...\"[1] # \"...\")");
    if (ports_.size() == most_ports)
      fail_at(path_, offset, fmt::format("the file has more than {} ports", most_ports));
    if (kind_ == "Switch" && peer->starts_with("H-"))
      ports_.push_back({{*peer, next_quoted(rest).value_or("")}, *peer_port, block_.id, offset});
    if (kind_ == "Ca" && peer->starts_with("H-") && !first_direct_) first_direct_ = offset;
    if (kind_ == "Ca" && peer->starts_with("S-")) ports_.push_back({block_, *port, *peer, offset});
  }

  std::string_view text_, path_;
  std::string_view kind_;  // kind of the current block: "Switch", "Ca" or "Rt"
  FabricNode block_;
  std::size_t blocks_ = 0;
  std::optional<std::size_t> first_direct_;  // byte offset of the first cable between two adapters
  std::map<std::string_view, std::string_view> switches_;  // description of each switch, by id
  std::map<std::string_view, int> uses_;  // for each description, the number of switches with it
  std::vector<FabricPort> ports_;
};

Leaves read_discover(std::string_view text, const std::string& path, const NicNames& names) {
  DiscoverReader reader(text, path);
  const std::vector<FabricPort> ports = reader.read();
  Leaves leaves{.of_nic = {}, .ports = ports.size()};
  std::map<std::size_t, std::string_view> by_guid, by_description;
  for (const FabricPort& port : ports) {
    const auto nic = names.by_guid(port.node.id.substr(2), port.port);
    if (!nic) continue;
    const auto [at, is_new] = by_guid.try_emplace(*nic, port.leaf);
    if (!is_new && at->second != port.leaf)
      fail_at(path, port.offset,
              fmt::format("port {} of {} is connected to both {} and {}", port.port, port.node.id,
                          at->second, port.leaf));
  }
  // A description that two ports of the fabric have in common identifies neither of them.
  constexpr std::string_view several = "";
  for (const FabricPort& port : ports) {
    const std::string_view description = port.node.description;
    const auto nic = names.by_description(description, port.port);
    const std::string* const host = names.host_in(description);
    if (!nic && host != nullptr && !names.by_guid(port.node.id.substr(2), port.port))
      leaves.unmatched[*host].insert(fmt::format(
          "{}{}", trimmed(description), port.port == 1 ? "" : fmt::format(":{}", port.port)));
    if (!nic || by_guid.contains(*nic)) continue;
    const auto [at, is_new] = by_description.try_emplace(*nic, port.leaf);
    if (!is_new && at->second != port.leaf) at->second = several;
  }
  for (const auto* found : {&by_guid, &by_description})
    for (const auto& [nic, leaf] : *found)
      if (leaf != several) leaves.of_nic.emplace(nic, reader.leaf_name(leaf));
  return leaves;
}

}  // namespace

void apply_fabric(const std::string& path, Topology& topology) {
  const std::string text = importers::read_file(path);
  const NicNames names(topology);
  const bool is_json = trimmed(text).starts_with('{');
  const Leaves leaves = is_json ? read_json(text, path, names) : read_discover(text, path, names);
  if (leaves.of_nic.empty())
    fail_at(path, 0,
            fmt::format("none of the {} in the file is a NIC of this topology",
                        plural(leaves.ports, "port")));
  for (const auto& [nic, leaf] : leaves.of_nic)
    topology.nics[nic].facts.insert_or_assign(std::string(fact::leaf), leaf);
  for (TopologyHost& host : topology.hosts) {
    const auto found = leaves.unmatched.find(host.id);
    if (found == leaves.unmatched.end()) continue;
    std::vector<std::string> ports;
    for (const std::string& port : found->second) ports.push_back(printable(port, longest_part));
    set_fact(host.facts, fmt::format("{}fabric file", fact::note_prefix),
             fmt::format("{} of this host {} no NIC: {}", plural(ports.size(), "port"),
                         ports.size() == 1 ? "matches" : "match", enumerate(ports)));
  }
}

}  // namespace atoll_v1::atoll
