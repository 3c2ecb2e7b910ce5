// atoll's JSON form of a topology; topology/README.md documents it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "atoll/topology.hpp"
#include "json_document.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::string_view schema = "atoll-topology-1";
constexpr std::size_t most_devices = 65'536;  // hosts, GPUs, NICs: each
constexpr std::size_t most_links = 524'288;
constexpr std::pair count_range{0, 1'000'000};
constexpr std::pair number_range{-1, 1'000'000};

using Json = nlohmann::ordered_json;

Json number(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json to_json_value(const TopologyHost& host) {
  return {{"id", host.id},
          {"name", host.name},
          {"packages", host.packages},
          {"numa_nodes", host.numa_nodes},
          {"cores", host.cores},
          {"threads", host.threads},
          {"host_cores", host.host_cores},
          {"host_threads", host.host_threads},
          {"memory_bytes", host.memory_bytes},
          {"gpu_links", name(host.gpu_links)}};
}

Json to_json_value(const TopologyGpu& gpu) {
  return {{"id", gpu.id},       {"host", gpu.host},   {"busid", gpu.busid}, {"uuid", gpu.uuid},
          {"model", gpu.model}, {"index", gpu.index}, {"numa", gpu.numa}};
}

Json to_json_value(const TopologyNic& nic) {
  return {{"id", nic.id},
          {"host", nic.host},
          {"name", nic.name},
          {"busid", nic.busid},
          {"adapter", nic.adapter},
          {"layer", nic.layer},
          {"state", nic.state},
          {"rate_gbit_s", number(nic.rate_gbit_s)},
          {"evidence", nic.evidence},
          {"numa", nic.numa}};
}

Json to_json_value(const TopologyLink& link) {
  return {{"a", link.a},
          {"b", link.b},
          {"type", link.type},
          {"count", link.count},
          {"gbyte_s", number(link.gbyte_s)}};
}

Json to_json_value(const Island& island) {
  return {{"gpus", island.gpus},
          {"hosts", island.hosts},
          {"fabric", island.fabric},
          {"state", name(island.state)},
          {"uniform", island.uniform},
          {"pair_gbyte_s", number(island.pair_gbyte_s)},
          {"gpu_gbyte_s", number(island.gpu_gbyte_s)}};
}

// Names come from the machine: bytes that are not UTF-8 are replaced, never thrown at.
std::string print(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// One element a line: short enough to read, and a difference shows what changed.
template <class T>
void append_list(std::string& text, std::string_view name, const std::vector<T>& list) {
  text += fmt::format(",\n  \"{}\": [", name);
  for (std::size_t i = 0; i < list.size(); ++i) {
    text += i == 0 ? "\n    " : ",\n    ";
    text += print(to_json_value(list[i]));
  }
  text += list.empty() ? "]" : "\n  ]";
}

// All but the closing brace.
std::string body(const Topology& topology) {
  std::string text = fmt::format("{{\n  \"schema\": \"{}\"", schema);
  append_list(text, "hosts", topology.hosts);
  append_list(text, "gpus", topology.gpus);
  append_list(text, "nics", topology.nics);
  append_list(text, "links", topology.links);
  append_list(text, "islands", find_islands(topology));
  return text;
}

IslandState state_of(const JsonObject& object, std::string_view member) {
  const std::string text = object.text_or(member, name(IslandState::unknown));
  for (const auto state : {IslandState::known, IslandState::none, IslandState::unknown})
    if (text == name(state)) return state;
  object.fail(member, "is none of known, none, unknown");
}

TopologyHost read_host(const JsonObject& object) {
  TopologyHost host;
  host.id = object.text("id");
  host.name = object.text_or("name", host.id);
  host.packages = object.integer_or("packages", 0, count_range);
  host.numa_nodes = object.integer_or("numa_nodes", 0, count_range);
  host.cores = object.integer_or("cores", 0, count_range);
  host.threads = object.integer_or("threads", 0, count_range);
  host.host_cores = object.integer_or("host_cores", host.cores, count_range);
  host.host_threads = object.integer_or("host_threads", host.threads, count_range);
  host.memory_bytes = object.unsigned_or("memory_bytes", 0);
  host.gpu_links = state_of(object, "gpu_links");
  return host;
}

TopologyGpu read_gpu(const JsonObject& object) {
  TopologyGpu gpu;
  gpu.id = object.text("id");
  gpu.host = object.text("host");
  gpu.busid = object.text_or("busid", "");
  gpu.uuid = object.text_or("uuid", "");
  gpu.model = object.text_or("model", "");
  gpu.index = object.integer_or("index", -1, number_range);
  gpu.numa = object.integer_or("numa", -1, number_range);
  return gpu;
}

TopologyNic read_nic(const JsonObject& object) {
  TopologyNic nic;
  nic.id = object.text("id");
  nic.host = object.text("host");
  nic.name = object.text_or("name", nic.id);
  nic.busid = object.text_or("busid", "");
  nic.adapter = object.text_or("adapter", "");
  nic.layer = object.text_or("layer", "");
  nic.state = object.text_or("state", "");
  nic.rate_gbit_s = object.number("rate_gbit_s");
  nic.evidence = object.text_or("evidence", "");
  nic.numa = object.integer_or("numa", -1, number_range);
  return nic;
}

TopologyLink read_link(const JsonObject& object) {
  TopologyLink link;
  link.a = object.text("a");
  link.b = object.text("b");
  link.type = object.text("type");
  link.count = object.integer_or("count", 1, {1, count_range.second});
  link.gbyte_s = object.number("gbyte_s");
  return link;
}

// Ids must be new, and a device's host one of `hosts` (null for the hosts themselves).
void check_id(const JsonObject& object, std::set<std::string>& seen,
              const std::set<std::string>* hosts) {
  const std::string id = object.text("id");
  if (id.empty()) object.fail("id", "is empty");
  if (!seen.insert(id).second) object.fail("id", "occurs twice");
  if (hosts != nullptr && !hosts->contains(object.text("host")))
    object.fail("host", "is the id of no host");
}

}  // namespace

std::string Topology::to_json() const { return body(*this) + "\n}\n"; }

std::string to_json(const Topology& topology, const MeshPlan& plan) {
  const Json mesh{{"replicate", plan.replicate},
                  {"shard", plan.shard},
                  {"order", plan.order},
                  {"why", plan.why},
                  {"findings", plan.findings}};
  return body(topology) + fmt::format(",\n  \"mesh\": {}\n}}\n", print(mesh));
}

Topology Topology::from_json(std::string_view text, std::string_view source) {
  const JsonValue document = parse_json(text, source);
  const JsonObject root(document, source, "");
  if (root.text("schema") != schema) root.fail("schema", fmt::format("is not \"{}\"", schema));
  Topology topology;
  std::set<std::string> host_ids, device_ids;
  for (const JsonObject& object : root.list("hosts", most_devices)) {
    check_id(object, host_ids, nullptr);
    topology.hosts.push_back(read_host(object));
  }
  for (const JsonObject& object : root.list("gpus", most_devices)) {
    check_id(object, device_ids, &host_ids);
    topology.gpus.push_back(read_gpu(object));
  }
  for (const JsonObject& object : root.list("nics", most_devices)) {
    check_id(object, device_ids, &host_ids);
    topology.nics.push_back(read_nic(object));
  }
  for (const JsonObject& object : root.list("links", most_links))
    topology.links.push_back(read_link(object));
  return topology;
}

}  // namespace atoll_v1::atoll
