// report.html: what one run did, in one file for a browser.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "page/run_files.hpp"

namespace train::page {

// The data of the page.
nlohmann::json report_of(const RunFiles& run);

// Reads the folder of a run and writes report.html into it. Returns the file. Throws Error: see
// read_run(), and Error(io) if the file cannot be written.
std::filesystem::path write_report(const std::filesystem::path& folder);

}  // namespace train::page
