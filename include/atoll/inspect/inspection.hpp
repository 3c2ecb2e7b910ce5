// All that is known of a machine, and the forms in which it is shown and exchanged.
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

// For people. Equal hosts are shown once, with their names.
std::string to_tree(const Inspection& inspection, Colour colour = Colour::off);
// GPUs x (GPUs, NICs), how each pair is joined, with a legend. Error(unsupported) above 1024 GPUs.
std::string to_matrix(const Inspection& inspection, Colour colour = Colour::off);
// Findings with evidence, consequence and fix, then what was not checked and why.
std::string to_report(const Diagnosis& diagnosis, Colour colour = Colour::off);
// The JSON form with islands, affinity, rails, ranks, mesh, findings and checks, which from_json
// skips.
std::string to_json(const Inspection& inspection);

// A picture in Graphviz' language: islands, rails, trouble in red.
std::string to_dot(const Inspection& inspection);
// The picture, drawn by Graphviz' `dot`. Error(not_found) names the package where it is absent.
std::string to_svg(const Inspection& inspection);

// An export, and what its format cannot hold.
struct Export {
  std::string text;
  std::vector<std::string> lost;
};

// hwloc 2 XML of one host, for `lstopo -i`. Error(unsupported) for several hosts.
Export to_hwloc_xml(const Topology& topology);
// NCCL's topology file. What was read from one goes out again, unknown attributes included.
Export to_nccl_xml(const Topology& topology);
// The NCCL settings that this machine needs beyond the defaults, one `NAME=value` a line under a
// comment that says why. Sourced by a shell.
std::string to_nccl_env(const Inspection& inspection);

// How `b` differs from `a`, a line each: "- " is in a only, "+ " in b only, "~ " differs. Hosts are
// matched by name, or by position where each side has one. Empty when nothing does.
std::vector<std::string> diff(const Topology& a, const Topology& b);

}  // namespace atoll_v1::atoll
