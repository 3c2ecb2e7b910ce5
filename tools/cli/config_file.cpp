#include "cli/cli.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
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

template <class... Values>
[[noreturn]] void refuse(std::size_t line, fmt::format_string<Values...> text, Values&&... values) {
  throw CLI::ConversionError(fmt::format("--config: line {}: {}", line,
                                         fmt::format(text, std::forward<Values>(values)...)));
}

bool is_flag(const CLI::Option& option) { return option.get_expected_min() == 0; }

// Returns a value as the text that a command line would have.
std::string text_of(const toml::node& node, std::string_view name) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto* const flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* const integer = node.as_integer()) return std::to_string(integer->get());
  if (const auto* const number = node.as_floating_point()) return fmt::format("{}", number->get());
  refuse(node.source().begin.line, "{} must be a text, a number, true, false or a list of these",
         toml_text(name));
}

class Reader final : public CLI::Config {
 public:
  explicit Reader(const CLI::App& app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    toml::table table;
    try {
      table = toml::parse(input);
    } catch (const toml::parse_error& error) {
      throw CLI::ConversionError(fmt::format("--config {}: line {}: not whole TOML: {}", files(),
                                             error.source().begin.line, error.description()));
    }
    std::vector<CLI::ConfigItem> lines;
    std::map<const CLI::Option*, std::string> names;  // by the flag that they set
    for (const auto& [key, node] : table) {
      CLI::ConfigItem line = item(key.str(), node);
      const auto [other, is_new] =
          names.try_emplace(app_.get_option_no_throw("--" + line.name), line.name);
      if (!is_new) {
        refuse(node.source().begin.line, "{} and {} are names of one flag: remove one of them",
               toml_text(other->second), toml_text(line.name));
      }
      if (!line.inputs.empty()) lines.push_back(std::move(line));
    }
    return lines;
  }

  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return {}; }

 private:
  std::string files() const {
    return fmt::format("{}",
                       fmt::join(app_.get_config_ptr()->as<std::vector<std::string>>(), ", "));
  }

  // An empty list gives an item without inputs, as if the option was left out.
  CLI::ConfigItem item(std::string_view name, const toml::node& node) const {
    const auto line = node.source().begin.line;
    const CLI::Option* const option = app_.get_option_no_throw("--" + std::string(name));
    if (option == nullptr || !option->get_configurable()) {
      refuse(line,
             "{} is no flag that a file can set: write the names of --help-all without "
             "the first hyphens",
             toml_text(name));
    }
    CLI::ConfigItem result;
    result.name = name;
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
};

// Returns a number as text_of() returns it; nothing for other texts.
std::optional<std::string> number_in(const std::string& text) {
  if (text.find_first_not_of("0123456789+-.eE") != std::string::npos) return std::nullopt;
  try {
    const toml::table table = toml::parse("x = " + text);
    return table["x"].is_number() ? std::optional(text_of(*table["x"].node(), "x")) : std::nullopt;
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

// Options whose type or default is a number hold numbers.
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

}  // namespace

CLI::Option* add_config_option(CLI::App& app) {
  app.config_formatter(std::make_shared<Reader>(app));
  return app.set_config("--config", "",
                        "TOML file with a line NAME = VALUE for each flag, as --print-config "
                        "writes it; flags of the command line override it");
}

std::string config_text(const CLI::App& app) {
  const auto options = app.get_options([](const CLI::Option* option) {
    return option->get_configurable() && option->nonpositional() && !option->get_group().empty();
  });
  std::string given, others;
  for (const CLI::Option* option : options) {
    const std::string name = option->get_single_name();
    if (option->count() > 0) {
      given += fmt::format("{} = {}\n", name, value_of(*option));
    } else if (is_flag(*option)) {
      others += fmt::format("# {}\n", name);
    } else if (option->get_items_expected_max() > 1 && option->get_default_str() == "[]") {
      others += fmt::format("# {} = []\n", name);
    } else {
      others += fmt::format("# {} = {}\n", name, written(*option, option->get_default_str()));
    }
  }
  return fmt::format("# Flags of {} {}. Lines that begin with # are defaults.\n{}\n{}",
                     app.get_name(), ATOLL_VERSION, given, others);
}

}  // namespace cli
