// Loads machines from files and from the catalog, and combines several topologies into one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// Loads a machine from a file in any form that an importer recognises, or merges
// "NAME=FILE,FILE...", several views of the host NAME. If no file has the name, it is looked up in
// the catalog: "hgx-h100", "hgx-h100x16". Error(not_found | io | bad_data) names the file and the
// byte.
Topology load_topology(const std::string& what);

// A machine of the catalog: "hgx-h100", or "hgx-h100x16" for a cluster of 16. Error(not_found)
// names similar entries.
Topology catalog_cluster(std::string_view name);

struct CatalogEntry {
  std::string name;
  std::string title;
};
std::vector<CatalogEntry> catalog();  // sorted by name

// Joins topologies of different hosts. If an earlier part has a host with the same id, the hosts of
// the later part are renamed with a number: "node", "node-2".
Topology join_hosts(std::vector<Topology> parts);

// Merges several views of one host, the most trusted first. Devices are matched by bus id, then by
// UUID or index (GPUs) or name (NICs). A missing value is taken from the next view; a contradicting
// value becomes a conflict. Error(bad_data) when a view does not describe exactly one host, or when
// GPUs cannot be matched.
Topology merge_views(std::string_view host_name, const std::vector<Topology>& views,
                     const std::vector<std::string>& origins);

// Stores the leaf switch of each NIC, read from a fabric file: atoll's JSON or the output of
// `ibnetdiscover` (topology/inspect/README.md). Error(not_found | io | bad_data).
void apply_fabric(const std::string& path, Topology& topology);

}  // namespace atoll_v1::atoll
