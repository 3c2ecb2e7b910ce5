// Measures the connection between two network adapters with raw RDMA writes, below all collectives.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "atoll/device.hpp"
#include "atoll/world.hpp"

namespace atoll_v1::atoll {

struct LinkTest {
  // The rank that writes, and the rank in whose memory it writes. They are of different hosts, or
  // use different ports.
  std::array<int, 2> ranks{0, 1};
  // The port of each: "mlx5_0", or "mlx5_0:2" for port 2.
  std::array<std::string, 2> ports;
  std::vector<std::uint64_t> sizes;  // bytes of one write, ascending, from 1 byte to 1 GiB
  // Writes for each size. The bandwidth is measured for one second at most, and the latency with at
  // most 64 MiB (but at least ten writes each).
  int iterations = 1000;
  // The GPU whose memory this rank reads and writes; empty: host memory. Ranks may differ. The
  // adapter reaches GPU memory as a dma-buf, or else through the kernel module nvidia-peermem.
  std::optional<Device> device = {};
  // Time limit for the whole test; shorter than Config::rendezvous_timeout.
  std::chrono::seconds timeout{40};
};

struct LinkRate {
  std::uint64_t bytes = 0;
  double gbyte_s = 0;         // GB/s with many writes in flight
  double latency_us = 0;      // median of half the time of a round trip, in microseconds
  double latency_p99_us = 0;  // 99th percentile of the same
};

struct LinkReport {
  std::string backend;
  // "mlx5_0 port 1, RoCE, GID 3 (v2, ::ffff:10.0.0.1), MTU 4096"; with GPU memory followed by
  // ", GPU memory as a dma-buf" or ", GPU memory through nvidia-peermem"
  std::array<std::string, 2> ports;
  std::vector<LinkRate> rates;  // one for each size
};

// Performs the test on the first backend that can. Collective over the World; the other ranks wait.
// Every rank gets the report, or the same Error: not_found if no backend can test links,
// invalid_argument for wrong options, or the error of one of the two ranks, which names that rank.
ATOLL_API LinkReport test_link(World& world, const LinkTest& test);

}  // namespace atoll_v1::atoll
