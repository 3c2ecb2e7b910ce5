#include "cli/cli.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>
#include <utility>
#include <vector>

namespace cli {
namespace {

// Returns the name of a flag without hyphens in front, and without a value behind "=".
std::string plain(std::string_view flag) {
  flag.remove_prefix(std::min(flag.find_first_not_of('-'), flag.size()));
  std::string name(flag.substr(0, flag.find('=')));
  for (char& letter : name) {
    letter =
        letter == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return name;
}

// Returns how many letters must be inserted, removed or replaced to turn `a` into `b`.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t before = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = before + (a[i] == b[j] ? 0 : 1);
      before = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, before + 1});
    }
  }
  return row[b.size()];
}

// Returns the flag that was probably meant; "" if none is similar.
std::string meant(const CLI::App& app, const std::string& name,
                  std::span<const ForeignName> foreign) {
  const auto known = std::ranges::find_if(
      foreign, [&](const ForeignName& row) { return has_word(row.theirs, name); });
  if (known != foreign.end()) return std::string(known->ours);
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden options have no group name
    for (const std::string& own : option->get_lnames()) names.push_back(own);
  }
  const std::string found = nearest(name, names);
  return found.empty() ? "" : "--" + found;
}

bool is_flag(const std::string& word) { return word.starts_with("--"); }

std::string ask(const std::string& suggestion) {
  return suggestion.empty() ? "" : "; did you mean " + suggestion + "?";
}

// Returns what is wrong with a word that the program does not take. `value` follows a flag.
std::string extra(const CLI::App& app, const std::string& word, const std::string& value,
                  std::span<const ForeignName> foreign) {
  if (is_flag(word)) {
    return fmt::format("{}{}: there is no such flag{}", word.substr(0, word.find('=')), value,
                       hint(app, word, foreign));
  }
  const std::string what = "unexpected argument: " + word;
  const bool is_config = app.get_option_no_throw("--config") != nullptr &&
                         std::ranges::any_of(std::array{".toml", ".yaml", ".yml"},
                                             [&](const char* end) { return word.ends_with(end); });
  if (is_config) return what + ask("--config " + word);
  const auto row = std::ranges::find_if(
      foreign, [&](const ForeignName& one) { return has_word(one.theirs, plain(word)); });
  const bool is_known = row != foreign.end() && !is_flag(std::string(row->ours));
  return is_known ? fmt::format("{}; use {}", what, row->ours) : what;
}

// The refused word and the accepted words of "--flag: WORD not in {a,b}", the error of
// CLI::IsMember.
struct NotIn {
  std::string word;
  std::vector<std::string> words;
};
NotIn not_in(const std::string& what) {
  const std::size_t at = what.find(" not in {"), end = what.find('}', at);
  if (at == what.npos || end == what.npos) return {};
  const std::size_t list = what.find('{', at) + 1, before = what.rfind(' ', at - 1);
  return {what.substr(before + 1, at - before - 1),
          CLI::detail::split(what.substr(list, end - list), ',')};
}

}  // namespace

bool has_word(std::string_view list, std::string_view word) {
  return fmt::format(" {} ", list).find(fmt::format(" {} ", word)) != std::string::npos;
}

std::string nearest(std::string_view word, const std::vector<std::string>& words) {
  const std::string name = plain(word);
  std::string found;
  // A swap of two letters counts as two changes. A name of up to three letters may have one change.
  std::size_t least = name.size() <= 3 ? 2 : std::max(std::size_t{3}, name.size() / 3 + 1);
  for (const std::string& own : words) {
    const std::size_t letters = distance(name, plain(own));
    if (letters >= least) continue;
    least = letters;
    found = own;
  }
  return found;
}

std::string hint(const CLI::App& app, std::string_view name, std::span<const ForeignName> foreign) {
  // The counterpart of another program's flag may be a program or an environment variable.
  const std::string ours = meant(app, plain(name), foreign);
  return ours.empty() || is_flag(ours) ? ask(ours) : "; use " + ours;
}

std::string complaint(const CLI::App& app, const CLI::Error& error,
                      std::span<const ForeignName> foreign) {
  std::string what = error.what();
  if (const auto at = what.find(": At Most 1 required"); at != what.npos) {
    return what.substr(0, at) + ": the flag is given more than once";
  }
  if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    const NotIn wrong = not_in(what);
    return place_in_config(app, what) + what + ask(nearest(wrong.word, wrong.words));
  }
  std::vector<std::string> lines;
  const std::vector<std::string> words = app.remaining();
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool has_value = is_flag(words[i]) && i + 1 < words.size() && !is_flag(words[i + 1]);
    lines.push_back(extra(app, words[i], has_value ? " " + words[i + 1] : "", foreign));
    if (has_value) ++i;
  }
  return fmt::format("{}", fmt::join(lines, "\n  "));
}

}  // namespace cli
