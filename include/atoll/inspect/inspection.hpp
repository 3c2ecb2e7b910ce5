// Everything that atoll knows about a machine, and the formats that show or exchange it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/inspect/doctor.hpp"
#include "atoll/mesh_plan.hpp"
#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

struct Inspection {
  Topology topology;
  std::vector<Island> islands;
  std::vector<Affinity> affinity;
  std::vector<Rail> rails;
  std::vector<RankSite> ranks;
  std::optional<MeshPlan> plan;
  Diagnosis diagnosis;
};

Inspection inspect(Topology topology, std::vector<RankSite> ranks = {},
                   std::optional<MeshPlan> plan = std::nullopt);

enum class Colour {
  off,
  on
};

// Prints the machine for people. Equal hosts are printed once, with all their names.
std::string to_tree(const Inspection& inspection, Colour colour = Colour::off);
// Prints a matrix of GPUs x (GPUs, NICs) with the connection of each pair, and a legend.
// Error(unsupported) above 1024 GPUs.
std::string to_matrix(const Inspection& inspection, Colour colour = Colour::off);
// Prints the findings with evidence, consequence and fix, then the checks that could not run and
// why.
std::string to_report(const Diagnosis& diagnosis, Colour colour = Colour::off);
// atoll's JSON form. Topology::from_json() reads the topology and skips everything derived from it
// (islands, affinity, rails, ranks, mesh, findings, checks).
std::string to_json(const Inspection& inspection);

// A picture in Graphviz' language: islands, rails, findings in colour.
std::string to_dot(const Inspection& inspection);
// The picture as SVG, drawn by Graphviz' `dot`. Error(not_found) names the package when `dot` is
// not installed; Error(io) when `dot` fails or takes more than 30 s; Error(unsupported) above 64
// MiB.
std::string to_svg(const Inspection& inspection);

// An exported text, and one line for each kind of information that the format cannot hold.
struct Export {
  std::string text;
  std::vector<std::string> lost;
};

// One host as hwloc 2 XML, for `lstopo -i`. Error(unsupported) for any other number of hosts.
Export to_hwloc_xml(const Topology& topology);
// NCCL's topology file. A topology that was read from such a file keeps all its attributes.
Export to_nccl_xml(const Topology& topology);
// The NCCL settings that the machine needs in addition to NCCL's defaults: lines of `NAME=value`,
// each below a comment with the reason. A shell can source the text.
std::string to_nccl_env(const Inspection& inspection);

// The differences between two machines, one line each: "- " for parts only in `a`, "+ " for parts
// only in `b`, "~ " for changes. Hosts are matched by name, or by position when each side has one
// host. Empty when the machines are equal.
std::vector<std::string> diff(const Topology& a, const Topology& b);

}  // namespace atoll_v1::atoll
