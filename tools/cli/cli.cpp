#include "cli/cli.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/version.hpp"

namespace cli {
namespace {

// Escapes text for roff, in which a backslash, a hyphen, and a dot or quote at the start of a line
// have a special meaning.
std::string roff(std::string_view text) {
  std::string escaped = text.starts_with('.') || text.starts_with('\'') ? "\\&" : "";
  for (const char letter : text) {
    if (letter == '\\') {
      escaped += "\\e";
    } else if (letter == '-') {
      escaped += "\\-";
    } else {
      escaped += letter;
      if (letter == ',') escaped += "\\:";  // a line may break here
    }
  }
  return escaped;
}

// Returns "-o" and "--output" for an option, and the name alone for a positional one.
std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  if (names.empty()) names.push_back(option.get_name(true));
  return names;
}

std::vector<const CLI::Option*> options_in(const CLI::App& app, const std::string& group) {
  return app.get_options([&](const CLI::Option* option) { return option->get_group() == group; });
}

std::vector<const CLI::Option*> shown_options(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
}

void add_options(std::string& page, const CLI::App& app) {
  page += ".SH OPTIONS\n";
  for (const std::string& group : app.get_groups()) {
    if (group.empty()) continue;  // hidden options have no group name
    if (group != "Options") page += fmt::format(".SS {}\n", roff(group));
    for (const CLI::Option* option : options_in(app, group)) {
      page += ".TP\n";
      std::string_view separator;
      for (const std::string& name : names_of(*option)) {
        page += fmt::format("{}\\fB{}\\fR", separator, roff(name));
        separator = ", ";
      }
      // The type and the default, as --help shows them.
      const std::string value = CLI::Formatter().make_option_opts(option);
      if (!value.empty()) page += fmt::format(" \\fI{}\\fR", roff(value.substr(1)));
      page += fmt::format("\n{}\n", roff(option->get_description()));
    }
  }
}

// Returns the length of the title at the start of a paragraph, such as 11 for "Exit status: ...",
// or 0 if the paragraph has no title.
std::size_t title_length(const std::string& line) {
  const std::size_t colon = line.find(':');
  constexpr std::size_t longest = 20;
  if (colon == std::string::npos || colon > longest || line.front() < 'A' || line.front() > 'Z')
    return 0;
  const auto is_word = [](unsigned char c) { return std::isalpha(c) != 0 || c == ' '; };
  return std::all_of(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(colon), is_word)
             ? colon
             : 0;
}

std::string upper(std::string text) {
  for (char& letter : text)
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return text;
}

// Adds the footer of --help. Its indented lines keep their line breaks.
void add_footer(std::string& page, const std::string& footer) {
  std::istringstream lines(footer);
  bool begins = true;  // whether the next line is the first of a paragraph
  bool verbatim = false;
  for (std::string line; std::getline(lines, line);) {
    const bool indented = line.starts_with("  ");
    if (verbatim && !indented) page += ".fi\n";
    if (line.empty()) {
      begins = true;
    } else if (begins) {
      const std::size_t title = title_length(line);
      page += fmt::format(".SH {}\n", title > 0 ? upper(line.substr(0, title)) : "NOTES");
      if (title > 0) line.erase(0, std::min(line.find_first_not_of(' ', title + 1), line.size()));
      begins = false;
    }
    if (indented && !verbatim) page += ".nf\n";
    verbatim = indented;
    if (!line.empty()) page += roff(line) + '\n';
  }
  if (verbatim) page += ".fi\n";
}

// Returns the values that an option accepts if its type contains a list: "TEXT:{tree,matrix}".
std::vector<std::string> values_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t begin = type.find('{');
  const std::size_t end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  std::vector<std::string> values;
  std::istringstream list(type.substr(begin + 1, end - begin - 1));
  for (std::string value; std::getline(list, value, ',');) values.push_back(value);
  return values;
}

// Returns the name of the function that completes the words of a program.
std::string function_of(const CLI::App& app) {
  std::string function = "_" + app.get_name();
  std::replace(function.begin(), function.end(), '-', '_');
  return function;
}

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  if (!(out << text << std::flush))
    throw atoll::Error(atoll::ErrorCode::io, file.string() + ": cannot be written");
}

}  // namespace

void add_common_options(CLI::App& app, const std::string& features, std::vector<std::string> common,
                        Commands commands) {
  std::string version = fmt::format("{} {}\nlibatoll {}: {}", app.get_name(), ATOLL_VERSION,
                                    atoll::version(), atoll::build_features());
  if (!features.empty()) version += '\n' + features;
  add_help(app, std::move(common), commands);
  app.set_version_flag("--version", version, "print the version and what was built in")
      ->group("Options");
  app.add_option_function<std::string>(
         "--generate",
         [&app, commands](const std::string& folder) {
           const std::filesystem::path root(folder);
           const std::string& name = app.get_name();
           write(root / "man" / "man1" / (name + ".1"), manual_page(app, commands));
           write(root / "bash-completion" / "completions" / name, bash_completion(app, commands));
           write(root / "zsh" / "site-functions" / ("_" + name), zsh_completion(app, commands));
           throw CLI::Success();
         },
         "write the manual page and the completions to a folder")
      ->group("");  // hides the option
}

std::string manual_page(const CLI::App& app, const Commands& commands) {
  const std::string name = roff(app.get_name());
  std::string page = fmt::format(".TH {} 1 \"\" \"atoll {}\" \"User Commands\"\n",
                                 upper(app.get_name()), ATOLL_VERSION);
  page += fmt::format(".SH NAME\n{} \\- {}\n", name, roff(app.get_description()));
  page += fmt::format(".SH SYNOPSIS\n.B {}\n[\\fIoptions\\fR]\n", name);
  for (const Command& one : commands)
    page += fmt::format(".br\n.B {} {}\n\\fI{}\\fR\n", name, one.name, roff(one.arguments));
  if (!commands.empty()) page += ".SH COMMANDS\n";
  for (const Command& one : commands)
    page += fmt::format(".TP\n\\fB{}\\fR\n{}\n", one.name, roff(one.help));
  add_options(page, app);
  add_footer(page, app.get_footer());
  return page;
}

std::string words_type(const std::vector<std::string>& words) {
  return fmt::format("TEXT:{{{}}}", fmt::join(words, ","));
}

std::string bash_completion(const CLI::App& app, const Commands& commands) {
  std::string names;
  std::string cases;
  for (const CLI::Option* option : shown_options(app)) {
    if (!option->nonpositional()) continue;
    const auto own = names_of(*option);
    names += fmt::format("{}{}", names.empty() ? "" : " ", fmt::join(own, " "));
    const auto values = values_of(*option);
    if (values.empty()) continue;
    cases += fmt::format("    {}) words='{}' ;;\n", fmt::join(own, "|"), fmt::join(values, " "));
  }
  std::string first_words;
  std::string own_flags;  // of commands without the flags of the program
  for (const Command& one : commands) {
    first_words += (first_words.empty() ? "" : " ") + one.name;
    if (one.arguments.ends_with("FLAG...")) continue;
    own_flags += fmt::format("      -*:{}) words='--help", one.name);
    std::istringstream arguments(one.arguments);
    for (std::string word; arguments >> word;)
      if (const auto at = word.find("--"); at != word.npos)
        own_flags += ' ' + word.substr(at, word.find(']') - at);
    own_flags += "' ;;\n";
  }
  return fmt::format(R"(# Completion of {0}.
{1}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} list= words=
  # bash splits --option=value into three words.
  [[ $word != = ]] || word=
  [[ $before != = ]] || before=${{COMP_WORDS[COMP_CWORD-2]}}
  case $before in
{2}    *) case $word:${{COMP_WORDS[1]}} in
{3}      -*) words='{4}' ;;
      *) [[ $COMP_CWORD != 1 ]] || words='{5}' ;;
    esac ;;
  esac
  [[ $word != *,* ]] || list=${{word%,*}},
  COMPREPLY=($(compgen -P "$list" -W "$words" -- "${{word##*,}}"))
}}
complete -o default -F {1} {0}
)",
                     app.get_name(), function_of(app), cases, own_flags, names, first_words);
}

std::string zsh_completion(const CLI::App& app, const Commands& commands) {
  return fmt::format(
      "#compdef {}\nautoload -Uz bashcompinit && bashcompinit\n{}_bash_complete -o default -F {}\n",
      app.get_name(), bash_completion(app, commands), function_of(app));
}

}  // namespace cli
