// Models how long a sharded step communicates, to compare meshes over unequal islands.
//
// The model counts bandwidth only, by GroupRate::transfer_s(). With P bytes of parameters over
// S x R ranks, each rank gathers the parameters twice and reduces the gradients once along the
// shard axis, and sums its shard, P / S, over the replicate axis.
//
// The rate of a group is that of the slowest part of its ring. Inside an island this is the rate of
// one GPU. Across islands, the bytes of the whole ring cross once, through all NICs of the group's
// members; groups that cross at the same time have their own NICs. Rings inside a machine reach 80
// % of their link rate (measured 360 of 450 GB/s); across hosts they reach nic_efficiency().
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
  // The ranks of one communicating group that are in one wide group (the larger of island and
  // host).
  struct Part {
    int members = 0;
    int near = -1;
    bool is_split = false;  // true if the ranks are in several near groups
    GroupRate links{};      // the slowest link of a rank, and the latency of the hops between ranks
    GroupRate network{};    // the NICs of all ranks together
  };
  double hop_us(int rank, bool leaves_near) const;
  void add(int rank, Part& part) const;

  const MeshSites& sites_;
  const RankGroups& groups_;
  // Rates in GB/s of each rank: inside each near group, and over PCIe and the network of each host.
  // A rate that no source provides is assumed.
  std::vector<GroupRate> intra_, pcie_, network_;
  std::vector<Part> parts_;  // one part for each wide group; used only by rate()
};

}  // namespace atoll_v1::atoll
