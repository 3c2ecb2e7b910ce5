// Exports an inspection as JSON: the topology, then islands, affinity of GPUs and of cores, rails,
// ranks, mesh, findings and checks.
#include "atoll/tooling/inspection.hpp"
#include "inspect/derived.hpp"
#include "json/write.hpp"

namespace atoll_v1::atoll {
namespace {

using topology_json::append_list;
using topology_json::body;
using topology_json::Json;
using topology_json::print;

Json to_json_value(const Affinity& affinity) {
  return {{"gpu", affinity.gpu},
          {"nearest", affinity.nearest},
          {"use", affinity.use},
          {"level", affinity.level ? Json(name(*affinity.level)) : Json(nullptr)},
          {"why", affinity.why}};
}

Json to_json_value(const CoresAffinity& cores) {
  Json result = {{"host", cores.host}, {"numa", cores.numa}};
  result.update(to_json_value(cores.affinity));
  result.erase("gpu");
  return result;
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

// The number of the rank is not written, because it is the position in the list of ranks.
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
  return {{"replicate", plan.replicate}, {"shard", plan.shard},       {"tensor", plan.tensor},
          {"order", plan.order},         {"left_out", plan.left_out}, {"why", plan.why},
          {"findings", findings}};
}

// Converts an element of any type to JSON; append_list() needs a function object.
constexpr auto value = [](const auto& element) { return to_json_value(element); };

}  // namespace

std::string to_json(const Inspection& inspection) {
  std::string text = body(inspection.topology, inspection.islands);
  append_list(text, "affinity", inspection.affinity, value);
  append_list(text, "cores_affinity", find_cores_affinity(inspection.topology), value);
  append_list(text, "rails", inspection.rails, value);
  append_list(text, "ranks", inspection.ranks, value);
  text += fmt::format(",\n  \"mesh\": {}",
                      print(inspection.plan ? to_json_value(*inspection.plan) : Json(nullptr)));
  append_list(text, "findings", inspection.diagnosis.findings, value);
  append_list(text, "checks", inspection.diagnosis.checks, value);
  return text + "\n}\n";
}

}  // namespace atoll_v1::atoll
