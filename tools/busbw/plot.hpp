// Plots bus bandwidth over size with gnuplot.
#pragma once

#include <span>
#include <string>

#include "sweep.hpp"

namespace busbw {

// Returns the gnuplot program: one curve for each collective, type, reduction and place (in place
// or out of place), and its limit if known. Pure function.
std::string plot_program(std::span<const Table> tables, const std::string& path);

// Throws Error(not_found) unless gnuplot is in PATH.
void find_gnuplot();
// Throws Error(not_found) when gnuplot is missing, and Error(io) when it fails.
void run_gnuplot(const std::string& program);

}  // namespace busbw
