// Helpers for the tests of meshes.
#pragma once

#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <vector>

#include "unit/topology/machines.hpp"

namespace meshes {

using atoll::Error;
using atoll::ErrorCode;
using atoll::Finding;
using atoll::MeshPlan;
using atoll::MeshPlanOptions;
using atoll::RankSite;
using atoll::Topology;
using machines::contains;

inline constexpr double gib = 1024.0 * 1024 * 1024;

inline std::vector<int> counting(int size) {
  std::vector<int> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

inline MeshPlan by_hand(int replicate, int shard, int tensor = 1) {
  MeshPlan plan;
  plan.replicate = replicate;
  plan.shard = shard;
  plan.tensor = tensor;
  plan.order = counting(replicate * shard * tensor);
  return plan;
}

// Returns hosts a, b, ... with `pairs` pairs of GPUs each. NVLink bridges join the two GPUs of a
// pair.
inline Topology pair_hosts(int hosts, int pairs, int links = 4) {
  Topology topology;
  for (int i = 0; i < hosts; ++i) {
    const std::string host(1, static_cast<char>('a' + i));
    machines::add_host(topology, host, 2 * pairs, atoll::IslandState::known);
    for (int pair = 0; pair < pairs; ++pair)
      machines::join_all(topology, host, {2 * pair, 2 * pair + 1}, links);
  }
  return topology;
}

// Returns a host of two pairs of GPUs that are joined by PCIe links of the fourth generation.
inline Topology divided_host() {
  Topology topology = pair_hosts(1, 2, 12);
  for (atoll::TopologyGpu& one : topology.gpus)
    one.facts = {{"pci.gt_s", "16"}, {"pci.width", "16"}};
  return topology;
}

// Returns the ranks of two hosts of 8 GPUs, with hosts a and b in turn.
inline std::vector<RankSite> alternating_ranks() {
  std::vector<RankSite> ranks;
  for (int i = 0; i < 8; ++i)
    for (const std::string host : {"a", "b"}) ranks.push_back({host, machines::gpu(host, i)});
  return ranks;
}

// Plans a mesh with one rank on each GPU.
inline MeshPlan plan(const Topology& topology, const MeshPlanOptions& options = {}) {
  return plan_mesh(topology, fill_hosts(topology, 0), options);
}

inline std::string shape(const MeshPlan& plan) {
  return std::to_string(plan.replicate) + "x" + std::to_string(plan.shard) + "x" +
         std::to_string(plan.tensor);
}

// Expects a plan of this shape, "replicate x shard x tensor", whose reason contains `why`.
inline void expect_plan(const MeshPlan& plan, const std::string& expected, const std::string& why) {
  CHECK(shape(plan) == expected);
  CHECK_MESSAGE(contains(plan.why, why), plan.why);
}

// Returns the first finding with this id, or an empty finding when there is none.
inline Finding find(const std::vector<Finding>& findings, const std::string& id) {
  for (const Finding& finding : findings)
    if (finding.id == id) return finding;
  return {.id = "", .evidence = ""};
}

// Returns the only finding.
inline Finding only(const std::vector<Finding>& findings) {
  REQUIRE(findings.size() == 1);
  return findings[0];
}

// Returns the message of the invalid_argument error that `call` throws, or "" when `call` throws no
// such error.
inline std::string refusal(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_argument) return error.what();
  }
  return "";
}

}  // namespace meshes
