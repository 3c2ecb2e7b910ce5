// Flags and values of other trainers (transformers, accelerate, axolotl, torchtitan and more), and
// their counterparts in atoll-train, for error messages.
#pragma once

#include <span>
#include <string>

#include "cli/cli.hpp"
#include "loop/options.hpp"

namespace train {

// Flags of other trainers, and what has their place here.
std::span<const cli::ForeignName> foreign_flags();

// Returns what is wrong with the first value that another trainer or another way of writing uses,
// with the word of this trainer; "" if there is none.
std::string foreign_word(const RunOptions& options);

}  // namespace train
