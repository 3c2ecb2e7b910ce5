// The common part of all command lines: --version, the manual page, and the completion for bash and
// zsh, which are made from the declarations of the options, as is --help; configuration files;
// errors; numbers.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Error;
class Option;
}  // namespace CLI

namespace cli {

// A first word of the command line that is no flag, as in `atoll-train compare FOLDER...`.
struct Command {
  std::string name;
  std::string arguments;  // with its flags; "FLAG..." at the end: all flags of the program
  std::string help;
};
using Commands = std::vector<Command>;

// Adds --version, --help-all and the hidden option --generate FOLDER, which writes manual_page(),
// bash_completion() and zsh_completion() to FOLDER/man/man1/NAME.1,
// FOLDER/bash-completion/completions/NAME and FOLDER/zsh/site-functions/_NAME. Like --help, they
// make App::parse() throw CLI::Success. `features` is a line of text that --version prints below
// the features of the library. --help shows the options of `common` alone, or all options if it is
// empty. Call this function after all other options have been declared. Writing throws
// atoll::Error(io).
void add_common_options(CLI::App& app, const std::string& features = {},
                        std::vector<std::string> common = {}, Commands commands = {});

// Returns a page of section 1 for man(1). A paragraph of the footer that begins with a title and a
// colon ("Examples:") becomes a section.
std::string manual_page(const CLI::App& app, const Commands& commands = {});

// Returns a script that completes commands, names of options, and the values that words_type()
// lists, also after a comma. It completes other words as file names.
std::string bash_completion(const CLI::App& app, const Commands& commands = {});

// Returns the function of zsh's completion system that does the same with the script for bash.
std::string zsh_completion(const CLI::App& app, const Commands& commands = {});

// Returns the type name of an option with known values: "TEXT:{tree,matrix}".
std::string words_type(const std::vector<std::string>& words);

// --- config_file.cpp: files with the flags of a command line, as TOML (https://toml.io) ---

// A flag of other programs and its counterpart: a flag, perhaps with a value, or a program.
struct ForeignName {
  std::string_view ours;
  // Names in lower case, with "-" between words and without hyphens in front, separated by spaces.
  std::string_view theirs;
};
// Returns true if `word` is one of the words of `list`, which are separated by spaces.
bool has_word(std::string_view list, std::string_view word);

// If the command line has the option `typed`, the option `instead_of` of the file is ignored.
struct Replaces {
  std::string_view typed, instead_of;
};

// Adds --config FILE: each line NAME = VALUE sets the option --NAME, also with "_" for "-", and the
// command line overrides it. For a file that is not TOML, unknown names, a table, or a list for an
// option with one value, parsing throws CLI::Error, as for wrong flags; the text names the file and
// each line, and suggests names as complaint() does. `foreign` and `replaces` must outlive the app.
CLI::Option* add_config_option(CLI::App& app, std::span<const ForeignName> foreign = {},
                               std::span<const Replaces> replaces = {});

// Returns a file for --config, from a parsed app: a line for each option that was given, then the
// other options as comments with their default values. Leaves out options that a given one replaces.
std::string config_text(const CLI::App& app, std::span<const Replaces> replaces = {});

// --- help.cpp: --help and --help-all, in lines that fit the terminal, at most 100 columns ---

void add_help(CLI::App& app, std::vector<std::string> common, Commands commands);

// --- complaint.cpp: the line that a program prints for a wrong command line ---

// Returns the word of `words` that is most similar to `word`; "" if none is similar. The comparison
// ignores case and leading hyphens, and treats "_" as "-".
std::string nearest(std::string_view word, const std::vector<std::string>& words);

// Returns "run.toml, line 3: " if `what` is about a flag and its value that stand in that line of the
// file of --config; else "".
std::string place_in_config(const CLI::App& app, std::string_view what);

// Returns "; did you mean --lr?", "; use another program" or "" for a name that is no flag of the
// app, with or without hyphens.
std::string hint(const CLI::App& app, std::string_view name, std::span<const ForeignName> foreign);

// Returns what is wrong, with a line for each unknown flag. For an unknown flag it suggests the
// flag that `foreign` gives for its name, or the one with the most similar name, and for an unknown
// value the most similar one.
std::string complaint(const CLI::App& app, const CLI::Error& error,
                      std::span<const ForeignName> foreign = {});

// --- numbers.cpp: numbers as people write them ---

// A transform() of CLI11: turns "16G", "1.5 GiB" or "4096" into a number of bytes. The units b, k,
// m, g and t, in any case and also as "kb" or "KiB", are powers of 1024. A fraction of a byte is
// cut off. Throws CLI::ValidationError for other texts.
std::string as_bytes(const std::string& text);

// A check() of CLI11 for finite numbers, since CLI::Range takes NaN and has six decimals. `must`
// completes the error "5 must be ...".
using Check = std::function<std::string(const std::string&)>;
Check number(std::function<bool(double)> fits, std::string must);
Check at_least(double least);

}  // namespace cli
