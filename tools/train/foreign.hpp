// Flags and values of other trainers (transformers, accelerate, axolotl, torchtitan and more), and
// their counterparts in atoll-train, for error messages.
#pragma once

#include <span>
#include <string>

#include "cli/cli.hpp"
#include "loop/options.hpp"

namespace train {

// Flags of other trainers, each with its counterpart in atoll-train.
std::span<const cli::ForeignName> foreign_flags();

// Describes the first value that only other trainers or other spellings use, and names this
// trainer's word for it; "" if there is no such value.
std::string foreign_word(const RunOptions& options);

}  // namespace train
