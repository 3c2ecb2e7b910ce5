// Bus bandwidth over size as a picture, drawn by gnuplot.
#pragma once

#include <span>
#include <string>

#include "sweep.hpp"

namespace busbw {

// The gnuplot program: a curve for each collective, type, reduction and place, with the limit
// beside it where one is known. Pure.
std::string plot_program(std::span<const Table> tables, const std::string& path);

// Error(not_found) unless gnuplot is in PATH.
void find_gnuplot();
// Error(not_found) when there is no gnuplot, Error(io) when it fails.
void run_gnuplot(const std::string& program);

}  // namespace busbw
