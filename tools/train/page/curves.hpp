// The curves of a run.
#pragma once

#include <string>

#include "page/run_files.hpp"

namespace train::page {

// Returns the figures of learning: loss, learning rate, gradient norm.
std::string learning_curves(const RunFiles& run);
// Returns the figures of speed: throughput, MFU, times of a step, use of the machine.
std::string speed_curves(const RunFiles& run);

}  // namespace train::page
