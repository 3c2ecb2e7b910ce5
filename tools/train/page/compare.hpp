// Several runs side by side.
#pragma once

#include <string>
#include <vector>

#include "page/run_files.hpp"

namespace train::page {

// Returns a table for a terminal: a row for each figure and for each setting that differs, a column
// for each run.
std::string compare_text(const std::vector<RunFiles>& runs);

// Returns a page with the same table and the curves of all runs in one drawing each.
std::string compare_html(const std::vector<RunFiles>& runs);

}  // namespace train::page
