// Configuration files, which hold flags of a command line as TOML (https://toml.io).
#pragma once

#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace cli {

// Adds --config FILE: each line NAME = VALUE sets the option --NAME, and the command line overrides
// it. For a file that is not TOML, an unknown name, a table, or a list for an option with one
// value, parsing throws CLI::Error, as for wrong flags; the text names the line.
CLI::Option* add_config_option(CLI::App& app);

// Returns a file for --config, from a parsed app: a line for each option that was given, and after
// them the other options as comments with their default values.
std::string config_text(const CLI::App& app);

}  // namespace cli
