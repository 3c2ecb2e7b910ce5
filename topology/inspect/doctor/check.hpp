// The parts that the doctor's checks share. A check is one row of a table: an id, a title that is
// true of a healthy machine, and a function that examines the machine and reports to a CheckResult.
// README.md says how to add a check.
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

inline constexpr std::size_t nowhere = static_cast<std::size_t>(-1);

// The facts that checks read, stored by column: one column for each fact, one entry for each
// device. The facts of a device are read only once, because those of a large cluster do not fit
// into a cache.
class FactColumns {
 public:
  template <class Devices>
  explicit FactColumns(const Devices& devices) : absent_(devices.size()) {
    for (std::size_t device = 0; device < devices.size(); ++device)
      add(device, devices[device].facts);
  }
  // One entry for each device; an entry is empty when the device lacks the fact. Only facts listed
  // in check.cpp have columns.
  std::span<const std::string_view> operator[](std::string_view fact) const;

 private:
  static std::size_t number_of(std::string_view fact);  // column of the fact, or nowhere
  void add(std::size_t device, const Facts& facts);

  // Facts of the last device, with their columns.
  std::vector<std::pair<std::string_view, std::size_t>> places_;
  std::vector<std::string_view> absent_;
  std::vector<std::vector<std::string_view>> columns_;
};

// A column read as numbers. The last text is remembered, because neighbouring devices usually have
// equal values.
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
  std::vector<std::size_t> gpus, nics;  // positions in the topology
  bool has_environment = false;         // a source read its settings and limits
  bool is_vm = false;
};

// A topology and everything derived from it, computed once for all checks.
struct Machine {
  Machine(const Topology& topology, std::span<const RankSite> ranks, const MeshPlan* plan);

  const TopologyGpu& gpu(std::size_t number) const { return topology.gpus[number]; }
  const TopologyNic& nic(std::size_t number) const { return topology.nics[number]; }
  // The host of a device; an empty host when the topology does not list it.
  const HostView& host_of_gpu(std::size_t number) const { return host_or_none(gpu_hosts[number]); }
  const HostView& host_of_nic(std::size_t number) const { return host_or_none(nic_hosts[number]); }
  const HostView& host_or_none(std::size_t number) const;
  // Positions in the topology; nowhere when the id is unknown.
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
  std::vector<Affinity> affinity;                 // one entry for each GPU
  std::vector<std::size_t> gpu_hosts, nic_hosts;  // `nowhere` marks devices of unlisted hosts
  std::vector<std::size_t> island_of_gpu;         // `nowhere` marks GPUs in no island
  std::vector<const GpuModel*> models;  // one entry for each GPU; null when the model is unknown
  std::vector<std::vector<std::size_t>> used;  // NICs that each GPU sends through
  std::vector<bool> is_rdma, may_be_active;    // one entry for each NIC
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

// The host, device or rank that a finding is about. In the commands of a fix, the members replace
// the words BUSID, INDEX, NAME and PORT.
struct Subject {
  explicit Subject(std::string whole_id) : id(std::move(whole_id)) {}
  Subject(const TopologyHost& host) : id(host.id) {}
  Subject(const TopologyGpu& gpu);
  Subject(const TopologyNic& nic);

  std::string id, busid, index, name, port;
};

struct Trouble {
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
  // Call for each device or host whose facts were present.
  void looked() { looked_ = true; }
  // A fact is missing. The reason is taken from the host's facts about its sources.
  void lacks(const TopologyHost& host, std::string_view fact);
  // Records why something could not be examined. The reason is shown only if nothing was.
  void not_checked(std::string_view reason);
  // Equal troubles of several subjects become one finding.
  void add(const Subject& subject, const Trouble& trouble);
  void add(const std::vector<Subject>& subjects, const Trouble& trouble);
  // The planner reports a finding with the id of this check.
  void said_elsewhere() { said_elsewhere_ = true; }

  Check check(const CheckRow& row) const;
  std::vector<Finding> findings(std::string_view id) const;

 private:
  std::vector<Finding> groups_;  // one for each trouble; their ids are still empty
  // Text of a trouble -> its position in groups_.
  std::unordered_map<std::string, std::size_t> numbers_;
  std::vector<std::string> reasons_;
  const TopologyHost* last_lack_host_ = nullptr;
  std::string last_lack_fact_;
  std::size_t lacks_ = 0;
  bool looked_ = false;
  bool said_elsewhere_ = false;
};

// The checks of each area, in the order of a diagnosis.
extern const std::span<const CheckRow> gpu_fabric_checks;
extern const std::span<const CheckRow> pcie_checks;
extern const std::span<const CheckRow> gpu_checks;
extern const std::span<const CheckRow> network_checks;
extern const std::span<const CheckRow> gpu_network_checks;  // what connects GPUs and NICs
extern const std::span<const CheckRow> environment_checks;
extern const std::span<const CheckRow> nccl_checks;
extern const std::span<const CheckRow> rank_checks;

// True for NICs that support RDMA verbs; false for plain and virtual network interfaces.
bool is_rdma(const TopologyNic& nic);
bool may_be_active(const TopologyNic& nic);
bool has_rdma(const Machine& machine, const HostView& view);
// Ids of the NICs that are nearest to a GPU of the host; empty when no source shows the PCI paths.
std::set<std::string_view> nearest_nics(const Machine& machine, const HostView& view);
// Positions of the NICs that the GPUs of the host send through.
std::set<std::size_t> used_nics(const Machine& machine, const HostView& view);
// True for cards, whose NVLinks need bridges that may be missing, and for workstation boards, which
// do not use all links of their GPUs.
bool is_card(const TopologyGpu& gpu);
// The whole text as a finite number.
std::optional<double> number_of(std::string_view text);
// Payload of one PCIe lane in one direction, in GB/s; empty for a rate that PCIe does not define.
std::optional<double> lane_gbyte_s(double gt_s);
// True for a virtual machine that hides its topology: all GPUs are equally far from all NICs, or no
// GPU has a NUMA node.
bool is_flattened(const Machine& machine, const HostView& view);

// An NCCL setting. The environment overrides nccl.conf; `value` is empty when neither sets it.
struct Setting {
  std::string_view value;
  std::string_view where;  // "environment" or "nccl.conf"
};
Setting setting_of(const TopologyHost& host, std::string_view name);

// True for any number except 0, which is how NCCL reads a switch.
bool is_on(std::string_view setting);
// True for letters, digits and "_.:-" only. Names from files may become part of commands that
// people paste, so other names are not inserted.
bool is_plain(std::string_view word);

// The range of a figure that differs between devices: "3", "3 to 40".
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
  // The most frequent value and its count. The census must not be empty.
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

// Calls look(position, value) for each device that has the fact.
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

// The next two also record each visited device as examined.
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

// Calls look(view) for each host that concerns(view) accepts, if a source read its settings. On
// other hosts `setting` is reported as missing.
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
