// Reads the files that a run wrote into its folder.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace train::page {

struct RunFiles {
  std::filesystem::path folder;
  std::string name;  // run_name of metrics.json, or the name of the folder
  nlohmann::json args = nlohmann::json::object();     // run_args.json; empty if there is none
  nlohmann::json metrics = nlohmann::json::object();  // metrics.json; empty until a run has ended
  // Columns of steps.jsonl by name, one value for each step; NaN where a step has no number.
  std::map<std::string, std::vector<double>> columns;
  std::size_t steps = 0;
  nlohmann::json trace;    // the Chrome trace, or null
  std::string trace_note;  // why there is no timeline

  // The values of a column; NaNs if no step has them.
  std::vector<double> column(const std::string& key) const;
  bool has(const std::string& key) const;  // whether any step has a value of this name

  // A number of metrics.json, or NaN.
  double metric(std::string_view key) const;
};

// The last component of the absolute path, so that "." and "runs/" have a name too.
std::string folder_name(const std::filesystem::path& folder);

// Returns the subfolders that hold runs, sorted; the folder itself if it is a run or has none.
std::vector<std::filesystem::path> runs_at(const std::filesystem::path& folder);

// Throws Error(not_found) that names the folder if it holds no run, and Error(bad_data) if a JSON
// file of it is broken. Lines of steps.jsonl that are cut off are left out.
RunFiles read_run(const std::filesystem::path& folder);

// Reads the trace of the run as well. If it cannot be read, trace_note says why.
void read_trace(RunFiles& run);

// A number of a JSON object, or NaN.
double number(const nlohmann::json& object, std::string_view name);

// A value as text: a string without quotes, "" for null.
std::string plain(const nlohmann::json& value);

}  // namespace train::page
