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
// hop by the kind of link. For 16 GPUs on two hosts, the model predicts 70 us; fits of measurements
// show 72 us.
#pragma once

#include <string>
#include <vector>

#include "mesh/link_rates.hpp"

namespace atoll_v1::atoll {

class StepModel {
 public:
  explicit StepModel(LinkRates& rates);

  // Returns the communication time of one step in seconds. `gbytes` is the size of the parameters
  // in the type that is sent.
  double seconds(const MeshPlan& mesh, double gbytes);
  // True if a shard group of the mesh crosses islands.
  bool crosses(const MeshPlan& mesh) const;
  // Returns the rate of a group whose ranks form a ring in the given order.
  GroupRate rate(const std::vector<int>& members);
  // Describes the rates: "450 GB/s a GPU inside an island, 45 GB/s (assumed) over PCIe, 50 GB/s
  // over the network"
  std::string rates_text() const;

 private:
  // Rates in GB/s of each rank, one for each near group or host. A rate that no source provides is
  // assumed.
  struct Rates {
    std::vector<double> of;
    std::vector<bool> assumed;
    double slowest = 0;
    bool is_assumed = false;
    std::string text() const;
  };
  // The ranks of one communicating group that are in one wide group (the larger of island and
  // host).
  struct Part {
    int members = 0;
    int near = -1;
    bool is_split = false;  // true if the ranks are in several near groups
    double slowest = 0;     // GB/s of the slowest link of a rank
    double network = 0;     // GB/s of the NICs of all ranks together
    double latency_us = 0;  // latency in microseconds of the hops between the ranks
    bool assumed_inside = false;
    bool assumed_network = false;
  };
  // Replaces unknown rates by `assumed`. Elements that `counts` does not mark affect neither the
  // slowest rate nor whether a rate is assumed. An empty `counts` marks all elements.
  static Rates complete(const std::vector<std::optional<double>>& known, double assumed,
                        const std::vector<bool>& counts = {});
  double hop_us(int rank, bool leaves_near) const;
  void add(int rank, Part& part) const;

  const MeshSites& sites_;
  const RankGroups& groups_;
  Rates inside_, pcie_, network_;
  std::vector<Part> parts_;  // one part for each wide group; used only by rate()
};

}  // namespace atoll_v1::atoll
