// The catalog of well-known machines. machines.json describes a host of each machine; the clusters
// are copies of the hosts with other ids.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "atoll/error.hpp"
#include "atoll/tooling/load.hpp"
#include "facts.hpp"
#include "gpu_models.hpp"
#include "parse_number.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {

extern const char* const catalog_machines;  // text of machines.json; CMakeLists.txt embeds it

namespace {

using nlohmann::json;

constexpr std::size_t most_hosts = 65'536;
// Names are cut to this number of bytes before they are searched or printed.
constexpr std::size_t longest_name = 64;

std::string shown_as(std::string_view name) {
  return printable(name, longest_name) + (name.size() > longest_name ? "..." : "");
}

const json& machines() {
  static const json parsed = json::parse(catalog_machines);
  return parsed;
}

// Returns the provider's name of a machine: "p5.48xlarge"; "" for machines of no provider.
std::string type_of(const json& entry) { return entry.value("type", ""); }

// Returns an entry, completed with the members of the entry that its `like` names; null when no
// entry has the name or the provider's name.
json find_machine(std::string_view name) {
  for (const json& entry : machines()) {
    if (entry.at("name") != name &&
        (name.empty() || lower_case(type_of(entry)) != lower_case(name)))
      continue;
    if (!entry.contains("like")) return entry;
    json machine = find_machine(entry.at("like").get<std::string_view>());
    machine.merge_patch(entry);
    return machine;
  }
  return nullptr;
}

// Completes a bus id that has no domain: "1b:00.0" becomes "00000000:1b:00.0".
std::string with_domain(std::string_view busid) {
  return fmt::format("{}{}", std::ranges::count(busid, ':') == 1 ? "00000000:" : "", busid);
}

// Sets the bus id, NUMA node and PCI path of a device from words such as "1b:00.0", "0" and
// "15/15:01.0".
template <class Device>
void set_place(std::span<const std::string_view> words, const TopologyHost& host, Device& device) {
  device.busid = with_domain(words[0]);
  device.numa = parse_number<int>(words[1]).value();
  device.package = device.numa * host.packages / host.numa_nodes;
  for (const std::string_view part : words_of(words[2], "/"))
    if (device.pci_path.empty())
      device.pci_path = fmt::format("pci{}{}", part.find(':') == part.npos ? "0000:" : "", part);
    else
      device.pci_path += '/' + with_domain(part);
}

TopologyHost host_of(const json& machine) {
  const json& given = machine.at("host");
  TopologyHost host;
  host.packages = given.at("packages");
  host.numa_nodes = given.at("numa_nodes");
  host.cores = host.host_cores = given.value("cores", 0);
  host.threads = host.host_threads = given.value("threads", 0);
  host.memory_bytes = given.value("memory_bytes", std::uint64_t{0});
  host.gpu_links = machine.contains("links") ? IslandState::known : IslandState::none;
  host.facts = given.at("facts").get<Facts>();
  return host;
}

// Adds links between GPUs, or from each GPU to one switch that stands for all switches.
void add_links(const json& links, Topology& host) {
  const GpuModel* model = find_gpu_model(host.gpus.front());
  const auto add = [&](const std::string& a, const std::string& b, int count) {
    host.links.push_back(
        {.a = a, .b = b, .type = "nvlink", .count = count, .gbyte_s = count * model->link_gbyte_s});
  };
  if (links.is_string())
    for (const TopologyGpu& gpu : host.gpus) add(gpu.id, links, model->links);
  else
    for (const json& link : links) add(host.gpus[link[0]].id, host.gpus[link[1]].id, link[2]);
}

// Returns one host of a machine. The ids of its devices and switches lack the host: "gpu0".
Topology template_of(const json& machine) {
  Topology one;
  const TopologyHost host = one.hosts.emplace_back(host_of(machine));
  const json &gpu = machine.at("gpu"), &nic = machine.at("nic");
  for (const json& line : machine.at("gpus")) {
    TopologyGpu added;
    added.index = static_cast<int>(one.gpus.size());
    added.model = gpu.at("model");
    added.facts = gpu.at("facts").get<Facts>();
    added.id = fmt::format("gpu{}", added.index);
    set_place(words_of(line.get<std::string_view>()), host, added);
    one.gpus.push_back(std::move(added));
  }
  for (const json& line : machine.at("nics")) {
    const std::vector<std::string_view> words = words_of(line.get<std::string_view>());
    TopologyNic added;
    added.id = added.name = words[0];
    added.layer = nic.at("layer");
    added.state = "active";
    added.rate_gbit_s = nic.at("rate_gbit_s").get<double>();
    added.evidence = "catalog";
    added.facts = nic.at("facts").get<Facts>();
    if (nic.contains("ports"))
      added.adapter =
          fmt::format("adapter{}", one.nics.size() / nic.at("ports").get<std::size_t>());
    if (nic.contains("netdev")) set_fact(added.facts, fact::netdev, added.name);
    set_place(std::span(words).subspan(1), host, added);
    one.nics.push_back(std::move(added));
  }
  if (machine.contains("links")) add_links(machine.at("links"), one);
  return one;
}

// Adds a copy of a host to `all`. `machine` is the id of the machine to which the host belongs: the
// host itself, or a rack, whose fabric has the number `number`.
void add_host(const Topology& host, const std::string& id, std::string_view machine,
              std::size_t number, Topology& all) {
  const auto in_host = [&](std::string_view name) { return fmt::format("{}/{}", id, name); };
  all.hosts.push_back(host.hosts.front());
  all.hosts.back().id = all.hosts.back().name = id;
  for (TopologyGpu gpu : host.gpus) {
    gpu.id = in_host(gpu.id);
    gpu.host = id;
    if (const auto cluster = gpu.facts.find(fact::fabric_cluster); cluster != gpu.facts.end())
      cluster->second += fmt::format("{:012x}", number);
    all.gpus.push_back(std::move(gpu));
  }
  for (TopologyNic nic : host.nics) {
    nic.id = in_host(nic.id);
    nic.host = id;
    if (!nic.adapter.empty()) nic.adapter = in_host(nic.adapter);
    all.nics.push_back(std::move(nic));
  }
  for (TopologyLink link : host.links) {
    link.a = in_host(link.a);
    link.b = link.b == "rack" ? fmt::format("rack:{}", machine) : in_host(link.b);
    all.links.push_back(std::move(link));
  }
}

// Returns copies of a machine: "hgx-h100-0", "hgx-h100-1", ... If `copies` is 0, returns the
// machine itself, "hgx-h100".
Topology copies_of(const json& machine, std::size_t copies) {
  const Topology host = template_of(machine);
  const auto name = machine.at("name").get<std::string>();
  const int trays = machine.value("trays", 0);
  Topology all;
  for (std::size_t copy = 0; copy < std::max<std::size_t>(copies, 1); ++copy) {
    const std::string id = copies == 0 ? name : fmt::format("{}-{}", name, copy);
    if (trays == 0) add_host(host, id, id, copy + 1, all);
    for (int tray = 0; tray < trays; ++tray)
      add_host(host, fmt::format("{}-t{:02}", id, tray), id, copy + 1, all);
  }
  return all;
}

// Splits "hgx-h100x16" into {"hgx-h100", "16"}. The second part is empty when the name does not end
// in "x" and digits.
std::pair<std::string_view, std::string_view> split_count(std::string_view name) {
  const auto last = name.find_last_not_of("0123456789");
  if (last == std::string_view::npos || name[last] != 'x' || last + 1 == name.size())
    return {name, {}};
  return {name.substr(0, last), name.substr(last + 1)};
}

// Levenshtein distance: the number of letters to insert, delete or replace.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (const char letter : a) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (letter == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replaced});
    }
  }
  return row.back();
}

// True if the name or the title of an entry has all words of `name`, as in the provider's
// "Standard_ND96isr_H100_v5".
bool has_words(const json& entry, std::string_view name) {
  const std::string text =
      lower_case(entry.at("name").get<std::string>() + ' ' + entry.at("title").get<std::string>());
  const std::string wanted = lower_case(name);
  return name.size() > 1 &&
         std::ranges::all_of(words_of(wanted, " _-"), [&](std::string_view word) {
           return word == "standard" || text.find(word) != text.npos;
         });
}

[[noreturn]] void fail_unknown(std::string_view name) {
  const std::string shown = shown_as(split_count(name).first);
  std::vector<std::pair<std::size_t, std::string_view>> ranked;
  for (const json& machine : machines()) {
    const auto known = machine.at("name").get<std::string_view>();
    ranked.emplace_back(
        has_words(machine, shown)
            ? 0
            : std::min(edit_distance(shown, known), edit_distance(shown, type_of(machine))),
        known);
  }
  std::ranges::sort(ranked);
  std::string nearest;
  for (const auto& [distance, other] : ranked) {
    const bool is_near = distance <= std::max<std::size_t>(2, shown.size() / 2);
    if (is_near && distance <= ranked.front().first + 2)
      nearest += fmt::format("{}{}", nearest.empty() ? "; similar names: " : ", ", other);
  }
  throw Error(
      ErrorCode::not_found,
      fmt::format("the catalog has no machine \"{}\"{}; atoll-topo --cluster list prints all names",
                  shown_as(name), nearest));
}

}  // namespace

std::vector<CatalogEntry> catalog() {
  std::vector<CatalogEntry> entries;
  for (const json& machine : machines())
    entries.push_back({machine.at("name"), machine.at("title")});
  std::ranges::sort(entries, {}, &CatalogEntry::name);
  return entries;
}

Topology catalog_cluster(std::string_view name) {
  if (const json machine = find_machine(name); !machine.is_null()) return copies_of(machine, 0);
  const auto [one, digits] = split_count(name);
  const json machine = digits.empty() ? json() : find_machine(one);
  if (machine.is_null()) fail_unknown(name);
  const std::size_t most = most_hosts / machine.value("trays", std::size_t{1});
  const std::size_t copies = parse_number<std::size_t>(digits).value_or(0);
  if (copies == 0 || copies > most)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}x{}: the number of copies must be 1 to {}, since a cluster has at "
                            "most {} hosts",
                            one, shown_as(digits), most, most_hosts));
  return copies_of(machine, copies);
}

}  // namespace atoll_v1::atoll
