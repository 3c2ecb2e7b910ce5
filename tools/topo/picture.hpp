// Writes PNG and PDF files, for which it converts the SVG that the inspector draws.
#pragma once

#include <string>

namespace topo {

// Converts an SVG text to the form that the extension of the path names (.png or .pdf), and writes
// it there. Throws Error(not_found) if the program rsvg-convert is not installed, and Error(io).
void write_picture(const std::string& svg, const std::string& path);

}  // namespace topo
