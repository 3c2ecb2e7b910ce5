// The hosts, ranks and shard groups of a run, as SVG.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace train::page {

// `plan` is the entry "plan" of run_args.json. Returns "" if it has no hosts.
std::string draw_mesh(const nlohmann::json& plan);

}  // namespace train::page
