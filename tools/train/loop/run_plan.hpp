// What a run has planned, as JSON for run_args.json and the report.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "atoll/fsdp.hpp"
#include "atoll/mesh.hpp"
#include "atoll/topology.hpp"
#include "atoll/world.hpp"

namespace train {

// The ranks of each island. Ranks without a GPU form one island per host, and Config::islands
// overrides both. Collective.
std::vector<std::vector<int>> islands_of_ranks(atoll::World& world,
                                               const atoll::Topology& topology);

// Hosts, islands, mesh order, the strategy's sharding, the memory plan of this rank and the
// findings of the mesh.
nlohmann::json run_plan(const atoll::World& world, const atoll::Mesh& mesh,
                        const std::vector<std::vector<int>>& islands, atoll::fsdp::Engine& engine);

}  // namespace train
