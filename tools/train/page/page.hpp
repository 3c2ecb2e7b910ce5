// The data of the two pages, as JSON: report.html, which shows one run, and the comparison of runs.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "page/run_files.hpp"

namespace train::page {

// The data of report.html.
nlohmann::json report_of(const RunFiles& run);

// Reads the folder of a run and writes report.html into it. Returns the file. Throws Error: see
// read_run(), and Error(io) if the file cannot be written.
std::filesystem::path write_report(const std::filesystem::path& folder);

// Returns a table for a terminal: a row for each figure and for each setting that differs, a column
// for each run.
std::string compare_text(const std::vector<RunFiles>& runs);

// The data of a page with the same table, and the curves of all runs in one drawing each.
nlohmann::json comparison_of(const std::vector<RunFiles>& runs);

// The column over the steps as {"x", "y"}, rounded to 6 digits; null where it is not finite. Long
// columns are reduced to their least and greatest values in 300 intervals, so that spikes stay
// visible.
nlohmann::json curve_of(const RunFiles& run, const std::vector<double>& column);

// Exponential moving average over about `window` values, without bias at the start. Values that
// are not finite are passed over.
std::vector<double> smoothed(const std::vector<double>& values, double window);

}  // namespace train::page
