#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include "cli/cli.hpp"

namespace cli {
namespace {

constexpr std::size_t text_column = 30, fewest_columns = 60, most_columns = 100;

// Columns of the terminal that shows the help; most_columns if it is wider or no terminal.
std::size_t columns() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return most_columns;
  return std::clamp<std::size_t>(size.ws_col, fewest_columns, most_columns);
}

// Breaks `text` between words, so that each line ends before `width` if the lines after the first
// begin at column `indent`, and the first at `column`.
std::string wrapped(std::string_view text, std::size_t column, std::size_t indent,
                    std::size_t width) {
  std::string out;
  std::istringstream words{std::string(text)};
  bool begins = true;  // true before the first word of a line
  for (std::string word; words >> word;) {
    if (!begins && column + 1 + word.size() > width) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (!begins) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    begins = false;
  }
  return out;
}

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter(std::vector<std::string> common, Commands commands)
      : common_(std::move(common)), commands_(std::move(commands)) {}

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    const bool some = mode == CLI::AppFormatMode::Normal && !common_.empty();
    return make_description(app) + make_usage(app, std::move(name)) + make_positionals(app) +
           (some ? make_common(*app) : make_groups(app, mode)) + make_commands(*app) + '\n' +
           make_footer(app);
  }

  // Lists positional options that have no flag; the list of flags describes the others.
  std::string make_positionals(const CLI::App* app) const override {
    const auto all = app->get_options([](const CLI::Option* option) {
      return option->get_positional() && !option->nonpositional();
    });
    return all.empty() ? std::string() : CLI::Formatter::make_positionals(app);
  }

  std::string make_description(const CLI::App* app) const override {
    return wrapped(app->get_description(), 0, 0, columns()) + '\n';
  }

  // Prints names alone. CLI11 itself adds "{false}" to the name of a flag that turns something off.
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    if (is_positional) return CLI::Formatter::make_option_name(option, true);
    std::vector<std::string> names;
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    return fmt::format("{}", fmt::join(names, ","));
  }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const std::size_t width = columns();
    // A long list of values breaks at its commas.
    std::string name = make_option_name(option, is_positional) + make_option_opts(option);
    if (name.size() + 2 > width) {
      for (std::size_t i = name.find(','); i != name.npos; i = name.find(',', i + 1)) {
        name.insert(i + 1, " ");
      }
      name = wrapped(name, 2, 6, width);
    }
    std::string line = "  " + name;
    const std::size_t used = line.size() - (line.rfind('\n') + 1);
    line += used + 1 < text_column && line.find('\n') == line.npos
                ? std::string(text_column - used, ' ')
                : '\n' + std::string(text_column, ' ');
    return line + wrapped(make_option_desc(option), text_column, text_column, width) + '\n';
  }

 private:
  std::string make_common(const CLI::App& app) const {
    std::vector<const CLI::Option*> options;
    for (const std::string& name : common_) options.push_back(app.get_option(name));
    const auto all = app.get_options([](const CLI::Option* option) {
      return option->nonpositional() && !option->get_group().empty();
    });
    return make_group("Common flags", false, options) +
           fmt::format("\n{} --help-all lists all {} flags.\n", app.get_name(), all.size());
  }

  std::string make_commands(const CLI::App& app) const {
    std::string text = commands_.empty() ? "" : "\nCommands:\n";
    for (const Command& one : commands_) {
      text += fmt::format("  {} {} {}\n{:{}}{}\n", app.get_name(), one.name, one.arguments, "",
                          text_column, wrapped(one.help, text_column, text_column, columns()));
    }
    return text;
  }

  std::vector<std::string> common_;
  Commands commands_;
};

}  // namespace

void add_help(CLI::App& app, std::vector<std::string> common, Commands commands) {
  app.formatter(std::make_shared<HelpFormatter>(std::move(common), std::move(commands)));
  app.set_help_all_flag("--help-all", "print all flags and exit");
}

}  // namespace cli
