// Types and functions that all checks of the doctor use. A check is one row of a table: an id, a
// title that is true of a healthy machine, and a function that examines the machine and reports to
// a CheckResult. README.md explains how to add a check.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "atoll/inspect/doctor.hpp"
#include "atoll/mesh_plan.hpp"
#include "atoll/topology.hpp"
#include "facts.hpp"
#include "gpu_models.hpp"
#include "inspect/text.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll::doctor {

using enum Severity;

// The position of a host, device or island that does not exist.
inline constexpr std::size_t nowhere = static_cast<std::size_t>(-1);

// Stores the facts that checks read by column: one column for each fact, with one entry for each
// device. The facts of each device are traversed only once, because the facts of a large cluster do
// not fit into the CPU's cache.
class FactColumns {
 public:
  template <class Devices>
  explicit FactColumns(const Devices& devices) : absent_(devices.size()) {
    for (std::size_t device = 0; device < devices.size(); ++device)
      add(device, devices[device].facts);
  }
  // Returns the column of a fact: one entry for each device, empty when the device lacks the fact.
  // Only facts listed in check.cpp have columns.
  std::span<const std::string_view> operator[](std::string_view fact) const;

 private:
  static std::size_t number_of(std::string_view fact);  // column of the fact, or `nowhere`
  void add(std::size_t device, const Facts& facts);

  // The name and the column of each fact of the previous device.
  std::vector<std::pair<std::string_view, std::size_t>> places_;
  std::vector<std::string_view> absent_;
  std::vector<std::vector<std::string_view>> columns_;
};

// Reads a column of facts as numbers. The text that was parsed last is kept with its number,
// because neighbouring devices usually have equal values.
class Numbers {
 public:
  explicit Numbers(std::span<const std::string_view> column) : column_(column) {}
  std::optional<double> operator[](std::size_t device);

 private:
  std::span<const std::string_view> column_;
  std::string_view last_;
  std::optional<double> number_;
};

struct HostView {
  const TopologyHost* host = nullptr;
  std::vector<std::size_t> gpus, nics;  // positions of the host's devices in the topology
  bool has_environment = false;         // true if a source read NCCL settings and limits
  bool is_vm = false;
};

// A topology, with indexes and derived data that are computed once for all checks.
struct Machine {
  Machine(const Topology& topology, std::span<const RankSite> ranks, const MeshPlan* plan);

  const TopologyGpu& gpu(std::size_t number) const { return topology.gpus[number]; }
  const TopologyNic& nic(std::size_t number) const { return topology.nics[number]; }
  // Return the host of a device, or an empty host when the topology does not list the host.
  const HostView& host_of_gpu(std::size_t number) const { return host_or_none(gpu_hosts[number]); }
  const HostView& host_of_nic(std::size_t number) const { return host_or_none(nic_hosts[number]); }
  const HostView& host_or_none(std::size_t number) const;
  // Return the position of a host, GPU or NIC in the topology; `nowhere` when the id is unknown.
  std::size_t host_number(std::string_view id) const { return find(host_numbers_, id); }
  std::size_t gpu_number(std::string_view id) const { return find(gpu_numbers_, id); }
  std::size_t nic_number(std::string_view id) const { return find(nic_numbers_, id); }

  const Topology& topology;
  std::span<const RankSite> ranks;
  const MeshPlan* plan;
  DisplayNames names;
  std::vector<HostView> hosts;
  FactColumns gpu_facts, nic_facts;
  std::vector<Island> islands;
  std::vector<Affinity> affinity;                 // the choice of NICs for each GPU
  std::vector<std::size_t> gpu_hosts, nic_hosts;  // position of each device's host, or `nowhere`
  std::vector<std::size_t> island_of_gpu;         // position of each GPU's island, or `nowhere`
  std::vector<const GpuModel*> models;            // model of each GPU; null when it is unknown
  std::vector<std::vector<std::size_t>> used;  // for each GPU, the NICs that it should send through
  std::vector<bool> is_rdma, may_be_active;    // per NIC: supports RDMA; is not known to be down
  std::vector<std::optional<double>> usable;   // bandwidth of each NIC in GB/s

 private:
  using Positions = std::unordered_map<std::string_view, std::size_t>;
  static std::size_t find(const Positions& positions, std::string_view id) {
    const auto found = positions.find(id);
    return found == positions.end() ? nowhere : found->second;
  }
  template <class Devices>
  void place(const Devices& devices, std::vector<std::size_t>& hosts_of,
             std::vector<std::size_t> HostView::*members);
  void look_at_gpus();

  Positions host_numbers_, gpu_numbers_, nic_numbers_;
};

// The host, device or rank that a finding is about. The words BUSID, INDEX, NAME and PORT in the
// commands of a fix are replaced by the members of the subject.
struct Subject {
  explicit Subject(std::string whole_id) : id(std::move(whole_id)) {}
  Subject(const TopologyHost& host) : id(host.id) {}
  Subject(const TopologyGpu& gpu);
  Subject(const TopologyNic& nic);

  std::string id, busid, index, name, port;
};

// The texts of a finding, before its id and subjects are known.
struct Problem {
  Severity severity = Severity::warning;
  std::string evidence;
  std::string consequence = {};
  std::string fix = {};
};

class CheckResult;

struct CheckRow {
  std::string_view id;
  std::string_view title;
  void (*run)(const Machine& machine, CheckResult& result);
  std::string_view nothing;  // reason when the machine has nothing to examine: "no GPUs"
};

// Collects the findings of one check.
class CheckResult {
 public:
  // Records that the check could examine a host or device. A check that examined at least one is
  // "ok" unless it has findings.
  void looked() { looked_ = true; }
  // Records that a host or one of its devices lacks a fact. The reason is taken from the host's
  // facts about its sources.
  void lacks(const TopologyHost& host, std::string_view fact);
  // Records why a host or device could not be examined. The reason is shown only if the check could
  // examine no host and no device.
  void not_checked(std::string_view reason);
  // Adds a finding. Findings with equal texts become one finding with all their subjects.
  void add(const Subject& subject, const Problem& problem);
  void add(const std::vector<Subject>& subjects, const Problem& problem);
  // Records that the planner already reports this problem. The check then has the status "finding",
  // but no findings.
  void said_elsewhere() { said_elsewhere_ = true; }

  Check check(const CheckRow& row) const;
  std::vector<Finding> findings(std::string_view id) const;

 private:
  std::vector<Finding> groups_;  // one finding for each problem, with an empty id
  // Maps the text of a problem to the position of its finding in groups_.
  std::unordered_map<std::string, std::size_t> numbers_;
  std::vector<std::string> reasons_;
  const TopologyHost* last_lack_host_ = nullptr;
  std::string last_lack_fact_;
  std::size_t lacks_ = 0;
  bool looked_ = false;
  bool said_elsewhere_ = false;
};

// The tables of checks, one for each area, in the order in which diagnose() runs them.
extern const std::span<const CheckRow> gpu_fabric_checks;
extern const std::span<const CheckRow> pcie_checks;
extern const std::span<const CheckRow> gpu_checks;
extern const std::span<const CheckRow> network_checks;
extern const std::span<const CheckRow> gpu_network_checks;  // paths between GPUs and NICs
extern const std::span<const CheckRow> environment_checks;
extern const std::span<const CheckRow> nccl_checks;
extern const std::span<const CheckRow> rank_checks;

// True for NICs that support RDMA verbs; false for plain and virtual network interfaces.
bool is_rdma(const TopologyNic& nic);
bool has_rdma(const Machine& machine, const HostView& view);
// Returns the ids of all NICs that are nearest to some GPU of the host. Empty when no source shows
// the PCI paths.
std::set<std::string_view> nearest_nics(const Machine& machine, const HostView& view);
// Returns the positions of the NICs that the GPUs of the host should send through.
std::set<std::size_t> used_nics(const Machine& machine, const HostView& view);
// True for PCIe cards, which have NVLinks only if a bridge is installed, and for workstation
// boards, which do not use all NVLinks of their GPUs.
bool is_card(const TopologyGpu& gpu);
// Parses a text that consists of one finite number; empty for any other text.
std::optional<double> number_of(std::string_view text);
// Returns the payload bandwidth of one PCIe lane in one direction, in GB/s. Empty for a transfer
// rate that PCIe does not define.
std::optional<double> lane_gbyte_s(double gt_s);
// True for a virtual machine that hides its topology: all GPUs are equally far from all NICs, or no
// GPU has a NUMA node.
bool is_flattened(const Machine& machine, const HostView& view);

// An NCCL setting. The environment overrides nccl.conf; `value` is empty when neither sets it.
struct Setting {
  std::string_view value;
  std::string_view where;  // where NCCL reads the value: "environment" or "nccl.conf"
};
Setting setting_of(const TopologyHost& host, std::string_view name);

// True if the text begins with a number other than 0. NCCL reads its on/off variables in this way.
bool is_on(std::string_view setting);

// Collects numbers and prints their range: "3" or "3 to 40".
class Range {
 public:
  void add(double value);
  double most() const { return most_; }
  std::string text() const;

 private:
  double least_ = 0, most_ = 0;
  bool empty_ = true;
};

// Counts equal values and finds the most frequent one; the greater value wins a tie.
template <class Value>
class Census {
 public:
  void add(const Value& value) {
    ++counts_[value];
    ++size_;
    majority_.reset();
  }
  std::size_t size() const { return size_; }
  std::size_t kinds() const { return counts_.size(); }
  // Returns the most frequent value and its count. At least one value must have been added.
  const std::pair<Value, std::size_t>& majority() {
    if (!majority_) {
      auto best = counts_.begin();
      for (auto at = counts_.begin(); at != counts_.end(); ++at)
        if (at->second >= best->second) best = at;
      majority_ = *best;
    }
    return *majority_;
  }

 private:
  std::map<Value, std::size_t> counts_;
  std::optional<std::pair<Value, std::size_t>> majority_;
  std::size_t size_ = 0;
};

enum class Among {
  gpus,
  nics,      // all NICs except virtual ones
  rdma_nics  // NICs for which is_rdma() is true
};

// Calls look(position, value) for each device that has the fact. Reports the fact as missing for
// the other devices.
template <class Look>
void each_device(const Machine& machine, CheckResult& result, Among among, std::string_view fact,
                 Look look) {
  const bool is_gpu = among == Among::gpus;
  const auto values = is_gpu ? machine.gpu_facts[fact] : machine.nic_facts[fact];
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!is_gpu && (among == Among::nics ? machine.nic(i).is_virtual : !machine.is_rdma[i]))
      continue;
    if (values[i].empty())
      result.lacks(*(is_gpu ? machine.host_of_gpu(i) : machine.host_of_nic(i)).host, fact);
    else
      look(i, values[i]);
  }
}

// each_gpu() and each_nic() also record each device that has the fact as examined.
template <class Look>
void each_gpu(const Machine& machine, CheckResult& result, std::string_view fact, Look look) {
  each_device(machine, result, Among::gpus, fact, [&](std::size_t gpu, std::string_view value) {
    result.looked();
    look(gpu, value);
  });
}
template <class Look>
void each_nic(const Machine& machine, CheckResult& result, std::string_view fact, Look look) {
  each_device(machine, result, Among::nics, fact, [&](std::size_t nic, std::string_view value) {
    result.looked();
    look(nic, value);
  });
}

// Calls look(view, value) for each host that has the fact, and records the host as examined.
// Reports the fact as missing for the other hosts.
template <class Look>
void each_host(const Machine& machine, CheckResult& result, std::string_view fact, Look look) {
  for (const HostView& view : machine.hosts) {
    const std::string_view value = get_fact(view.host->facts, fact);
    if (value.empty()) {
      result.lacks(*view.host, fact);
      continue;
    }
    result.looked();
    look(view, value);
  }
}

// Visits the hosts for which the function `concerns` returns true. Calls look(view) if a source
// read the NCCL settings of the host; otherwise reports the fact `setting` as missing on this host.
template <class Concerns, class Look>
void each_configured_host(const Machine& machine, CheckResult& result, std::string_view setting,
                          Concerns concerns, Look look) {
  for (const HostView& view : machine.hosts) {
    if (!concerns(view)) continue;
    if (!view.has_environment) {
      result.lacks(*view.host, setting);
      continue;
    }
    result.looked();
    look(view);
  }
}

}  // namespace atoll_v1::atoll::doctor
