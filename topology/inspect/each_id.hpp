// Visits all ids in a topology, so that a caller can rename them.
#pragma once

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// Calls visit(id) for each id of a host or device. Calls visit_end(id) for both ends of each link,
// because the end of a link may be a switch that belongs to no host. The subject of a conflict may
// hold two ids in one text: "A - B".
template <class Visit, class VisitEnd>
void each_id(Topology& topology, const Visit& visit, const VisitEnd& visit_end) {
  for (TopologyHost& host : topology.hosts) visit(host.id);
  for (TopologyGpu& gpu : topology.gpus) visit(gpu.id), visit(gpu.host);
  for (TopologyNic& nic : topology.nics) visit(nic.id), visit(nic.host);
  for (TopologyLink& link : topology.links) visit_end(link.a), visit_end(link.b);
  for (TopologyPath& path : topology.paths) visit(path.a), visit(path.b);
  for (TopologyConflict& conflict : topology.conflicts) visit(conflict.subject);
  for (TopologyDocument& document : topology.documents)
    for (std::string& host : document.hosts) visit(host);
}

}  // namespace atoll_v1::atoll
