// Machines from files and from the catalog; several descriptions of one machine made into one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// A machine from a file in any form that an importer of topology/inspect/importers/ recognises, or from
// "NAME=FILE,FILE...": several sources of one host, which is called NAME. A name of the catalog,
// with or without a number of machines ("hgx-h100", "hgx-h100x16"), stands for a file where there
// is none of that name. Error(not_found | io | bad_data), which names the file and the byte.
Topology load_topology(const std::string& what);

// A machine of the catalog: "hgx-h100", or "hgx-h100x16" for a cluster of 16.
// Error(not_found), which names the nearest entries.
Topology catalog_cluster(std::string_view name);

struct CatalogEntry {
  std::string name;
  std::string title;
};
std::vector<CatalogEntry> catalog();  // by name

// Topologies of different hosts. A host whose id an earlier part has is another machine, and gets a
// number behind its id and name: "node", "node-2".
Topology join_hosts(std::vector<Topology> parts);

// Several views of one host, the most trusted first. Devices are matched by bus id, then by index
// (GPUs) or name (NICs). What a view lacks is taken from the next one; what it contradicts is a
// conflict. Error(bad_data) when a view describes several hosts, or GPUs cannot be matched.
Topology merge_views(std::string_view host_name, const std::vector<Topology>& views,
                     const std::vector<std::string>& origins);

// Marks NICs with the leaf switch that a fabric file gives: atoll's JSON or `ibnetdiscover` output
// (topology/README.md). Error(not_found | io | bad_data).
void apply_fabric(const std::string& path, Topology& topology);

}  // namespace atoll_v1::atoll
