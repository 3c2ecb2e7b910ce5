// Indexes the parts of an inspection by id and by host.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "inspect/derived.hpp"
#include "inspect/pictures/svg_scene.hpp"
#include "parse_number.hpp"

namespace atoll_v1::atoll::drawing {
namespace {

// Returns the rank in the subject of a finding: 3 for "rank 3".
std::optional<std::size_t> rank_of(std::string_view subject) {
  constexpr std::string_view word = "rank ";
  if (!subject.starts_with(word)) return std::nullopt;
  return parse_number<std::size_t>(subject.substr(word.size()));
}

template <class T>
void number(const std::vector<T>& things, std::unordered_map<std::string_view, std::size_t>& into) {
  for (std::size_t i = 0; i < things.size(); ++i) into.try_emplace(things[i].id, i);
}

}  // namespace

Parts::Parts(const Inspection& inspected)
    : inspection(inspected),
      topology(inspected.topology),
      names(inspected.topology),
      pcie_limits(find_pcie_limits(inspected.topology)) {
  number(topology.hosts, host_of_);
  number(topology.gpus, gpu_of_);
  number(topology.nics, nic_of_);
  for (const TopologyHost& host : topology.hosts) hosts.emplace_back().host = &host;
  for (std::size_t i = 0; i < topology.gpus.size(); ++i)
    if (const auto at = host(topology.gpus[i].host)) hosts[*at].gpus.push_back(i);
  for (std::size_t i = 0; i < topology.nics.size(); ++i)
    if (const auto at = host(topology.nics[i].host)) hosts[*at].nics.push_back(i);
  for (const TopologyLink& link : topology.links) {
    if (link.type != "nvlink" && link.type != "xgmi") continue;
    std::set<std::size_t> ends;
    for (const std::string* end : {&link.a, &link.b})
      if (const auto at = gpu(*end))
        if (const auto of = host(topology.gpus[*at].host)) ends.insert(*of);
    for (const std::size_t end : ends) hosts[end].links.push_back(&link);
  }
  for (std::size_t i = 0; i < inspection.islands.size(); ++i)
    for (const std::string& id : inspection.islands[i].gpus) island_of_.try_emplace(id, i);
  for (std::size_t i = 0; i < inspection.affinity.size(); ++i)
    affinity_of_.try_emplace(inspection.affinity[i].gpu, i);
  for (std::size_t rank = 0; rank < inspection.ranks.size(); ++rank)
    if (!inspection.ranks[rank].gpu.empty()) ranks_of_[inspection.ranks[rank].gpu].push_back(rank);
  for (const Finding* finding : findings_of(inspection))
    for (const std::string& subject : finding->subjects) {
      marks_[subject] = std::max(marks_[subject], finding->severity);
      const auto rank = rank_of(subject);
      if (!rank || *rank >= inspection.ranks.size()) continue;
      Severity& of_gpu = marks_[inspection.ranks[*rank].gpu];
      of_gpu = std::max(of_gpu, finding->severity);
    }
}

std::vector<const Finding*> findings_of(const Inspection& inspection) {
  std::vector<const Finding*> findings;
  for (const Finding& finding : inspection.diagnosis.findings) findings.push_back(&finding);
  if (inspection.plan)
    for (const Finding& finding : inspection.plan->findings) findings.push_back(&finding);
  return findings;
}

std::optional<std::size_t> Parts::find(const Positions& positions, std::string_view id) {
  const auto found = positions.find(id);
  return found == positions.end() ? std::nullopt : std::optional(found->second);
}

const Affinity* Parts::affinity(std::string_view gpu) const {
  const auto at = find(affinity_of_, gpu);
  return at ? &inspection.affinity[*at] : nullptr;
}

Severity Parts::mark(std::string_view subject) const {
  const auto found = marks_.find(std::string(subject));
  return found == marks_.end() ? Severity::info : found->second;
}

std::string Parts::ranks(std::string_view gpu) const {
  const auto found = ranks_of_.find(gpu);
  if (found == ranks_of_.end()) return "";
  const std::vector<std::size_t>& ranks = found->second;
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < std::min<std::size_t>(3, ranks.size()); ++i)
    text += fmt::format("{}{}", i == 0 ? " " : ", ", ranks[i]);
  return ranks.size() > 3 ? text + ", ..." : text;
}

}  // namespace atoll_v1::atoll::drawing
