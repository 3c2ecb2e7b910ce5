// Helpers for the tests of the topology doctor. They build machines and read the results of a
// diagnosis.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "facts.hpp"
#include "unit/topology/machines.hpp"

namespace machines {

using atoll::Check;
using atoll::CheckStatus;
using atoll::Diagnosis;
using atoll::Finding;
using atoll::Severity;

inline Check check_of(const Diagnosis& diagnosis, std::string_view id) {
  const auto found = std::ranges::find(diagnosis.checks, id, &Check::id);
  REQUIRE_MESSAGE(found != diagnosis.checks.end(), "no check is called ", std::string(id));
  return *found;
}

// Returns "ok" or "finding" for the check with this id, or the reason why the check did not run.
inline std::string state_of(const Diagnosis& diagnosis, std::string_view id) {
  const Check check = check_of(diagnosis, id);
  return check.reason.empty() ? std::string(name(check.status)) : check.reason;
}

inline std::string state_of(const Topology& topology, std::string_view id) {
  return state_of(atoll::diagnose(topology), id);
}

inline std::vector<Finding> found_in(const Diagnosis& diagnosis, std::string_view id) {
  std::vector<Finding> findings;
  for (const Finding& finding : diagnosis.findings)
    if (finding.id == id) findings.push_back(finding);
  return findings;
}

// Returns the finding of the check with this id. There must be exactly one.
inline Finding the_finding(const Diagnosis& diagnosis, std::string_view id) {
  const std::vector<Finding> findings = found_in(diagnosis, id);
  REQUIRE_MESSAGE(findings.size() == 1, std::string(id), ": ", findings.size(), " findings");
  CHECK(check_of(diagnosis, id).status == CheckStatus::finding);
  CHECK_FALSE(findings[0].evidence.empty());
  return findings[0];
}

inline Finding the_finding(const Topology& topology, std::string_view id) {
  return the_finding(atoll::diagnose(topology), id);
}

using Strings = std::vector<std::string>;

// Expects exactly one finding of the check with this id, whose line has all `words`. Subjects are
// not compared if there are none.
inline void expect_finding(const Diagnosis& diagnosis, std::string_view id,
                           std::optional<Severity> severity, const Strings& subjects,
                           const Strings& words) {
  CAPTURE(std::string(id));
  const Finding finding = the_finding(diagnosis, id);
  if (severity) CHECK(finding.severity == *severity);
  if (!subjects.empty()) CHECK(finding.subjects == subjects);
  const std::string line = atoll::to_line(finding);
  for (const std::string& word : words) CHECK_MESSAGE(contains(line, word), line);
}

inline void expect_finding(const Topology& topology, std::string_view id,
                           std::optional<Severity> severity, const Strings& subjects,
                           const Strings& words) {
  expect_finding(atoll::diagnose(topology), id, severity, subjects, words);
}

inline void set(atoll::Facts& facts, std::string_view name, std::string_view value) {
  facts.insert_or_assign(std::string(name), std::string(value));
}

// Sets a fact of every GPU in the topology.
inline void set_gpus(Topology& topology, std::string_view name, std::string_view value) {
  for (atoll::TopologyGpu& gpu : topology.gpus) set(gpu.facts, name, value);
}

inline void set_nics(Topology& topology, std::string_view name, std::string_view value) {
  for (atoll::TopologyNic& nic : topology.nics) set(nic.facts, name, value);
}

inline void set_hosts(Topology& topology, std::string_view name, std::string_view value) {
  for (atoll::TopologyHost& host : topology.hosts) set(host.facts, name, value);
}

// Adds a NIC port next to the GPU with the same number. The two are alone below one PCIe switch.
inline atoll::TopologyNic& add_port(Topology& topology, const std::string& host, int number,
                                    const std::string& layer = "infiniband", double gbit_s = 400) {
  const std::string way =
      "pci0000:0" + std::to_string(number) + "/00000000:0" + std::to_string(number) + ":01.0";
  for (atoll::TopologyGpu& gpu : topology.gpus)
    if (gpu.id == machines::gpu(host, number))
      gpu.pci_path = way + "/00000000:0" + std::to_string(number) + ":02.0";
  atoll::TopologyNic& nic = add_nic(topology, host, gbit_s, "mlx5_" + std::to_string(number));
  nic.busid = "00000000:a" + std::to_string(number) + ":00.0";
  nic.layer = layer;
  nic.pci_path = way + "/00000000:0" + std::to_string(number) + ":03.0";
  return nic;
}

// Removes PCI paths, NUMA nodes and packages, so that the places of devices are unknown.
inline void hide_places(Topology& topology) {
  for (atoll::TopologyGpu& gpu : topology.gpus) gpu.pci_path = "", gpu.numa = gpu.package = -1;
  for (atoll::TopologyNic& nic : topology.nics) nic.pci_path = "";
}

inline void rename(atoll::TopologyNic& nic, const std::string& name) {
  nic.name = name;
  nic.id = nic.host + '/' + name;
}

// Returns hosts a, b, ... with `gpus` H100 GPUs on an NVSwitch. Each GPU has its own NIC.
inline Topology cluster(int hosts, int gpus = 4) {
  Topology topology;
  for (int i = 0; i < hosts; ++i) {
    const std::string host(1, static_cast<char>('a' + i));
    add_switched(topology, host, gpus);
    for (int j = 0; j < gpus; ++j) add_port(topology, host, j);
  }
  for (atoll::TopologyGpu& gpu : topology.gpus) {
    gpu.model = "NVIDIA H100 80GB HBM3";
    gpu.package = gpu.numa;
  }
  return topology;
}

// Returns a host on which the check with this id has no finding, because `set` (set_gpus, set_nics
// or set_hosts) has given the fact this value. Without the fact, the check must not run.
inline Topology ok_with(const auto& set, std::string_view id, std::string_view fact,
                        std::string_view good) {
  Topology topology = cluster(1);
  CHECK(state_of(topology, id) == "no source provides " + std::string(fact));
  set(topology, fact, good);
  CHECK(state_of(topology, id) == "ok");
  return topology;
}

}  // namespace machines
