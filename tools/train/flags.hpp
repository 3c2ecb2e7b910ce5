// The flags of atoll-train.
#pragma once

#include <span>

#include "cli/complaint.hpp"
#include "loop/options.hpp"

namespace CLI {
class App;
}

namespace train {

// Adds the flags of atoll-train to `app`. cli::add_common_options() adds --version and the like.
// Parsing fills `options`, and sets `prints` if --print-config is given. Both must live as long as
// `app`.
void add_flags(CLI::App& app, RunOptions& options, bool& prints);

// Flags of other trainers, for suggestions.
std::span<const cli::ForeignName> names_of_other_trainers();

}  // namespace train
