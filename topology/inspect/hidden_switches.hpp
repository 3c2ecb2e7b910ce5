#pragma once

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// Replaces direct links between GPUs by links to a switch where there are more than the GPUs can
// have.
//
// `nvidia-smi topo -m` cannot show switches: it repeats all links of a GPU for every peer that the
// GPU reaches through them. So if a GPU has more direct NVLinks than its model, that GPU and all
// GPUs it reaches are linked to a switch, each with the links of its best pair.
// `most_links_of_unknown` is the limit for GPUs of unknown model; 0 means no limit. A pair of GPUs
// of unknown model that reaches this limit exactly is also assumed to be on a switch.
void show_hidden_switches(Topology& topology, int most_links_of_unknown = 0);

}  // namespace atoll_v1::atoll
