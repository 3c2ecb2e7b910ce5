// Several runs side by side.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "page/run_files.hpp"

namespace train::page {

// Returns a table for a terminal: a row for each figure and for each setting that differs, a column
// for each run.
std::string compare_text(const std::vector<RunFiles>& runs);

// The data of a page with the same table, and the curves of all runs in one drawing each.
nlohmann::json comparison_of(const std::vector<RunFiles>& runs);

}  // namespace train::page
