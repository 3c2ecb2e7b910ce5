// The bandwidth that collectives reach between hosts.
#pragma once

namespace atoll_v1::atoll {

// Returns the share of the NICs' bandwidth that all_gathers of 512 MB reach over at least two hosts:
// the mean for 256 MB and 1 GB in the table of collective_time.cpp.
double nic_efficiency(int hosts);

}  // namespace atoll_v1::atoll
