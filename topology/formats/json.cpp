// atoll's own JSON form, written; topology/README.md documents it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "atoll/inspection.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::string_view schema = "atoll-topology-1";
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

Json to_json_value(const Affinity& affinity) {
  return {{"gpu", affinity.gpu},
          {"nearest", affinity.nearest},
          {"use", affinity.use},
          {"level", affinity.level ? Json(name(*affinity.level)) : Json(nullptr)},
          {"why", affinity.why}};
}

Json to_json_value(const Rail& rail) {
  return {
      {"index", rail.index}, {"nics", rail.nics}, {"gpus", rail.gpus}, {"evidence", rail.evidence}};
}

Json to_json_value(const Finding& finding) {
  return {{"id", finding.id},
          {"severity", name(finding.severity)},
          {"subjects", finding.subjects},
          {"evidence", finding.evidence},
          {"consequence", finding.consequence},
          {"fix", finding.fix}};
}

Json to_json_value(const Check& check) {
  return {{"id", check.id},
          {"title", check.title},
          {"status", name(check.status)},
          {"reason", check.reason}};
}

// A rank is named by its position in the list.
Json to_json_value(const RankSite& site) {
  return {{"host", site.host},
          {"gpu", site.gpu},
          {"partition", site.partition},
          {"cpus", site.cpus},
          {"numa", site.numa}};
}

Json to_json_value(const MeshPlan& plan) {
  Json findings = Json::array();
  for (const Finding& finding : plan.findings) findings.push_back(to_json_value(finding));
  return {{"replicate", plan.replicate}, {"shard", plan.shard},       {"inner", plan.inner},
          {"order", plan.order},         {"left_out", plan.left_out}, {"why", plan.why},
          {"findings", findings}};
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
std::string body(const Topology& topology, const std::vector<Island>& islands) {
  std::string text = fmt::format("{{\n  \"schema\": \"{}\"", schema);
  append_list(text, "hosts", topology.hosts);
  append_list(text, "gpus", topology.gpus);
  append_list(text, "nics", topology.nics);
  append_list(text, "links", topology.links);
  append_list(text, "paths", topology.paths);
  append_list(text, "conflicts", topology.conflicts);
  append_list(text, "documents", topology.documents);
  append_list(text, "islands", islands);
  return text;
}

}  // namespace

std::string Topology::to_json() const { return body(*this, find_islands(*this)) + "\n}\n"; }

std::string to_json(const Inspection& inspection) {
  std::string text = body(inspection.topology, inspection.islands);
  append_list(text, "affinity", inspection.affinity);
  append_list(text, "rails", inspection.rails);
  append_list(text, "ranks", inspection.ranks);
  text += fmt::format(",\n  \"mesh\": {}",
                      print(inspection.plan ? to_json_value(*inspection.plan) : Json(nullptr)));
  append_list(text, "findings", inspection.diagnosis.findings);
  append_list(text, "checks", inspection.diagnosis.checks);
  return text + "\n}\n";
}

}  // namespace atoll_v1::atoll
