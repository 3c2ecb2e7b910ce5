// Warnings about a run: what makes training slow or wrong without an error, with a remedy each.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace train {

struct RunWarning {
  std::string id;        // name of the warning, such as "padding"
  std::string evidence;  // what was seen, with figures
  std::string remedy;    // what to change
};

// Returns the warnings that run_args.json and metrics.json show. Before the first step metrics is an
// empty object, and only warnings about the settings are found.
std::vector<RunWarning> find_warnings(const nlohmann::json& args, const nlohmann::json& metrics);

// "EVIDENCE; REMEDY", for a log.
std::string to_line(const RunWarning& trap);

}  // namespace train
