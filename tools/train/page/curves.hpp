// Columns of steps as curves of bounded size.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "page/run_files.hpp"

namespace train::page {

// The column over the steps as {"x", "y"}, rounded to 6 digits; null where it is not finite. Long
// columns are reduced to their least and greatest values in 300 intervals, so that spikes stay
// visible.
nlohmann::json curve_of(const RunFiles& run, const std::vector<double>& column);

// Exponential moving average over about `window` values, without bias at the start. Values that
// are not finite are passed over.
std::vector<double> smoothed(const std::vector<double>& values, double window);

}  // namespace train::page
