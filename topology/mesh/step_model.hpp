// Models how long a sharded step communicates, to compare meshes over unequal islands.
//
// The model counts bandwidth only, for the bytes that a ring sends (algorithm bandwidth in
// nccl-tests' PERFORMANCE.md). With P bytes of parameters over S x R ranks, each rank
//   gathers the parameters twice and reduces the gradients once along the shard axis:
//     3 (S - 1) / S * P / B(shard group)
//   and sums its shard over the replicate axis:
//     2 (R - 1) / R * P / S / B(replicate group).
// B of a group is the rate of the slowest part of its ring. Inside an island this is the rate of
// one GPU. Across islands, the bytes of the whole ring cross once, through all NICs of the group's
// members; groups that cross at the same time have their own NICs. Rings inside a machine reach 80
// % of their link rate (measured 360 of 450 GB/s); across hosts the efficiency falls as the number
// of hosts grows.
//
// Latency follows NCCL's ring (src/graph/tuning.cc, protocol Simple): a base, and a step for each
// hop by the kind of link. It gives 70 us for 16 GPUs of two hosts, where fits of measurements give
// 72 us.
#pragma once

#include <string>
#include <vector>

#include "mesh/link_rates.hpp"

namespace atoll_v1::atoll {

class StepModel {
 public:
  explicit StepModel(LinkRates& rates);

  // Seconds that one step communicates, for `gbytes` of parameters in the type that is sent.
  double seconds(const MeshPlan& mesh, double gbytes);
  // Whether a shard group of the mesh crosses islands.
  bool crosses(const MeshPlan& mesh) const;
  // Rate of one group of ranks, in the order of its ring.
  GroupRate rate(const std::vector<int>& members);
  // Describes the rates: "450 GB/s a GPU inside an island, 45 GB/s (assumed) over PCIe, 50 GB/s
  // over the network"
  std::string rates_text() const;

 private:
  // GB/s of each rank, by near group or by host. Rates that no source gives are assumed.
  struct Rates {
    std::vector<double> of;
    std::vector<bool> assumed;
    double slowest = 0;
    bool is_assumed = false;
    std::string text() const;
  };
  // The members of a group within one wide group.
  struct Part {
    int members = 0;
    int near = -1;
    bool is_split = false;  // members are in several near groups
    double slowest = 0;     // slowest link of a member
    double network = 0;     // NICs of all members together
    double latency_us = 0;  // hops between the members
    bool assumed_inside = false;
    bool assumed_network = false;
  };
  // `counts` marks elements whose rate matters; others never count as assumed.
  static Rates complete(const std::vector<std::optional<double>>& known, double assumed,
                        const std::vector<bool>& counts = {});
  double hop_us(int rank, bool leaves_near) const;
  void add(int rank, Part& part) const;

  const MeshSites& sites_;
  const RankGroups& groups_;
  Rates inside_, pcie_, network_;
  std::vector<Part> parts_;  // by wide group; empty between two calls of rate()
};

}  // namespace atoll_v1::atoll
