// NVML's numbers in the words of atoll's facts.
#pragma once

#include <string>
#include <string_view>

namespace atoll_v1::atoll::topology_sources {

std::string uuid_text(const unsigned char (&bytes)[16]);

// "completed", "in_progress", "not_started", "not_supported"; "" for what is none of them.
std::string_view fabric_state(unsigned char state);

// "healthy", or what is not: "degraded bandwidth, route unhealthy"; "" when nobody tells.
std::string fabric_health(unsigned mask, unsigned char summary);

// "none", or "power_cap thermal".
std::string throttle(unsigned long long reasons);

// Of a lane, by the generation of PCI Express; "" for one that is none.
std::string_view pcie_gigatransfers(unsigned generation);

// "Driver Not Loaded" -> "driver not loaded"; words in capitals stay.
std::string without_capitals(std::string words);

}  // namespace atoll_v1::atoll::topology_sources
