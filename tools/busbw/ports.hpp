// Findings about the network ports that a measurement used.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "atoll/finding.hpp"
#include "atoll/topology.hpp"
#include "atoll/world.hpp"

namespace busbw {

// Returns findings about counters of ports that rose since `before` was discovered, and prints them
// on rank 0. Collective.
std::vector<atoll::Finding> judge_ports(atoll::World& world, const atoll::Topology& before);

// Returns a comment line for each finding.
std::string port_lines(std::span<const atoll::Finding> findings);

}  // namespace busbw
