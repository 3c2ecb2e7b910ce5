// The common part of all command lines: --version, the manual page, and the completion for bash.
// The page and the completion are made from the declarations of the options, as is --help.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace cli {

// Adds --version and the hidden option --generate FOLDER, which writes manual_page() and
// bash_completion() to FOLDER/man/man1/NAME.1 and FOLDER/bash-completion/completions/NAME. Like
// --help, both options make App::parse() throw CLI::Success. `features` is a line of text that
// --version prints below the features of the library. Call this function after all other options
// have been declared. Writing throws atoll::Error(io).
void add_common_options(CLI::App& app, const std::string& features = {});

// Returns a page of section 1 for man(1). A paragraph of the footer that begins with a title and a
// colon ("Examples:") becomes a section.
std::string manual_page(const CLI::App& app);

// Returns a script that completes the names of options, and the values of options that have a list
// of them. bash completes other words as file names.
std::string bash_completion(const CLI::App& app);

}  // namespace cli
