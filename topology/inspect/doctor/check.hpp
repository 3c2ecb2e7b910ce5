// Types and functions that all checks of the doctor use. A check is one row of a table: an id, a
// title that is true of a healthy machine, and a function that examines the machine and reports to
// a CheckResult. README.md explains how to add a check.
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "atoll/mesh_plan.hpp"
#include "atoll/tooling/doctor.hpp"
#include "atoll/topology.hpp"
#include "facts.hpp"
#include "gpu_models.hpp"
#include "parse_number.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll::doctor {

using enum Severity;

// A host, GPU or NIC of the topology with what the checks need to know of it. view[name] is a fact,
// or "" if no source provides it.
template <class Part>
struct View {
  const Part* part = nullptr;

  const Part* operator->() const { return part; }
  std::string_view operator[](std::string_view fact) const { return get_fact(part->facts, fact); }
  std::optional<double> number(std::string_view fact) const {
    return number_fact(part->facts, fact);
  }
};

struct GpuView;
struct NicView;

struct HostView : View<TopologyHost> {
  std::vector<const GpuView*> gpus = {};
  std::vector<const NicView*> nics = {};
  bool has_environment = false;  // true if a source read NCCL settings and limits
  bool is_vm = false;
  bool has_rdma = false;  // true if a NIC of the host supports RDMA
  const HostView& host() const { return *this; }
};

template <class Part>
struct DeviceView : View<Part> {
  const HostView* where = nullptr;  // an empty host if the topology does not list the device's host
  const HostView& host() const { return *where; }
};

struct NicView : DeviceView<TopologyNic> {
  bool is_rdma = false;        // true for NICs that support RDMA verbs
  bool may_be_active = false;  // true unless the port is known to be down
  std::optional<double> usable_gbyte_s = {};
};

struct GpuView : DeviceView<TopologyGpu> {
  const GpuModel* model = nullptr;        // null when the model is unknown
  const Island* island = nullptr;         // null when no island holds the GPU
  const Affinity* affinity = nullptr;     // the NICs chosen for the GPU, and why
  std::vector<const NicView*> used = {};  // NICs that the GPU should send through
};

// A topology, with indexes and derived data that are computed once for all checks.
struct Machine {
  Machine(const Topology& topology, std::span<const RankSite> ranks, const MeshPlan* plan);
  Machine(const Machine&) = delete;

  // Return a host, GPU or NIC of the topology; null when the id is unknown.
  const HostView* host(std::string_view id) const { return find(host_of_, id); }
  const GpuView* gpu(std::string_view id) const { return find(gpu_of_, id); }
  const NicView* nic(std::string_view id) const { return find(nic_of_, id); }

  const Topology& topology;
  std::span<const RankSite> ranks;
  const MeshPlan* plan;
  DisplayNames names;
  std::vector<Island> islands;
  std::vector<Affinity> affinity;
  // Views in the order of the topology's hosts, NICs and GPUs.
  std::vector<HostView> hosts;
  std::vector<NicView> nics;
  std::vector<GpuView> gpus;

 private:
  template <class Viewed>
  using ById = std::unordered_map<std::string_view, Viewed*>;
  template <class Viewed>
  static Viewed* find(const ById<Viewed>& views, std::string_view id) {
    const auto found = views.find(id);
    return found == views.end() ? nullptr : found->second;
  }
  template <class Viewed, class Part>
  void look_at(const std::vector<Part>& parts, std::vector<Viewed>& views, ById<Viewed>& by_id);
  template <class Viewed>
  void place(std::vector<Viewed>& devices, std::vector<const Viewed*> HostView::*members);
  void look_at_gpus();

  ById<HostView> host_of_;
  ById<NicView> nic_of_;
  ById<GpuView> gpu_of_;
};

// The host, device or rank that a finding is about. The words BUSID, INDEX, NAME and PORT in the
// commands of a fix are replaced by the members of the subject.
struct Subject {
  explicit Subject(std::string whole_id) : id(std::move(whole_id)) {}
  Subject(const HostView& host) : id(host->id) {}
  Subject(const GpuView& gpu);
  Subject(const NicView& nic);

  std::string id, busid, index, name, port;
};

// Adds subjects for all views in a range of pointers.
void append(std::vector<Subject>& subjects, const auto& views) {
  for (const auto* view : views) subjects.emplace_back(*view);
}

// The texts of a finding, before its id and subjects are known. If the consequence or the fix is
// empty, the text of the check replaces it.
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
  // Texts for the findings that have no consequence or fix of their own.
  std::string_view consequence = {};
  std::string_view fix = {};
};

// Collects the findings of one check.
class CheckResult {
 public:
  explicit CheckResult(const CheckRow& row) : row_(row) {}

  // Records that the check could examine a host or device. A check that examined at least one is
  // "ok" unless it has findings.
  void looked() { looked_ = true; }
  // Records that a host or one of its devices lacks a fact. The reason is taken from the host's
  // facts about its sources.
  void lacks(const HostView& host, std::string_view fact);
  // Records why a host or device could not be examined. The reason is shown only if the check could
  // examine no host and no device.
  void not_checked(std::string_view reason);
  // Returns a fact of a host or device, and records that it was examined or that it lacks the fact.
  std::string_view look(const auto& view, std::string_view fact) {
    const std::string_view value = view[fact];
    if (value.empty())
      lacks(view.host(), fact);
    else
      looked();
    return value;
  }
  // Adds a finding. Findings with equal texts become one finding with all their subjects.
  void add(const std::vector<Subject>& subjects, Problem problem);
  void add(const Subject& subject, Problem problem) {
    add(std::vector{subject}, std::move(problem));
  }
  // Records that the planner already reports this problem. The check then has the status "finding",
  // but no findings.
  void said_elsewhere() { said_elsewhere_ = true; }

  Check check() const;
  std::vector<Finding> findings() const;

 private:
  const CheckRow& row_;
  std::vector<Finding> groups_;  // one finding for each problem, with an empty id
  // Maps the text of a problem to the index of its finding in groups_, to combine equal ones.
  std::unordered_map<std::string, std::size_t> numbers_;
  std::vector<std::string> reasons_;
  const HostView* last_lack_host_ = nullptr;
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

// Returns the ids of all NICs that are nearest to some GPU of the host. Empty when no source shows
// the PCI paths.
std::set<std::string_view> nearest_nics(const HostView& host);
// Returns the NICs that the GPUs of the host should send through.
std::set<const NicView*> used_nics(const HostView& host);
// True for a virtual machine that hides its topology: all GPUs are equally far from all NICs, or no
// GPU has a NUMA node.
bool is_flattened(const HostView& host);

// An NCCL setting. The environment overrides nccl.conf; `value` is empty when neither sets it.
struct Setting {
  std::string_view value;
  std::string_view where;  // where NCCL reads the value: "environment" or "nccl.conf"
};
Setting setting_of(const HostView& host, std::string_view name);

// True if the text begins with a number other than 0. NCCL reads its on/off variables in this way.
bool is_on(std::string_view setting);

// Collects numbers and prints their range: "3" or "3 to 40".
class Range {
 public:
  void add(double value) { least_ = std::min(least_, value), most_ = std::max(most_, value); }
  double most() const { return most_; }
  std::string text() const;

 private:
  double least_ = std::numeric_limits<double>::infinity(), most_ = -least_;
};

// Counts equal values and finds the most frequent one; the greater value wins a tie.
template <class Value>
class Census {
 public:
  void add(const Value& value) {
    const std::size_t count = ++counts_[value];
    if (count > most_.second || (count == most_.second && most_.first < value))
      most_ = {value, count};
    ++size_;
  }
  std::size_t size() const { return size_; }
  // Returns the most frequent value and its count.
  const std::pair<Value, std::size_t>& majority() const { return most_; }

 private:
  std::map<Value, std::size_t> counts_;
  std::pair<Value, std::size_t> most_;
  std::size_t size_ = 0;
};

}  // namespace atoll_v1::atoll::doctor
