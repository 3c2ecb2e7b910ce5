// `atoll-train evaluate` and `atoll-train export`: the flags that they stand for, and which flags
// of a configuration file the flags of the command line replace.
#pragma once

#include <string>
#include <vector>

#include "cli/cli.hpp"

namespace train {

enum class Mode {
  train,
  evaluate,
  export_model
};

// Describes what is wrong with a command line. main() prints the text and ends with status 2.
struct WrongUsage {
  std::string text;
};

// Returns the mode of a command line.
Mode mode_of(const std::vector<std::string>& words);

// Returns the command line with its words replaced by flags. The model may be a name, a folder, a
// file of weights, a checkpoint of a run, or a results folder: evaluate then takes the best
// checkpoint if there is one, and export the last one. Throws WrongUsage.
std::vector<std::string> in_flags(std::vector<std::string> words, Mode mode);

// Returns which flags of a configuration file a flag of the command line replaces. Evaluations and
// exports ignore the flags for steps, results and ranks of the run, so that they run on any
// machine, and no message names these flags.
std::vector<cli::Replaces> replaced_flags(Mode mode);

}  // namespace train
