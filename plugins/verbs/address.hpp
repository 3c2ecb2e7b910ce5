// Address: what other ports need to reach a port, and whether two ports can reach each other.
#pragma once

#include <infiniband/verbs.h>

#include <string>

namespace atoll_verbs_backend {

// RoCE v1 and v2 are different formats of packets.
enum class Fabric {
  infiniband,
  roce_v1,
  roce_v2,
};

struct Address {
  Fabric fabric = Fabric::roce_v2;
  ibv_gid gid{};
  int subnet_bits = 64;  // leading bits of the GID that all ports of the subnet have in common
};

// Returns "RoCE v2 10.9.9.1/24" or "InfiniBand fe80::1/64".
std::string text_of(const Address& address);

// Returns the same text for all ports of one subnet.
std::string subnet_of(const Address& address);

// Returns the same text for two ports if one may be able to send to the other. Ports of a subnet
// can. Routers forward packets between subnets only with RoCE v2, and not from or to link-local
// addresses.
std::string reach_of(const Address& address);

bool is_mapped_ipv4(const ibv_gid& gid);

// Returns the length of the prefix of the network interface that has this address: the subnet_bits
// of a RoCE port. Without such an interface, returns the usual 64 bits for a link-local GID, and
// all 128 bits for any other GID, which then is alone in its subnet.
int prefix_bits(const ibv_gid& gid);

}  // namespace atoll_verbs_backend
