// The flags of atoll-train.
#pragma once

#include <span>

#include "cli/complaint.hpp"
#include "loop/options.hpp"

namespace CLI {
class App;
}

namespace train {

// Declares all flags but those that every program of atoll has. Parsing sets `options`, and
// `prints` for --print-config.
void add_flags(CLI::App& app, RunOptions& options, bool& prints);

// Flags of other trainers, for suggestions.
std::span<const cli::ForeignName> names_of_other_trainers();

}  // namespace train
