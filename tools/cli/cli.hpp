// What the command lines of all programs share: --version, and the manual page and the completion for
// bash, which are made from the same declarations as the text of --help.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace cli {

// Adds --version and the hidden option --generate FOLDER, which writes manual_page() and
// bash_completion() to FOLDER/man/man1/NAME.1 and FOLDER/bash-completion/completions/NAME. Like
// --help, both make App::parse() throw CLI::Success. `features` names what the program was built with,
// besides the library. All other options must have been declared.
void add_common_options(CLI::App& app, const std::string& features = {});

// Returns a page of section 1 for man(1). A paragraph of the footer that begins with a title and a
// colon ("Examples:") becomes a section.
std::string manual_page(const CLI::App& app);

// Returns a script that completes the names of options, and the values of options that have a list
// of them. bash completes other words as file names.
std::string bash_completion(const CLI::App& app);

}  // namespace cli
