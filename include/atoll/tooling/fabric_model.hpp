// How long a collective takes on given links: a model of latency and bandwidth, for simulations and
// plans. Pure functions.
//
// A collective over ranks of one host uses the links inside it. A collective over ranks of several
// hosts is a flat ring over all its ranks, as NCCL's all_gather and reduce_scatter are: each host
// sends nearly the whole tensor once through its NICs. The time is
//
//   latency + bytes / rate,   latency = launch + steps of the ring x time of a step,
//
// where `bytes` is the data that a rank sends: (n - 1) / n of the whole for all_gather and
// reduce_scatter over n ranks, and twice that for all_reduce. The rate between hosts is that of the
// NICs times an efficiency that grows with the bytes and falls with the number of hosts. The table
// of efficiencies for RDMA is that of SimAI (NSDI'25; aliyun/SimAI, inputs/ratio), measured on
// hosts with 8 NICs of 400 Gbit/s. Times between its sizes are interpolated. It ends at 128 hosts;
// each further host adds the ring steps of its ranks. For small tensors the model takes the minimum
// of this time, that of NCCL's low-latency protocol (4 us per step of a ring, half of the rate)
// and, for all_reduce, that of its tree (14 us per hop, 0.85 of the rate). all_gather and
// reduce_scatter over one rank of each host may use NCCL's PAT, a tree of log2(n) hops (14 us per
// hop, 0.75 of the rate). These figures are those of NCCL's src/graph/tuning.cc. Inside a host,
// switches that add (NVLS) may compute all_reduce. Measured times replace the model where they
// exist.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/error.hpp"

namespace atoll_v1::atoll {

enum class Fabric {
  rdma,  // InfiniBand, RoCE, EFA and similar
  tcp    // sockets: a constant efficiency, and a latency ten times as high
};

// A measured time of a collective, as atoll-busbw or nccl-tests prints it.
struct MeasuredTime {
  std::string collective;  // name: "all_gather", "reduce_scatter" or "all_reduce"
  int ranks = 0;
  int hosts = 1;
  std::uint64_t bytes = 0;  // size of the whole tensor, as nccl-tests counts
  double seconds = 0;
};

// The links of hosts that are all alike.
struct ATOLL_API FabricModel {
  // Rate inside a host: GB/s (1e9 bytes per second) that one rank sends at large sizes; 0: the
  // ranks of a host cannot exchange data.
  double intra_gbyte_s = 0;
  // intra_step_s, inter_step_s and launch_s are estimates.
  double intra_step_s = 2e-6;  // seconds of one step inside a host
  // GB/s of the tensor that the switches of a host add in all_reduce, at large sizes; 0: the
  // switches cannot add.
  double nvls_gbyte_s = 0;
  // Rate between hosts: GB/s of all NICs of a host together, in one direction, as the vendor
  // states.
  double inter_gbyte_s = 0;
  int nics = 1;  // number of NICs of a host, which its ranks share equally
  Fabric fabric = Fabric::rdma;
  double inter_step_s = 4.5e-6;  // seconds of one step of a ring between hosts
  double launch_s = 10e-6;       // seconds until the first byte moves
  // GB/s that a host reaches at most in one direction, for a degraded fabric; 0: no such limit.
  // Measured times that are too short for this limit are raised as well.
  double most_gbyte_s = 0;
  // Bytes that sums of f32 send, as a share of the bytes of the tensor: 0.5 for a framework whose
  // backend sends and adds gradients in 16 bits.
  double sum_bytes = 1;
  // Shares of a rank's compute units that a collective inside a host, and one between hosts, hold
  // while they move data. By estimate 16 blocks on 132 SMs; about a tenth of the SMs was reported
  // (pytorch/pytorch 143988).
  double compute_share = 0.12;
  double inter_compute_share = 0.12;
  std::vector<MeasuredTime> measured{};

  // to_text() writes the model as a text that settings such as DeviceOptions::links can hold.
  // from_text() reads it, and throws Error(bad_data) for any other text.
  std::string to_text() const;
  static FabricModel from_text(std::string_view text);
};

// Which ranks of which hosts take part. The hosts have equal numbers of them.
struct CollectiveShape {
  std::string_view collective;  // name, such as "all_gather" or "all_to_all"
  // Bytes of the whole tensor: of dst in all_gather, of src in reduce_scatter, and of the tensor of
  // each rank in other collectives.
  std::uint64_t bytes = 0;
  int ranks = 1;
  int hosts = 1;
  int sharing = 1;  // number of such collectives that share the NICs of a host at the same time
};

// The time of a collective, and the links that it uses.
struct CollectiveTime {
  double latency_s = 0;   // seconds before data flows
  double transfer_s = 0;  // seconds while data flows, when nothing else uses the links
  double intra = 0;       // share of the links inside a host that are in use, from 0 to 1
  double inter = 0;       // share of the NICs of a host that are in use, from 0 to 1
};

ATOLL_API CollectiveTime collective_time(const FabricModel& model, const CollectiveShape& shape);

// GB/s that a host reaches in one direction with large tensors on up to 16 hosts, if nothing is
// wrong with the fabric.
ATOLL_API double healthy_gbyte_s(const FabricModel& model);

// A group of messages that a rank sends at the same time, as many as it receives.
struct MessageShape {
  std::uint64_t intra_bytes = 0;  // bytes to ranks of the same host
  std::uint64_t inter_bytes = 0;  // bytes to ranks of other hosts
  int hosts = 1;                  // number of hosts that take part
  int sharing = 1;                // number of ranks of a host that send at the same time
};
ATOLL_API CollectiveTime message_time(const FabricModel& model, const MessageShape& shape);

}  // namespace atoll_v1::atoll
