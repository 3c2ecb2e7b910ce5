// Chooses the RDMA adapters of a rank by the topology of its host.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "atoll/mesh_plan.hpp"
#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

struct RankAdapters {
  // Names as in TopologyNic: "mlx5_0", or "mlx5_0:2" for port 2; sorted, so that hosts of one kind
  // use their adapters in one order.
  std::vector<std::string> ports;
  std::string why;  // reason of the choice, for the log
};

// Returns the adapters of a rank. `host` is the topology of its host alone. `gpu` is the PCI bus id
// of the GPU whose memory the adapters move; "" means CPU memory, for which the NUMA node of the
// rank decides. `ports` is empty if the topology shows no active adapter.
RankAdapters choose_adapters(const Topology& host, const RankEnvironment& rank,
                             std::string_view gpu);

}  // namespace atoll_v1::atoll
