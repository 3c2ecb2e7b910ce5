#include "inspect/importers/device_matrix.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <span>

#include "parse_number.hpp"

namespace atoll_v1::atoll::importers {
namespace {

constexpr std::size_t header_lines = 200;   // number of first lines that may contain the header
constexpr std::size_t lines_of_header = 8;  // number of lines over which a header may be broken
constexpr int highest_gpu = 65'535;

// Returns the position after the terminal escape at `at`, or `at` itself when there is no escape.
std::size_t after_escape(std::string_view text, std::size_t at) {
  constexpr std::string_view parameters = "0123456789;:<=>?";
  const bool is_whole = text.substr(at, 2) == "\x1b[";
  const bool is_caret = text.substr(at, 3) == "^[[";
  if (!is_whole && !is_caret && text[at] != '[') return at;
  const std::size_t begin = at + (is_caret ? 3 : is_whole ? 2 : 1);
  const std::size_t end = text.substr(0, begin + 16).find_first_not_of(parameters, begin);
  if (end == std::string_view::npos) return at;
  const bool is_final = is_whole ? text[end] >= '@' && text[end] <= '~' : text[end] == 'm';
  return is_final ? end + 1 : at;
}

// Replaces the marks of Markdown tables by spaces: "|", bold and code marks, and rules such as
// "|---|:--|".
void remove_table_marks(std::string& text) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const auto line = std::span(text).subspan(begin, end - begin);
    const bool is_rule = std::ranges::all_of(
        line, [](char c) { return std::string_view(" \t|-:+").find(c) != std::string_view::npos; });
    for (char& c : line)
      if (is_rule || c == '|' || c == '*' || c == '`') c = ' ';
    begin = end + 1;
  }
}

bool is_cell(std::string_view token) { return cell_of(token).has_value(); }

// Splits labels that a header runs together, such as "NIC11NIC12" or "NIC12CPU". A token that
// consists of anything else stays whole.
void unglue(std::string_view token, Tokens& tokens) {
  Tokens labels;
  std::string_view rest = token;
  while (rest.starts_with("GPU") || rest.starts_with("NIC")) {
    const std::size_t end = std::min(rest.find_first_not_of("0123456789", 3), rest.size());
    if (end == 3) break;
    labels.push_back(rest.substr(0, end));
    rest.remove_prefix(end);
  }
  if (rest == "CPU") labels.push_back(rest), rest = {};
  if (labels.size() > 1 && rest.empty())
    tokens.insert(tokens.end(), labels.begin(), labels.end());
  else
    tokens.push_back(token);
}

void read_tails(std::span<const std::string_view> tokens, Header& header) {
  const auto is = [&](std::size_t at, std::string_view word) {
    return at < tokens.size() && tokens[at] == word;
  };
  for (std::size_t at = 0; at < tokens.size(); ++header.tails) {
    const bool is_affinity = is(at + 1, "Affinity");
    if (is_affinity && is(at, "CPU")) header.cpus = header.tails;
    if (is_affinity && is(at, "NUMA")) header.numa = header.tails;
    at += is_affinity ? 2 : is(at + 1, "NUMA") ? 3 : 1;  // the column "GPU NUMA ID" has three words
  }
}

// Returns the next line of `rest` that is not blank.
std::optional<std::string_view> next_full_line(std::string_view rest) {
  auto line = next_line(rest);
  while (line && line->find_first_not_of(" \t") == std::string_view::npos) line = next_line(rest);
  return line;
}

// True if the next line begins with the name of a column, so that it is a row, though maybe a
// damaged one.
bool is_followed_by_named_row(const Header& header, std::string_view rest) {
  const auto line = next_full_line(rest);
  if (!line || header_of(*line)) return false;
  const Tokens tokens = split(*line);
  return std::ranges::find(header.devices, tokens[0]) != header.devices.end();
}

// True if the next line of `rest` is the first row of a `topo -m` matrix. Checks the cells, because
// other commands print matrices with the same header (`topo -p2p`).
bool is_followed_by_row(const Header& header, std::string_view rest) {
  const auto line = next_full_line(rest);
  if (!line || line->size() > longest_line) return false;
  const Tokens tokens = split(*line);
  if (tokens.size() <= header.devices.size() || tokens[0] != header.devices[0]) return false;
  return std::ranges::all_of(std::span(tokens).subspan(1, header.devices.size()), is_cell);
}

}  // namespace

std::string without_marks(std::string_view text) {
  std::string plain(text);
  for (std::size_t i = 0; i < plain.size();) {
    const std::size_t end = after_escape(text, i);
    if (end > i) {
      std::fill(plain.begin() + static_cast<std::ptrdiff_t>(i),
                plain.begin() + static_cast<std::ptrdiff_t>(end), ' ');
      i = end;
      continue;
    }
    const auto byte = static_cast<unsigned char>(plain[i]);
    if ((byte < 0x20 && byte != '\n') || byte == 0x7f) plain[i] = byte == '\t' ? '\t' : ' ';
    ++i;
  }
  remove_table_marks(plain);
  return plain;
}

std::optional<std::string_view> next_line(std::string_view& rest) {
  if (rest.empty()) return std::nullopt;
  const std::size_t end = std::min(rest.find('\n'), rest.size());
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return line;
}

Tokens split(std::string_view line) { return words_of(line, " \t\n"); }

std::optional<int> number_of(std::string_view text, int highest) {
  const auto number = parse_number<int>(text);
  return number && *number >= 0 && *number <= highest ? number : std::nullopt;
}

std::optional<int> gpu_number(std::string_view label) {
  if (!label.starts_with("GPU")) return std::nullopt;
  return number_of(label.substr(3), highest_gpu);
}

std::optional<Cell> cell_of(std::string_view token) {
  struct Word {
    std::string_view word;
    PathLevel level;
  };
  constexpr std::array words{Word{"PIX", PathLevel::pix},   Word{"PSB", PathLevel::pix},
                             Word{"PXB", PathLevel::pxb},   Word{"PHB", PathLevel::phb},
                             Word{"NODE", PathLevel::node}, Word{"SYS", PathLevel::sys},
                             Word{"SOC", PathLevel::sys}};
  Cell cell;
  if (token == "N/A") return cell;
  const auto word = std::ranges::find(words, token, &Word::word);
  if (token == "X") {
    cell.kind = CellKind::self;
  } else if (word != words.end()) {
    cell.kind = CellKind::path;
    cell.level = word->level;
  } else {
    if (!token.starts_with("NV")) return std::nullopt;
    cell.kind = CellKind::links;
    cell.count = static_cast<std::uint16_t>(number_of(token.substr(2), 1000).value_or(0));
    if (cell.count == 0) return std::nullopt;
  }
  return cell;
}

std::optional<Header> header_of(std::string_view text) {
  if (text.size() > longest_line) return std::nullopt;
  Tokens tokens;
  for (const std::string_view token : split(text)) unglue(token, tokens);
  if (tokens.empty() || !gpu_number(tokens[0])) return std::nullopt;
  const auto end = std::ranges::find_if(tokens, [](std::string_view token) {
    return token == "CPU" || token == "NUMA" || token == "GPU";
  });
  Header header;
  header.devices.assign(tokens.begin(), end);
  if (std::ranges::any_of(header.devices, is_cell)) return std::nullopt;
  read_tails({end, tokens.end()}, header);
  return header;
}

// A terminal or a pipe may break the header over several lines. Lines are joined until the next
// line is the first row of the matrix.
std::optional<Header> find_header(std::string_view& rest) {
  // The first line that looks like a header. It may be a line of a log, so a later line that a row
  // of the matrix follows is preferred.
  std::optional<Header> fallback;
  std::string_view after_fallback;
  for (std::size_t i = 0; i < header_lines; ++i) {
    const std::string_view begin = rest;
    const auto line = next_line(rest);
    if (!line) break;
    const auto first = header_of(*line);
    if (!first) continue;
    std::string_view after = rest;
    std::optional<Header> header = first;
    for (std::size_t lines = 1; header && lines <= lines_of_header; ++lines) {
      const std::set<std::string_view> names(header->devices.begin(), header->devices.end());
      if (names.size() == header->devices.size() && is_followed_by_row(*header, after)) {
        rest = after;
        return header;
      }
      const auto more = next_line(after);
      // Columns of devices precede all others, so device names after those begin another header.
      if (!more || (header->tails > 0 && header_of(*more))) break;
      const std::size_t end = static_cast<std::size_t>(more->data() - begin.data()) + more->size();
      header = header_of(begin.substr(0, end));
    }
    if (!first->cpus || fallback) continue;
    if (is_followed_by_named_row(*first, rest)) return first;
    fallback = first;
    after_fallback = rest;
  }
  if (fallback) rest = after_fallback;
  return fallback;
}

}  // namespace atoll_v1::atoll::importers
