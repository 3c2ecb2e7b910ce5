#include "inspect/doctor/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "affinity.hpp"
#include "path_level.hpp"
#include "pcie_rate.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

// A check reports at most this number of findings; the last one combines the rest. Nobody reads
// longer lists.
constexpr std::size_t most_findings = 12;
// After this number of missing facts, further missing facts are ignored, because the hosts of a
// cluster usually lack facts for the same few reasons.
constexpr std::size_t most_lacks = 64;
constexpr std::size_t most_reasons = 2;

// Names of the facts that FactColumns stores, sorted like the facts of a device.
constexpr auto fact_names = [] {
  std::array names{fact::pci_device,
                   fact::pci_gt_s,
                   fact::pci_gt_s_max,
                   fact::pci_width,
                   fact::pci_width_max,
                   fact::pci_replays,
                   fact::pci_acs,
                   fact::pci_ats,
                   fact::pci_max_read_request,
                   fact::sm,
                   fact::nvlink_active,
                   fact::nvlink_total,
                   fact::nvlink_errors,
                   fact::fabric_state,
                   fact::fabric_status,
                   fact::fabric_cluster,
                   fact::fabric_health,
                   fact::mig,
                   fact::persistence,
                   fact::ecc_remap_failed,
                   fact::ecc_remap_pending,
                   fact::throttle,
                   fact::power_limit_w,
                   fact::power_default_w,
                   fact::firmware,
                   fact::mtu,
                   fact::width,
                   fact::errors,
                   fact::gid_roce_v2,
                   fact::netdev,
                   fact::gdr,
                   fact::leaf,
                   fact::pci_relaxed_ordering};
  std::ranges::sort(names);
  return names;
}();
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

std::string why_absent(const TopologyHost& host, std::string_view fact) {
  const std::string_view source = source_of(fact);
  const std::string_view why =
      get_fact(host.facts, std::string(fact::source_prefix) + std::string(source));
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

template <class Devices>
std::unordered_map<std::string_view, std::size_t> numbers_of(const Devices& devices) {
  std::unordered_map<std::string_view, std::size_t> numbers;
  numbers.reserve(devices.size());
  for (std::size_t i = 0; i < devices.size(); ++i) numbers.try_emplace(devices[i].id, i);
  return numbers;
}

}  // namespace

std::size_t FactColumns::number_of(std::string_view fact) {
  const auto name = std::ranges::lower_bound(fact_names, fact);
  return name == fact_names.end() || *name != fact
             ? nowhere
             : static_cast<std::size_t>(name - fact_names.begin());
}

std::span<const std::string_view> FactColumns::operator[](std::string_view fact) const {
  const std::size_t number = number_of(fact);
  if (columns_.empty() || number == nowhere || columns_[number].empty()) return absent_;
  return columns_[number];
}

// Neighbouring devices mostly have the same facts in the same order, so the column of each fact is
// usually known from the previous device. Equal values of neighbours refer to one text, so that the
// text stays in the CPU's cache.
void FactColumns::add(std::size_t device, const Facts& facts) {
  columns_.resize(fact_names.size());
  std::size_t place = 0;
  for (const auto& [fact, value] : facts) {
    if (place == places_.size()) places_.emplace_back();
    auto& [name, number] = places_[place++];
    if (name != fact) name = fact, number = number_of(fact);
    if (number == nowhere) continue;
    auto& column = columns_[number];
    if (column.empty()) column.resize(absent_.size());
    const bool is_shared = device > 0 && column[device - 1] == value;
    column[device] = is_shared ? column[device - 1] : std::string_view(value);
  }
}

std::optional<double> Numbers::operator[](std::size_t device) {
  const std::string_view text = column_[device];
  if (text.data() == last_.data() && text.size() == last_.size()) return number_;
  last_ = text;
  number_ = number_of(text);
  return number_;
}

Machine::Machine(const Topology& machine, std::span<const RankSite> sites, const MeshPlan* mesh)
    : topology(machine),
      ranks(sites),
      plan(mesh),
      names(machine),
      gpu_facts(machine.gpus),
      nic_facts(machine.nics),
      islands(find_islands(machine)),
      affinity(find_affinity(machine)),
      usable(usable_gbyte_s(machine)),
      host_numbers_(numbers_of(machine.hosts)),
      gpu_numbers_(numbers_of(machine.gpus)),
      nic_numbers_(numbers_of(machine.nics)) {
  affinity.resize(topology.gpus.size());
  usable.resize(topology.nics.size());
  hosts.reserve(topology.hosts.size());
  for (const TopologyHost& host : topology.hosts)
    hosts.push_back({.host = &host,
                     .gpus = {},
                     .nics = {},
                     .has_environment = has_environment(host),
                     .is_vm = get_fact(host.facts, fact::virtual_machine) == "yes"});
  place(topology.gpus, gpu_hosts, &HostView::gpus);
  place(topology.nics, nic_hosts, &HostView::nics);
  look_at_gpus();
  for (const TopologyNic& nic : topology.nics) {
    is_rdma.push_back(doctor::is_rdma(nic));
    may_be_active.push_back(atoll::may_be_active(nic));
  }
}

template <class Devices>
void Machine::place(const Devices& devices, std::vector<std::size_t>& hosts_of,
                    std::vector<std::size_t> HostView::*members) {
  hosts_of.resize(devices.size());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    // Reusing the previous device's host avoids most look-ups, because devices are usually sorted
    // by host.
    if (i > 0 && devices[i].host == devices[i - 1].host)
      hosts_of[i] = hosts_of[i - 1];
    else
      hosts_of[i] = host_number(devices[i].host);
    if (hosts_of[i] != nowhere) (hosts[hosts_of[i]].*members).push_back(i);
  }
}

void Machine::look_at_gpus() {
  const auto devices = gpu_facts[fact::pci_device], sms = gpu_facts[fact::sm];
  used.resize(topology.gpus.size());
  for (std::size_t i = 0; i < topology.gpus.size(); ++i) {
    const bool like_last = i > 0 && gpu(i).model == gpu(i - 1).model &&
                           devices[i] == devices[i - 1] && sms[i] == sms[i - 1];
    models.push_back(like_last ? models.back() : find_gpu_model(gpu(i)));
    for (const std::string& id : affinity[i].use)
      if (const std::size_t nic = nic_number(id); nic != nowhere) used[i].push_back(nic);
  }
  island_of_gpu.assign(topology.gpus.size(), nowhere);
  for (std::size_t island = 0; island < islands.size(); ++island)
    for (const std::string& id : islands[island].gpus)
      if (const std::size_t gpu = gpu_number(id); gpu != nowhere) island_of_gpu[gpu] = island;
}

const HostView& Machine::host_or_none(std::size_t number) const {
  static const TopologyHost unlisted{.id = "", .name = ""};
  static const HostView none{.host = &unlisted, .gpus = {}, .nics = {}};
  return number == nowhere ? none : hosts[number];
}

Subject::Subject(const TopologyGpu& gpu)
    : id(gpu.id),
      busid(short_busid(gpu.busid)),
      index(gpu.index >= 0 ? std::to_string(gpu.index) : short_busid(gpu.busid)) {}

Subject::Subject(const TopologyNic& nic) : id(nic.id), busid(short_busid(nic.busid)) {
  const PortName own = split_port(nic.name);
  name = own.device;
  port = own.port.empty() ? "1" : own.port;
}

void CheckResult::lacks(const TopologyHost& host, std::string_view fact) {
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

void CheckResult::add(const Subject& subject, const Problem& problem) {
  add(std::vector{subject}, problem);
}

void CheckResult::add(const std::vector<Subject>& subjects, const Problem& problem) {
  looked();
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

Check CheckResult::check(const CheckRow& row) const {
  Check check{.id = std::string(row.id), .title = std::string(row.title), .reason = ""};
  if (!groups_.empty() || said_elsewhere_) {
    check.status = CheckStatus::finding;
  } else if (looked_) {
    check.status = CheckStatus::ok;
  } else {
    check.status = CheckStatus::not_checked;
    check.reason = reasons_.empty() ? row.nothing : fmt::format("{}", fmt::join(reasons_, "; "));
  }
  return check;
}

std::vector<Finding> CheckResult::findings(std::string_view id) const {
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
  for (Finding& finding : findings) finding.id = id;
  return findings;
}

bool is_rdma(const TopologyNic& nic) {
  if (nic.is_virtual) return false;
  const bool is_interface = get_fact(nic.facts, fact::netdev) == nic.name;
  if (is_interface && nic.layer != "slingshot") return false;
  if (!nic.layer.empty() && nic.layer != "ethernet") return true;
  if (!get_fact(nic.facts, fact::gid_roce_v2).empty()) return true;
  if (get_fact(nic.facts, fact::rdma) == "yes") return true;
  return !starts_with_any(nic.name, {"eth", "en", "bond", "ib", "wl", "hsn"});
}

bool has_rdma(const Machine& machine, const HostView& view) {
  return std::ranges::any_of(view.nics, [&](std::size_t nic) { return machine.is_rdma[nic]; });
}

std::set<std::string_view> nearest_nics(const Machine& machine, const HostView& view) {
  std::set<std::string_view> ids;
  for (const std::size_t gpu : view.gpus)
    if (const Affinity& one = machine.affinity[gpu]; one.level)
      ids.insert(one.nearest.begin(), one.nearest.end());
  return ids;
}

std::set<std::size_t> used_nics(const Machine& machine, const HostView& view) {
  std::set<std::size_t> nics;
  for (const std::size_t gpu : view.gpus)
    nics.insert(machine.used[gpu].begin(), machine.used[gpu].end());
  return nics;
}

bool is_card(const TopologyGpu& gpu) {
  constexpr std::array words{"PCIe",   "PCIE",  "H100 NVL", "H200 NVL", "RTX",   "GeForce",
                             "Quadro", "TITAN", "A30",      "A40",      "A6000", "DGXS"};
  return std::ranges::any_of(
      words, [&](const char* word) { return gpu.model.find(word) != std::string::npos; });
}

std::optional<double> number_of(std::string_view text) {
  const auto value = parse_number<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<double> lane_gbyte_s(double gt_s) {
  constexpr std::array generations{2.5, 5.0, 8.0, 16.0, 32.0, 64.0};
  if (std::ranges::find(generations, gt_s) == generations.end()) return std::nullopt;
  return pcie_gbyte_s(gt_s, 1);
}

bool is_flattened(const Machine& machine, const HostView& view) {
  if (!view.is_vm || view.gpus.empty()) return false;
  if (std::ranges::all_of(view.gpus, [&](std::size_t gpu) { return machine.gpu(gpu).numa < 0; }))
    return true;
  return std::ranges::all_of(view.gpus, [&](std::size_t gpu) {
    const auto& level = machine.affinity[gpu].level;
    return !level || *level == PathLevel::phb;
  });
}

Setting setting_of(const TopologyHost& host, std::string_view name) {
  for (const auto& [prefix, where] :
       {std::pair{fact::env_prefix, "environment"}, std::pair{fact::nccl_conf_prefix, "nccl.conf"}})
    if (const std::string_view value =
            get_fact(host.facts, std::string(prefix) + std::string(name));
        !value.empty())
      return {value, where};
  return {};
}

bool is_on(std::string_view setting) { return take_number<long long>(setting).value_or(0) != 0; }

void Range::add(double value) {
  least_ = empty_ ? value : std::min(least_, value);
  most_ = empty_ ? value : std::max(most_, value);
  empty_ = false;
}

std::string Range::text() const {
  return least_ == most_ ? fmt::format("{:.15g}", most_)
                         : fmt::format("{:.15g} to {:.15g}", least_, most_);
}

}  // namespace atoll_v1::atoll::doctor
