// Builds views of one host for the tests of merge_views().
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "unit/topology/machines.hpp"

namespace views {

using atoll::IslandState;
using atoll::Topology;
using atoll::TopologyConflict;
using machines::add_host;

// Returns one host with `gpus` GPUs. Bus numbers count from 10, and indices count from 0.
inline Topology view(const std::string& host, int gpus, IslandState links = IslandState::unknown) {
  Topology topology;
  add_host(topology, host, gpus, links);
  return topology;
}

inline Topology& without_busids(Topology& topology) {
  for (auto& one : topology.gpus) one.busid.clear();
  return topology;
}

inline Topology& without_numbers(Topology& topology) {
  for (auto& one : topology.gpus) one.index = -1;
  return topology;
}

inline Topology& switched(Topology& topology, int count, int switches = 1) {
  topology.hosts[0].gpu_links = IslandState::known;
  for (const auto& one : topology.gpus)
    for (int i = 0; i < switches; ++i)
      topology.links.push_back({.a = one.id,
                                .b = one.host + "/nvswitch" + std::to_string(i),
                                .type = "nvlink",
                                .count = count / switches,
                                .gbyte_s = std::nullopt});
  return topology;
}

inline atoll::TopologyNic& add_nic(Topology& topology, const std::string& name,
                                   const std::string& busid = "") {
  const std::string host = topology.hosts[0].id;
  auto& nic = topology.nics.emplace_back();
  nic.id = host + '/' + name;
  nic.host = host;
  nic.name = name.substr(0, name.find(':'));
  nic.busid = busid;
  return nic;
}

inline Topology merged(const std::vector<Topology>& views) {
  return atoll::merge_views("node", views, {"a.xml", "b.txt", "c.json"});
}

inline Topology merge_two(const Topology& a, const Topology& b) {
  return atoll::merge_views("node", {a, b}, {"a.xml", "b.txt"});
}

inline const TopologyConflict* conflict(const Topology& topology, const std::string& subject,
                                        const std::string& member) {
  for (const auto& one : topology.conflicts)
    if (one.subject == subject && one.member == member) return &one;
  return nullptr;
}

// Returns the values of a conflict, "NUMBER (FILE), not NUMBER (FILE)", or "" if there is none.
inline std::string dispute(const Topology& topology, const std::string& subject,
                           const std::string& member) {
  const TopologyConflict* const found = conflict(topology, subject, member);
  return found == nullptr ? "" : found->believed + ", not " + found->contradiction;
}

inline std::string error_of(const std::vector<Topology>& views) {
  try {
    atoll::merge_views("node", views, std::vector<std::string>{"a.xml", "b.txt"});
  } catch (const atoll::Error& error) {
    CHECK(error.code() == atoll::ErrorCode::bad_data);
    return error.what();
  }
  return "no error";
}

}  // namespace views
