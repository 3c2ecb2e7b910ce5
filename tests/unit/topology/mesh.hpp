// Helpers for the tests of meshes.
#pragma once

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

// Plans a mesh with one rank on each GPU.
inline MeshPlan plan(const Topology& topology, const MeshPlanOptions& options = {}) {
  return plan_mesh(topology, fill_hosts(topology, 0), options);
}

inline std::string shape(const MeshPlan& plan) {
  return std::to_string(plan.replicate) + "x" + std::to_string(plan.shard) + "x" +
         std::to_string(plan.tensor);
}

// Returns the first finding with this id, or an empty finding when there is none.
inline Finding find(const std::vector<Finding>& findings, const std::string& id) {
  for (const Finding& finding : findings)
    if (finding.id == id) return finding;
  return {.id = "", .evidence = ""};
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
