#pragma once

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// `nvidia-smi topo -m` shows the links of a GPU to its switches as if they led to each peer. Where
// the direct links of a GPU are more than its model has, those that hang together hang on a switch,
// each with as many links as its best pair shows.
void show_hidden_switches(Topology& topology);

}  // namespace atoll_v1::atoll
