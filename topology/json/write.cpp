// Writer of atoll's JSON form, which topology/README.md documents.
#include "json/write.hpp"

namespace atoll_v1::atoll {
namespace {

using topology_json::Json;

constexpr std::string_view schema = "atoll-topology-1";

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
          {"gpu_links", name(host.gpu_links)},
          {"facts", host.facts}};
}

Json to_json_value(const TopologyGpu& gpu) {
  return {{"id", gpu.id},
          {"host", gpu.host},
          {"busid", gpu.busid},
          {"uuid", gpu.uuid},
          {"model", gpu.model},
          {"index", gpu.index},
          {"numa", gpu.numa},
          {"package", gpu.package},
          {"pci_path", gpu.pci_path},
          {"partitions", gpu.partitions},
          {"facts", gpu.facts}};
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
          {"numa", nic.numa},
          {"package", nic.package},
          {"pci_path", nic.pci_path},
          {"virtual", nic.is_virtual},
          {"facts", nic.facts}};
}

Json to_json_value(const TopologyLink& link) {
  return {{"a", link.a},
          {"b", link.b},
          {"type", link.type},
          {"count", link.count},
          {"gbyte_s", number(link.gbyte_s)}};
}

Json to_json_value(const TopologyPath& path) {
  return {{"a", path.a}, {"b", path.b}, {"level", name(path.level)}};
}

Json to_json_value(const TopologyConflict& conflict) {
  return {{"subject", conflict.subject},
          {"member", conflict.member},
          {"believed", conflict.believed},
          {"contradiction", conflict.contradiction}};
}

Json to_json_value(const TopologyDocument& document) {
  return {{"format", document.format},
          {"origin", document.origin},
          {"hosts", document.hosts},
          {"text", document.text}};
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

// Converts an element to JSON; lets append_list() call the right overload.
constexpr auto value = [](const auto& element) { return to_json_value(element); };

}  // namespace

namespace topology_json {

std::string print(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string body(const Topology& topology, const std::vector<Island>& islands) {
  std::string text = fmt::format("{{\n  \"schema\": \"{}\"", schema);
  append_list(text, "hosts", topology.hosts, value);
  append_list(text, "gpus", topology.gpus, value);
  append_list(text, "nics", topology.nics, value);
  append_list(text, "links", topology.links, value);
  append_list(text, "paths", topology.paths, value);
  append_list(text, "conflicts", topology.conflicts, value);
  append_list(text, "documents", topology.documents, value);
  append_list(text, "islands", islands, value);
  return text;
}

}  // namespace topology_json

std::string Topology::to_json() const {
  return topology_json::body(*this, find_islands(*this)) + "\n}\n";
}

}  // namespace atoll_v1::atoll
