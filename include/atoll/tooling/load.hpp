// Loads machines from files and from the catalog, and combines several topologies into one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// Loads a machine from the file `what`, in any form that an importer recognises. For
// "NAME=FILE,FILE...", merges the files as several views of the host NAME. If no such file exists,
// `what` is looked up in the catalog: "hgx-h100", "hgx-h100x16". Throws Error(not_found | io |
// bad_data), which names the file and the byte offset.
ATOLL_API Topology load_topology(const std::string& what);

// Returns a machine of the catalog: "hgx-h100", or "hgx-h100x16" for a cluster of 16 such hosts.
// Throws Error(not_found), which names similar entries.
ATOLL_API Topology catalog_cluster(std::string_view name);

struct CatalogEntry {
  std::string name;
  std::string title;
};
// Returns all entries of the catalog, sorted by name.
ATOLL_API std::vector<CatalogEntry> catalog();

// Joins topologies of different hosts. If two parts contain a host with the same id, a number is
// appended to the names of the hosts in the later part: "node", "node-2".
ATOLL_API Topology join_hosts(std::vector<Topology> parts);

// Merges several descriptions ("views") of one host; the most trusted view comes first. `origins`
// names the source of each view. Devices are matched by bus id, then by UUID or index (GPUs) or by
// name (NICs). A value that a view lacks is taken from the next view; a contradicting value becomes
// a conflict. Throws Error(bad_data) if a view does not describe exactly one host, or if GPUs
// cannot be matched.
ATOLL_API Topology merge_views(std::string_view host_name, const std::vector<Topology>& views,
                               const std::vector<std::string>& origins);

// Reads the leaf switch of each NIC from a fabric file and stores it in the topology. The file is
// atoll's JSON or the output of `ibnetdiscover` (see topology/inspect/README.md). Throws
// Error(not_found | io | bad_data).
ATOLL_API void apply_fabric(const std::string& path, Topology& topology);

}  // namespace atoll_v1::atoll
