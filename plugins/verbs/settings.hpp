// The user's settings of the verbs backend: the words of atoll_group.rdma.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/plugin.h"

namespace atoll_verbs_backend {

// A port of an RDMA device.
struct PortName {
  std::string device;  // name as `ibv_devices` lists it, such as "mlx5_0"
  int port = 1;
};

struct Settings {
  std::vector<PortName> devices;  // ports to use, one per rail; empty: choose_ports() chooses
  int gid = -1;                   // index of the GID; -1: the best GID of the port
  int mtu = 0;                    // largest path MTU in bytes; 0: the MTU of the port
  std::uint8_t service_level = 0;
  std::uint8_t traffic_class = 0;
  std::uint16_t partition = 0;  // key of the InfiniBand partition; 0: the first one of the port
  int queue_pairs = 1;          // number of queue pairs for each pair of ranks and rail
  // A packet is sent again if it is not acknowledged within 4.096 us * 2^timeout; 0: chosen so that
  // seven attempts take about the time after which a network counts as cut.
  int timeout = 0;
};

// Parses words NAME=VALUE separated by spaces, for example "devices=mlx5_0:1,mlx5_1 gid=3". Throws
// Error(ATOLL_INVALID_ARGUMENT) that names the word and the known names.
Settings parse_settings(std::string_view text);

// Parses a list of ports, "mlx5_0:1,mlx5_1"; `word` is named in the error.
std::vector<PortName> parse_ports(std::string_view word, std::string_view list);

// Returns the settings of a group. A `timeout` of 0 is replaced by the value
// that follows from atoll_group::cut_ns.
Settings settings_of(const atoll_group& group);

}  // namespace atoll_verbs_backend
