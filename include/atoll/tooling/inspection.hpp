// A machine's topology with all that is derived from it, and the formats that show or store it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/mesh_plan.hpp"
#include "atoll/tooling/doctor.hpp"
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

// Derives islands, affinity and rails from the topology, and runs all checks. Checks that need
// ranks or a plan get the status not_checked without them.
ATOLL_API Inspection inspect(Topology topology, std::vector<RankSite> ranks = {},
                             std::optional<MeshPlan> plan = std::nullopt);

enum class Colour {
  off,
  on
};

// Returns the machine as a tree of text for people: hosts, islands, GPUs and NICs. Equal hosts are
// printed once, with all their names.
ATOLL_API std::string to_tree(const Inspection& inspection, Colour colour = Colour::off);
// Returns a matrix with a row for each GPU, a column for each GPU and NIC, and a legend. Each cell
// shows how the pair is connected. Throws Error(unsupported) for more than 1,024 GPUs.
ATOLL_API std::string to_matrix(const Inspection& inspection, Colour colour = Colour::off);
enum class PassedChecks {
  counted,
  listed
};
// Returns a text: one line that sums up the result, then all findings (evidence, consequence and
// fix). The end of the text depends on `passed`. With `listed` it names each check that passed, and
// each check that could not run with the reason. With `counted` it states how many there are.
ATOLL_API std::string to_report(const Diagnosis& diagnosis, Colour colour = Colour::off,
                                PassedChecks passed = PassedChecks::counted);
// Returns the inspection in atoll's JSON form. Topology::from_json() reads only the topology from
// this text and skips everything else (islands, affinity of GPUs and of cores, rails, ranks, mesh,
// findings, checks).
ATOLL_API std::string to_json(const Inspection& inspection);

// Returns a picture of the machine as SVG: islands, rails, and findings in colour.
ATOLL_API std::string to_svg(const Inspection& inspection);

// Returns the text of a topology file for NCCL (NCCL_TOPO_FILE). If the topology was read from such
// a file, the text keeps all attributes of that file. Devices without a bus id and virtual NICs are
// left out. Throws Error(unsupported) if the format cannot hold the machine.
ATOLL_API std::string to_nccl_xml(const Topology& topology);
// Returns the NCCL settings that the machine needs in addition to NCCL's defaults, as far as the
// topology shows: lines of `NAME=value`, each below a comment with the reason. Needs without a
// single right value, such as network plugins, are comments. A shell can source the text.
ATOLL_API std::string to_nccl_env(const Inspection& inspection);

// Returns the differences between two machines, one line each: "- " for parts only in `a`, "+ " for
// parts only in `b`, "~ " for changes. Hosts are matched by name; if both machines have one host,
// these two are compared. The result is empty when the machines are equal.
ATOLL_API std::vector<std::string> diff(const Topology& a, const Topology& b);

}  // namespace atoll_v1::atoll
