// Where a topology comes from. A source is one file in this folder that defines one descriptor,
// declared below and listed in topology.cpp; nothing else knows it.
#pragma once

#include <string>
#include <string_view>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::topology_sources {

// Looks at this host. Live sources run in the order of their list on one Topology: the first makes
// hosts, GPUs and NICs, later ones add what it could not see. A source that finds nothing to say
// leaves the topology as it is; it throws Error only when the host cannot be described at all.
struct LiveRequest {
  std::string host_id;
  std::string host_name;
  std::string sysfs = "/sys";  // tests put a captured tree here
};

struct LiveSource {
  std::string_view name;
  void (*look)(const LiveRequest& request, Topology& topology);
};

// Reads a text. The first source that recognises its beginning reads it, and throws Error(bad_data)
// with `origin` (the file's name) and a byte offset when it does not like it.
struct TextSource {
  std::string_view name;
  bool (*recognises)(std::string_view text);
  Topology (*read)(std::string_view text, std::string_view origin);
};

extern const LiveSource hwloc_live;  // hosts, packages, NUMA nodes, GPUs, NICs, NVLink matrix
extern const LiveSource sysfs;       // state, layer and rate of the NICs' ports

extern const TextSource json;  // atoll's own form

}  // namespace atoll_v1::atoll::topology_sources
