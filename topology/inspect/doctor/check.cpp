#include "inspect/doctor/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "affinity.hpp"
#include "inspect/derived.hpp"
#include "path_level.hpp"

namespace atoll_v1::atoll {
namespace doctor {
namespace {

// A check reports at most this number of findings; the last one combines the rest. Nobody reads
// longer lists.
constexpr std::size_t most_findings = 12;
// After this number of missing facts, further missing facts are ignored, because the hosts of a
// cluster usually lack facts for the same few reasons.
constexpr std::size_t most_lacks = 64;
constexpr std::size_t most_reasons = 2;

// Returns the name of the source (NVML, sysfs, ...) that can provide a fact.
std::string_view source_of(std::string_view fact) {
  if (starts_with_any(fact, {"pci.", "iommu"})) return "sysfs_pci";
  if (starts_with_any(
          fact, {"gpus.", "nvlink.", "fabric.", "ecc.", "mig", "persist", "throttle", "power."}))
    return "nvml";
  if (starts_with_any(fact, {"link.", "mtu", "firmware", "gid.", "netdev"})) return "sysfs_ports";
  return "environment";
}

// True for facts from the part of the PCI configuration space that only root can read.
bool needs_root(std::string_view fact) {
  return starts_with_any(
      fact, {fact::pci_acs, fact::pci_ats, fact::pci_max_read_request, fact::pci_relaxed_ordering});
}

std::string why_absent(const HostView& host, std::string_view fact) {
  const std::string_view source = source_of(fact);
  const std::string_view why = host[fmt::format("{}{}", fact::source_prefix, source)];
  const bool is_about_root = why.find("root") != std::string_view::npos;
  if (why.empty() || (is_about_root && source == "sysfs_pci" && !needs_root(fact)))
    return fmt::format("no source provides {}", fact);
  if (source == "nvml" && why.find("NVML") == std::string_view::npos)
    return fmt::format("no NVML: {}", why);
  return std::string(why);
}

// Shortens "00000000:1b:00.0" to "0000:1b:00.0", the spelling of lspci.
std::string short_busid(std::string_view busid) {
  return std::string(busid.size() == 16 && busid.starts_with("0000") ? busid.substr(4) : busid);
}

std::string with_names(std::string text, const Subject& subject) {
  const std::array<std::pair<std::string_view, const std::string*>, 4> words{
      {{"BUSID", &subject.busid},
       {"INDEX", &subject.index},
       {"NAME", &subject.name},
       {"PORT", &subject.port}}};
  if (subject.busid.empty())
    if (const auto at = text.find(" -d BUSID"); at != std::string::npos) text.erase(at, 9);
  for (const auto& [word, name] : words) text = with_name(std::move(text), word, *name);
  return text;
}

bool has_environment(const TopologyHost& host) {
  for (const std::string_view prefix : {fact::env_prefix, fact::nccl_conf_prefix}) {
    const auto found = host.facts.lower_bound(prefix);
    if (found != host.facts.end() && found->first.starts_with(prefix)) return true;
  }
  // Only the source that reads the environment provides these facts, so each of them proves that
  // this source has run.
  return std::ranges::any_of(
      std::array{fact::memlock_bytes, fact::shm_bytes, fact::container, fact::net_interfaces},
      [&](std::string_view fact) { return host.facts.contains(fact); });
}

bool is_rdma(const TopologyNic& nic) {
  if (nic.is_virtual) return false;
  const bool is_interface = get_fact(nic.facts, fact::netdev) == nic.name;
  if (is_interface && nic.layer != "slingshot") return false;
  if (!nic.layer.empty() && nic.layer != "ethernet") return true;
  if (!get_fact(nic.facts, fact::gid_roce_v2).empty()) return true;
  if (get_fact(nic.facts, fact::rdma) == "yes") return true;
  return !has_interface_name(nic);
}

// The last check of a diagnosis. It reports the findings of the planner that belong to no other
// check.
constexpr CheckRow mesh_row{"mesh", "The planner finds no fault with the mesh",
                            [](const Machine& machine, CheckResult& result) {
                              if (machine.plan != nullptr) result.looked();
                            },
                            "no mesh"};

std::array<std::span<const CheckRow>, 8> areas() {
  return {gpu_fabric_checks,  pcie_checks,        gpu_checks,  network_checks,
          gpu_network_checks, environment_checks, nccl_checks, rank_checks};
}

}  // namespace

Machine::Machine(const Topology& machine, std::span<const RankSite> sites, const MeshPlan* mesh)
    : topology(machine),
      ranks(sites),
      plan(mesh),
      names(machine),
      islands(find_islands(machine)),
      affinity(find_affinity(machine)) {
  look_at(topology.hosts, hosts, host_of_);
  look_at(topology.nics, nics, nic_of_);
  look_at(topology.gpus, gpus, gpu_of_);
  place(nics, &HostView::nics);
  place(gpus, &HostView::gpus);
  const std::vector<std::optional<double>> usable = atoll::usable_gbyte_s(topology);
  for (std::size_t i = 0; i < nics.size(); ++i) {
    nics[i].is_rdma = is_rdma(*nics[i].part);
    nics[i].may_be_active = may_be_active(*nics[i].part);
    nics[i].usable_gbyte_s = usable[i];
  }
  for (HostView& one : hosts) {
    one.has_environment = has_environment(*one.part);
    one.is_vm = one[fact::virtual_machine] == "yes";
    one.has_rdma = std::ranges::any_of(one.nics, &NicView::is_rdma);
  }
  look_at_gpus();
}

template <class Viewed, class Part>
void Machine::look_at(const std::vector<Part>& parts, std::vector<Viewed>& views,
                      ById<Viewed>& by_id) {
  views.resize(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    views[i].part = &parts[i];
    by_id.try_emplace(parts[i].id, &views[i]);
  }
}

template <class Viewed>
void Machine::place(std::vector<Viewed>& devices, std::vector<const Viewed*> HostView::*members) {
  static const TopologyHost unlisted{.id = "", .name = ""};
  static const HostView none{{&unlisted}};
  for (Viewed& device : devices) {
    HostView* const found = find(host_of_, device->host);
    device.where = found == nullptr ? &none : found;
    if (found != nullptr) (found->*members).push_back(&device);
  }
}

void Machine::look_at_gpus() {
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    gpus[i].model = find_gpu_model(*gpus[i].part);
    gpus[i].affinity = &affinity[i];
    for (const std::string& id : affinity[i].use)
      if (const NicView* const used = nic(id)) gpus[i].used.push_back(used);
  }
  for (const Island& island : islands)
    for (const std::string& id : island.gpus)
      if (GpuView* const member = find(gpu_of_, id)) member->island = &island;
}

Subject::Subject(const GpuView& gpu)
    : id(gpu->id),
      busid(short_busid(gpu->busid)),
      index(gpu->index >= 0 ? std::to_string(gpu->index) : busid) {}

Subject::Subject(const NicView& nic) : id(nic->id), busid(short_busid(nic->busid)) {
  const PortName own = split_port(nic->name);
  name = own.device;
  port = own.port.empty() ? "1" : own.port;
}

void CheckResult::lacks(const HostView& host, std::string_view fact) {
  if (&host == last_lack_host_ && fact == last_lack_fact_) return;
  last_lack_host_ = &host;
  last_lack_fact_ = fact;
  if (++lacks_ > most_lacks) return;
  not_checked(why_absent(host, fact));
}

void CheckResult::not_checked(std::string_view reason) {
  if (reasons_.size() < most_reasons && std::ranges::find(reasons_, reason) == reasons_.end())
    reasons_.emplace_back(reason);
}

void CheckResult::add(const std::vector<Subject>& subjects, Problem problem) {
  looked();
  if (problem.consequence.empty()) problem.consequence = row_.consequence;
  if (problem.fix.empty()) problem.fix = row_.fix;
  const std::string text = fmt::format("{}\n{}\n{}\n{}", static_cast<int>(problem.severity),
                                       problem.evidence, problem.consequence, problem.fix);
  const auto [at, is_new] = numbers_.try_emplace(text, groups_.size());
  if (is_new)
    groups_.push_back({"",
                       problem.severity,
                       {},
                       problem.evidence,
                       problem.consequence,
                       subjects.empty() ? problem.fix : with_names(problem.fix, subjects.front())});
  for (const Subject& subject : subjects) groups_[at->second].subjects.push_back(subject.id);
}

Check CheckResult::check() const {
  Check check{.id = std::string(row_.id), .title = std::string(row_.title), .reason = ""};
  if (!groups_.empty() || said_elsewhere_) {
    check.status = CheckStatus::finding;
  } else if (looked_) {
    check.status = CheckStatus::ok;
  } else {
    check.status = CheckStatus::not_checked;
    check.reason = reasons_.empty() ? row_.nothing : fmt::format("{}", fmt::join(reasons_, "; "));
  }
  return check;
}

std::vector<Finding> CheckResult::findings() const {
  std::vector<Finding> findings = groups_;
  if (groups_.size() > most_findings) {
    findings.resize(most_findings);
    Finding& last = findings.back();
    last.evidence = fmt::format("{} more cases; the first: {}", groups_.size() - most_findings + 1,
                                last.evidence);
    for (std::size_t i = most_findings; i < groups_.size(); ++i) {
      const Finding& more = groups_[i];
      last.severity = std::max(last.severity, more.severity);
      last.subjects.insert(last.subjects.end(), more.subjects.begin(), more.subjects.end());
    }
  }
  for (Finding& finding : findings) finding.id = row_.id;
  return findings;
}

std::set<std::string_view> nearest_nics(const HostView& host) {
  std::set<std::string_view> ids;
  for (const GpuView* gpu : host.gpus)
    if (gpu->affinity->level)
      ids.insert(gpu->affinity->nearest.begin(), gpu->affinity->nearest.end());
  return ids;
}

std::set<const NicView*> used_nics(const HostView& host) {
  std::set<const NicView*> nics;
  for (const GpuView* gpu : host.gpus) nics.insert(gpu->used.begin(), gpu->used.end());
  return nics;
}

bool is_flattened(const HostView& host) {
  if (!host.is_vm || host.gpus.empty()) return false;
  const auto all = [&](auto holds) { return std::ranges::all_of(host.gpus, holds); };
  return all([](const GpuView* gpu) { return gpu->part->numa < 0; }) || all([](const GpuView* gpu) {
           return gpu->affinity->level.value_or(PathLevel::phb) == PathLevel::phb;
         });
}

Setting setting_of(const HostView& host, std::string_view name) {
  for (const auto& [prefix, where] :
       {std::pair{fact::env_prefix, "environment"}, std::pair{fact::nccl_conf_prefix, "nccl.conf"}})
    if (const std::string_view value = host[fmt::format("{}{}", prefix, name)]; !value.empty())
      return {value, where};
  return {};
}

bool is_on(std::string_view setting) { return take_number<long long>(setting).value_or(0) != 0; }

std::string Range::text() const {
  return least_ == most_ ? fmt::format("{:.15g}", most_)
                         : fmt::format("{:.15g} to {:.15g}", least_, most_);
}

}  // namespace doctor

bool has_nothing_to_examine(std::string_view reason) {
  return std::ranges::any_of(doctor::areas(), [&](const auto& area) {
    return std::ranges::any_of(area, [&](const doctor::CheckRow& row) {
      return !row.nothing.empty() && reason.starts_with(row.nothing);
    });
  });
}

// Runs all checks in the order of their areas and sorts their findings by severity.
Diagnosis diagnose(const Topology& topology, std::span<const RankSite> ranks,
                   const MeshPlan* plan) {
  const doctor::Machine machine(topology, ranks, plan);
  // If the planner has findings with the id of a check, they replace the check's own findings.
  std::vector<Finding> planned = plan == nullptr ? std::vector<Finding>() : plan->findings;
  const auto take_planned = [&](std::string_view id) {
    const auto rest = std::ranges::stable_partition(
        planned, [&](const Finding& finding) { return finding.id != id; });
    std::vector<Finding> taken(rest.begin(), rest.end());
    planned.erase(rest.begin(), rest.end());
    return taken;
  };
  Diagnosis diagnosis;
  // Runs a check. If `said` is not empty, these findings of the planner replace the check's own.
  const auto run = [&](const doctor::CheckRow& row, std::vector<Finding> said) {
    doctor::CheckResult result(row);
    row.run(machine, result);
    if (!said.empty()) result.said_elsewhere();
    diagnosis.checks.push_back(result.check());
    for (Finding& finding : said.empty() ? result.findings() : std::move(said))
      diagnosis.findings.push_back(std::move(finding));
  };
  for (const auto& area : doctor::areas())
    for (const doctor::CheckRow& row : area) run(row, take_planned(row.id));
  run(doctor::mesh_row, std::move(planned));
  std::ranges::stable_sort(diagnosis.findings, std::ranges::greater(), &Finding::severity);
  return diagnosis;
}

std::string_view name(CheckStatus status) noexcept {
  constexpr std::array<std::string_view, 3> names{"ok", "finding", "not_checked"};
  return names[static_cast<std::size_t>(status)];
}

}  // namespace atoll_v1::atoll
