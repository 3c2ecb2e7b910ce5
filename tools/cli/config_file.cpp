#include "cli/cli.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/version.hpp"

namespace cli {
namespace {

// Text in TOML's notation of basic strings, which also keeps control characters off a terminal.
std::string toml_text(std::string_view value) {
  std::ostringstream out;
  out << toml::value<std::string>(value);
  return out.str();
}

// A line of the file, with its value or with what is wrong with it.
struct Line {
  std::size_t line;
  std::string text;
};

template <class... Values>
[[noreturn]] void refuse(std::size_t line, fmt::format_string<Values...> text, Values&&... values) {
  throw Line{line, fmt::format(text, std::forward<Values>(values)...)};
}

bool is_flag(const CLI::Option& option) { return option.get_expected_min() == 0; }

// Returns a value as the text that a command line would have.
std::string text_of(const toml::node& node, std::string_view name) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto* const flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* const integer = node.as_integer()) return std::to_string(integer->get());
  if (const auto* const number = node.as_floating_point()) return fmt::format("{}", number->get());
  refuse(node.source().begin.line, "{} must be a text, a number, true, false or a list of these{}",
         toml_text(name), node.is_table() ? ": write flags without tables such as [model]" : "");
}

bool is_given(const CLI::App& app, std::string_view name) {
  const CLI::Option* const option = app.get_option_no_throw(std::string(name));
  return option != nullptr && option->count() > 0;
}

// Whether an option that was given takes the place of this one.
bool is_replaced(const CLI::App& app, std::span<const Replaces> replaces, const std::string& flag) {
  return std::ranges::any_of(replaces, [&](const Replaces& pair) {
    return pair.instead_of == flag && is_given(app, pair.typed);
  });
}

class Reader final : public CLI::Config {
 public:
  Reader(const CLI::App& app, std::span<const ForeignName> foreign,
         std::span<const Replaces> replaces)
      : app_(app), foreign_(foreign), replaces_(replaces) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    toml::table table;
    try {
      table = toml::parse(input);
    } catch (const toml::parse_error& error) {
      throw complaint_on({{error.source().begin.line,
                           fmt::format("must be TOML: NAME = VALUE ({})", error.description())}});
    }
    std::vector<CLI::ConfigItem> lines;
    std::vector<Line> wrong;
    std::map<const CLI::Option*, std::string> names;  // by the flag that they set
    for (const auto& [key, node] : table) {
      try {
        CLI::ConfigItem line = item(key.str(), node);
        const auto* const option = app_.get_option_no_throw("--" + line.name);
        const auto [other, is_new] = names.try_emplace(option, key.str());
        if (!is_new) {
          refuse(node.source().begin.line, "{} and {} are names of one flag: remove one of them",
                 toml_text(other->second), toml_text(key.str()));
        }
        // The file is read after the command line, so the options given there are known.
        const bool counts = !is_replaced(app_, replaces_, "--" + option->get_lnames().front());
        if (counts && line.inputs.size() == 1)
          lines_[line.name] = {node.source().begin.line, line.inputs[0]};
        if (counts && !line.inputs.empty()) lines.push_back(std::move(line));
      } catch (Line& one) {
        wrong.push_back(std::move(one));
      }
    }
    if (!wrong.empty()) throw complaint_on(std::move(wrong));
    return lines;
  }

  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return {}; }

  std::string place_of(std::string_view what) const {
    for (const auto& [name, line] : lines_) {
      const std::string flag = "--" + name;
      const auto at = what.find(flag);
      const bool is_named = at != what.npos && what.find_first_of(" :=", at) == at + flag.size();
      if (is_named && what.find(line.text, at + flag.size()) != what.npos)
        return fmt::format("{}, line {}: ", files(), line.line);
    }
    return {};
  }

 private:
  CLI::ConversionError complaint_on(std::vector<Line> wrong) const {
    std::ranges::sort(wrong, {}, &Line::line);
    std::vector<std::string> lines;
    for (const Line& one : wrong) lines.push_back(fmt::format("line {}: {}", one.line, one.text));
    return CLI::ConversionError(fmt::format("--config {}: {}", files(), fmt::join(lines, "\n  ")));
  }

  std::string files() const {
    const auto all = app_.get_config_ptr()->as<std::vector<std::string>>();
    return fmt::format("{}", fmt::join(all, ", "));
  }

  // Returns what is wrong with a name that the file cannot set.
  std::string no_flag(const std::string& name) const {
    const bool is_known = app_.get_option_no_throw("--" + name) != nullptr;
    std::string meant = is_known ? "" : hint(app_, name, foreign_);
    if (const auto at = meant.find(" --"); at != meant.npos) meant.erase(at + 1, 2);
    return toml_text(name) + " is no flag that a file can set" +
           (meant.empty() ? ": write the names of --help-all without the first hyphens" : meant);
  }

  // An empty list gives an item without inputs, as if the option was left out.
  CLI::ConfigItem item(std::string_view name, const toml::node& node) const {
    const auto line = node.source().begin.line;
    CLI::ConfigItem result;
    result.name = name;
    std::ranges::replace(result.name, '_', '-');
    const CLI::Option* const option = app_.get_option_no_throw("--" + result.name);
    if (option == nullptr || !option->get_configurable()) {
      refuse(line, "{}", no_flag(std::string(name)));
    }
    const toml::array* const list = node.as_array();
    if (list != nullptr) {
      for (const toml::node& element : *list) result.inputs.push_back(text_of(element, name));
    } else {
      result.inputs.push_back(text_of(node, name));
    }
    const bool takes_list = option->get_items_expected_max() > 1;
    if (list != nullptr && !takes_list) refuse(line, "{} needs one value", toml_text(name));
    if (result.inputs.size() == 1 && result.inputs[0].empty() &&
        !option->get_default_str().empty()) {
      refuse(line, "{} is empty", toml_text(name));
    }
    if (is_flag(*option) != node.is_boolean()) {
      refuse(line, "{} {} true or false", toml_text(name),
             is_flag(*option) ? "must be" : "cannot be");
    }
    return result;
  }

  const CLI::App& app_;
  std::span<const ForeignName> foreign_;
  std::span<const Replaces> replaces_;
  mutable std::map<std::string, Line> lines_;  // line and value of each flag with one value
};

// Returns the number in `text`, in the form of text_of(); nothing if it holds no number.
std::optional<std::string> number_in(const std::string& text) {
  if (text.find_first_not_of("0123456789+-.eE") != std::string::npos) return std::nullopt;
  try {
    const toml::table table = toml::parse("x = " + text);
    return table["x"].is_number() ? std::optional(text_of(*table["x"].node(), "x")) : std::nullopt;
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

// Returns a value in TOML: a number if the type or default of the option is one, else a string.
std::string written(const CLI::Option& option, const std::string& value) {
  const bool is_number =
      option.get_type_name() == "FLOAT" || number_in(option.get_default_str()).has_value();
  const auto number = is_number ? number_in(value) : std::nullopt;
  return number ? *number : toml_text(value);
}

// The value of an option that was given.
std::string value_of(const CLI::Option& option) {
  const std::vector<std::string> results = option.reduced_results();
  if (is_flag(option)) return results.back();
  if (option.get_items_expected_max() == 1) return written(option, results.back());
  std::string list;
  for (const std::string& result : results) list += (list.empty() ? "" : ", ") + toml_text(result);
  return '[' + list + ']';
}

std::string default_of(const CLI::Option& option) {
  // A switch that has a name to turn it off is on by default.
  if (is_flag(option)) return option.get_fnames().empty() ? "false" : "true";
  const std::string text = option.get_default_str();
  return option.get_items_expected_max() > 1 && text == "[]" ? text : written(option, text);
}

}  // namespace

CLI::Option* add_config_option(CLI::App& app, std::span<const ForeignName> foreign,
                               std::span<const Replaces> replaces) {
  app.config_formatter(std::make_shared<Reader>(app, foreign, replaces));
  return app.set_config("--config", "",
                        "TOML file with a line NAME = VALUE for each flag, as --print-config "
                        "writes it; flags of the command line override it");
}

std::string place_in_config(const CLI::App& app, std::string_view what) {
  const auto reader = std::dynamic_pointer_cast<Reader>(app.get_config_formatter());
  return reader ? reader->place_of(what) : std::string();
}

std::string config_text(const CLI::App& app, std::span<const Replaces> replaces) {
  const auto options = app.get_options([](const CLI::Option* option) {
    return option->get_configurable() && option->nonpositional() && !option->get_group().empty();
  });
  std::string given, others;
  for (const CLI::Option* option : options) {
    const std::string name = option->get_single_name();
    if (option->count() > 0) {
      given += fmt::format("{} = {}\n", name, value_of(*option));
    } else if (!is_replaced(app, replaces, "--" + name)) {
      others += fmt::format("# {} = {}\n", name, default_of(*option));
    }
  }
  return fmt::format("# Flags of {} {}. Lines that begin with # are defaults.\n{}\n{}",
                     app.get_name(), ATOLL_VERSION, given, others);
}

}  // namespace cli
