// How long a sharded step communicates, so that unequal alternatives can be compared.
//
// Model: bandwidth alone, after the bytes that a ring sends (the algorithm bandwidth of nccl-tests'
// PERFORMANCE.md). With P bytes of parameters over S x R ranks, each rank
//   gathers the parameters twice and reduces the gradients once along the shard axis:
//     3 (S - 1) / S * P / B(shard group)
//   and sums its share over the replicate axis:
//     2 (R - 1) / R * P / S / B(replicate group).
// B of a group is the slowest part of its ring. Inside an island that is what a GPU gets. Across a
// border of islands the bytes of the whole ring pass once, through all NICs that members of the
// group bring along; groups that cross at once have their own. Efficiency: rings inside a machine
// reach 80 % of their links (measured 360 of 450 GB/s); across hosts it falls as their number
// grows.
//
// Latency is that of NCCL's ring (src/graph/tuning.cc, protocol Simple): a base and a step for each
// hop, by what the hop crosses; 70 us for 16 GPUs of two hosts, where fits of measurements give 72.
#pragma once

#include <string>
#include <vector>

#include "mesh/link_rates.hpp"

namespace atoll_v1::atoll {

// Ranks in mesh order; those that are not in `order` take no part.
struct MeshLayout {
  int shard = 1;
  int inner = 1;
  std::vector<int> order;
  int replicate() const { return static_cast<int>(order.size()) / (shard * inner); }
  int rank_at(int r, int s, int i) const { return order[at_index((r * shard + s) * inner + i)]; }

  // Calls visit(ranks) for every group of the shard axis.
  template <class Visit>
  void each_shard_group(const Visit& visit) const {
    std::vector<int> ranks(at_index(shard));
    for (int i = 0; i < inner; ++i)
      for (int r = 0; r < replicate(); ++r) {
        for (int s = 0; s < shard; ++s) ranks[at_index(s)] = rank_at(r, s, i);
        visit(ranks);
      }
  }
  // Calls visit(ranks) for every group of the replicate axis.
  template <class Visit>
  void each_replicate_group(const Visit& visit) const {
    std::vector<int> ranks(at_index(replicate()));
    for (int i = 0; i < inner; ++i)
      for (int s = 0; s < shard; ++s) {
        for (int r = 0; r < replicate(); ++r) ranks[at_index(r)] = rank_at(r, s, i);
        visit(ranks);
      }
  }
};

class StepModel {
 public:
  StepModel(const MeshSites& sites, const RankGroups& groups, LinkRates& rates);

  // Of one step, for `gbytes` of parameters as they travel.
  double seconds(const MeshLayout& layout, double gbytes);
  // Whether a shard group of the layout reaches beyond an island.
  bool crosses(const MeshLayout& layout) const;
  // Of one group of ranks, in the order of its ring.
  GroupRate rate(const std::vector<int>& members);
  // "450 GB/s a GPU inside an island, 45 GB/s (assumed) over PCIe, 50 GB/s over the network"
  std::string rates_text() const;

 private:
  // GB/s a rank, by near group or host; what no source gives is assumed.
  struct Rates {
    std::vector<double> of;
    std::vector<bool> assumed;
    double slowest = 0;
    bool is_assumed = false;
    std::string text() const;
  };
  // What the members of a group have in one wide group.
  struct Part {
    int members = 0;
    int near = -1;
    bool is_split = false;  // over several near groups
    double slowest = 0;     // link of a member
    double network = 0;     // of all members together
    double latency_us = 0;  // of the hops between its members
    bool assumed_inside = false;
    bool assumed_network = false;
  };
  // `counts`: an element whose rate no group depends on does not count as assumed.
  static Rates complete(const std::vector<std::optional<double>>& known, double assumed,
                        const std::vector<bool>& counts = {});
  double hop_us(int rank, bool leaves_near) const;
  void add(int rank, Part& part) const;

  const MeshSites& sites_;
  const RankGroups& groups_;
  Rates inside_, pcie_, network_;
  std::vector<Part> parts_;  // by wide group; all empty between two measurements
};

}  // namespace atoll_v1::atoll
