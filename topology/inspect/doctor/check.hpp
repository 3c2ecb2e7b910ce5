// What the checks of the doctor share. A check is one row of a table: an id, a title that says what
// is so when all is well, and a function that looks at the machine and tells a Verdict what it saw.
// README.md says how to add one.
#pragma once

#include <map>
#include <optional>
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
#include "wording.hpp"

namespace atoll_v1::atoll::doctor {

inline constexpr std::size_t nowhere = static_cast<std::size_t>(-1);

// The facts that checks read, turned round: one column a fact, one entry a device. Each device's
// facts are walked through once, since on a large cluster they fill more memory than any cache.
class FactColumns {
 public:
  template <class Devices>
  explicit FactColumns(const Devices& devices) : absent_(devices.size()) {
    for (std::size_t device = 0; device < devices.size(); ++device)
      add(device, devices[device].facts);
  }
  // Empty where the fact is absent. Only names of facts.hpp.
  std::span<const std::string_view> operator[](std::string_view fact) const;

 private:
  static std::size_t number_of(std::string_view fact);  // of its column; nowhere: none
  void add(std::size_t device, const Facts& facts);

  std::vector<std::pair<std::string_view, std::size_t>> places_;  // of the last device's facts
  std::vector<std::string_view> absent_;
  std::vector<std::vector<std::string_view>> columns_;
};

// A column as numbers. Neighbours mostly have equal values, which are read once.
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
  std::vector<std::size_t> gpus, nics;  // numbers in the topology
  bool has_environment = false;         // a source looked at settings and limits
  bool is_vm = false;
};

// A topology and what follows from it, found once for all checks.
struct Machine {
  Machine(const Topology& topology, std::span<const RankSite> ranks, const MeshPlan* plan);

  const TopologyGpu& gpu(std::size_t number) const { return topology.gpus[number]; }
  const TopologyNic& nic(std::size_t number) const { return topology.nics[number]; }
  // Of a device. An empty host where the topology does not list it.
  const HostView& host_of_gpu(std::size_t number) const { return host_or_none(gpu_hosts[number]); }
  const HostView& host_of_nic(std::size_t number) const { return host_or_none(nic_hosts[number]); }
  const HostView& host_or_none(std::size_t number) const;

  const Topology& topology;
  std::span<const RankSite> ranks;
  const MeshPlan* plan;
  DisplayNames names;
  std::unordered_map<std::string_view, std::size_t> host_numbers, gpu_numbers, nic_numbers;
  std::vector<HostView> hosts;
  FactColumns gpu_facts, nic_facts;
  std::vector<Island> islands;
  std::vector<Affinity> affinity;                 // of each GPU
  std::vector<std::size_t> gpu_hosts, nic_hosts;  // nowhere: not listed
  std::vector<std::size_t> island_of_gpu;         // nowhere where the GPU is in none
  std::vector<const GpuModel*> models;            // of each GPU; null: not known
  std::vector<std::vector<std::size_t>> used;     // the NICs that each GPU sends through
  std::vector<bool> is_rdma, may_be_active;       // of each NIC
  std::vector<std::optional<double>> usable;      // GB/s of each NIC

 private:
  template <class Devices>
  void place(const Devices& devices, std::vector<std::size_t>& hosts_of,
             std::vector<std::size_t> HostView::*members);
  void look_at_gpus();
};

// Whom a finding is about. `busid`, `number` and `name` stand for BUSID, INDEX, NAME and PORT in
// the commands of a fix.
struct Subject {
  explicit Subject(std::string whole_id) : id(std::move(whole_id)) {}
  explicit Subject(const TopologyHost& host) : id(host.id) {}
  explicit Subject(const TopologyGpu& gpu);
  explicit Subject(const TopologyNic& nic);

  std::string id, busid, index, name, port;
};

struct Trouble {
  Severity severity = Severity::warning;
  std::string evidence;
  std::string consequence = {};
  std::string fix = {};
};

// Collects what one check sees.
class Verdict {
 public:
  // The facts of a device or host were there to be looked at.
  void looked() { looked_ = true; }
  // A fact is absent; the reason is sought in what the host's sources say of themselves.
  void lacks(const TopologyHost& host, std::string_view fact);
  // The reason when nothing could be looked at.
  void not_checked(std::string_view reason);
  // Equal troubles of many subjects become one finding.
  void add(const Subject& subject, const Trouble& trouble);
  void add(const std::vector<Subject>& subjects, const Trouble& trouble);
  // Another part of the diagnosis reports what this check saw.
  void said_elsewhere() { said_elsewhere_ = true; }

  Check check(std::string_view id, std::string_view title) const;
  std::vector<Finding> findings(std::string_view id) const;

 private:
  struct Group {
    Trouble trouble;  // with the fix as a person can run it
    std::vector<std::string> subjects;
  };
  std::vector<Group> groups_;
  std::unordered_map<std::string, std::size_t> numbers_;  // text of a trouble -> group
  std::vector<std::string> reasons_;
  const TopologyHost* last_lack_host_ = nullptr;
  std::string last_lack_fact_;
  std::size_t lacks_ = 0;
  bool looked_ = false;
  bool said_elsewhere_ = false;
};

struct CheckRow {
  std::string_view id;
  std::string_view title;
  void (*run)(const Machine& machine, Verdict& verdict);
};

// The areas, in the order of a diagnosis.
extern const std::span<const CheckRow> gpu_fabric_checks;
extern const std::span<const CheckRow> pcie_checks;
extern const std::span<const CheckRow> gpu_checks;
extern const std::span<const CheckRow> network_checks;
extern const std::span<const CheckRow> gpu_network_checks;  // what lies between GPUs and NICs
extern const std::span<const CheckRow> environment_checks;
extern const std::span<const CheckRow> nccl_checks;
extern const std::span<const CheckRow> rank_checks;

void hosts_differ(const Machine& machine, Verdict& verdict);  // one of rank_checks

// Carries verbs: everything but plain and made-up network interfaces.
bool is_rdma(const TopologyNic& nic);
bool may_be_active(const TopologyNic& nic);
bool has_rdma(const Machine& machine, const HostView& view);
// A card whose links are made by bridges, which may be left out, or a workstation's board, which
// does not use all links.
bool is_card(const TopologyGpu& gpu);
// Empty when it is no number, and nothing but one.
std::optional<double> number_of(std::string_view text);
// Payload of a PCIe lane in one direction; empty for a rate that PCIe does not have.
std::optional<double> lane_gbyte_s(double gt_s);
// A virtual machine in which every GPU is equally far from every NIC, or no NUMA node is known.
bool is_flattened(const Machine& machine, const HostView& view);

// An NCCL setting. The environment wins over nccl.conf; `value` is empty where neither has it.
struct Setting {
  std::string_view value;
  std::string_view where;  // "environment", "nccl.conf"
};
Setting setting_of(const TopologyHost& host, std::string_view name);

// What NCCL takes for 1: a number other than 0.
bool is_on(std::string_view setting);
// Letters, digits and "_.:-": names from files end up in commands that people paste.
bool is_plain(std::string_view word);
std::vector<std::string_view> words_of(std::string_view text, std::string_view separators = " ");

// Figures that differ from device to device: "3", "3 to 40".
class Range {
 public:
  void add(double value);
  double most() const { return most_; }
  std::string text() const;

 private:
  double least_ = 0, most_ = 0;
  bool empty_ = true;
};

// What devices of a kind have, and the value that most of them share; the greater one wins a tie.
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
  // {value, how many have it}, of a census that is not empty.
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

// Calls look(gpu, value) for each GPU that has the fact.
template <class Look>
void each_gpu(const Machine& machine, Verdict& verdict, std::string_view fact, Look look) {
  const auto values = machine.gpu_facts[fact];
  if (values.empty()) verdict.not_checked("no GPUs");
  for (std::size_t gpu = 0; gpu < values.size(); ++gpu) {
    if (values[gpu].empty()) {
      verdict.lacks(*machine.host_of_gpu(gpu).host, fact);
      continue;
    }
    verdict.looked();
    look(gpu, values[gpu]);
  }
}

// Calls look(nic, value) for each NIC that has the fact and is not virtual.
template <class Look>
void each_nic(const Machine& machine, Verdict& verdict, std::string_view fact, Look look) {
  const auto values = machine.nic_facts[fact];
  if (values.empty()) verdict.not_checked("no NICs");
  for (std::size_t nic = 0; nic < values.size(); ++nic) {
    if (values[nic].empty()) {
      if (!machine.nic(nic).is_virtual) verdict.lacks(*machine.host_of_nic(nic).host, fact);
      continue;
    }
    if (machine.nic(nic).is_virtual) continue;
    verdict.looked();
    look(nic, values[nic]);
  }
}

// Calls look(view, value) for each host that has the fact.
template <class Look>
void each_host(const Machine& machine, Verdict& verdict, std::string_view fact, Look look) {
  if (machine.hosts.empty()) verdict.not_checked("no hosts");
  for (const HostView& view : machine.hosts) {
    const std::string_view value = get_fact(view.host->facts, fact);
    if (value.empty()) {
      verdict.lacks(*view.host, fact);
      continue;
    }
    verdict.looked();
    look(view, value);
  }
}

}  // namespace atoll_v1::atoll::doctor
