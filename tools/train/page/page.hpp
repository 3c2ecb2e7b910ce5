// report.html: what one run did, in one file for a browser.
#pragma once

#include <filesystem>
#include <string>

#include "page/run_files.hpp"

namespace train::page {

// Returns the whole page.
std::string report_html(const RunFiles& run);

// Reads the folder of a run and writes report.html into it. Returns the file. Throws Error: see
// read_run(), and Error(io) if the file cannot be written.
std::filesystem::path write_report(const std::filesystem::path& folder);

}  // namespace train::page
