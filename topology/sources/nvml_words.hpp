// Conversion of NVML's numbers to the values of atoll's facts.
#pragma once

#include <string>
#include <string_view>

namespace atoll_v1::atoll::topology_sources {

std::string uuid_text(const unsigned char (&bytes)[16]);

// Names the state of the fabric: "completed", "in_progress", "not_started" or "not_supported"; ""
// for any other state.
std::string_view fabric_state(unsigned char state);

// Describes the fabric's health: "healthy", or a list of problems: "degraded bandwidth, route
// unhealthy"; "" when NVML reports nothing.
std::string fabric_health(unsigned mask, unsigned char summary);

// Names the reasons for reduced clocks: "power_cap thermal", or "none".
std::string throttle(unsigned long long reasons);

// GT/s of one lane for a PCI Express generation: "32" for 5; "" for an unknown generation.
std::string_view pcie_gigatransfers(unsigned generation);

// "Driver Not Loaded" -> "driver not loaded"; keeps words that are all capitals.
std::string without_capitals(std::string words);

}  // namespace atoll_v1::atoll::topology_sources
