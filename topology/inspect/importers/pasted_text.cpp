#include "inspect/importers/pasted_text.hpp"

namespace atoll_v1::atoll::importers {
namespace {

// One past the control sequence at `at`; `at` where none stands there.
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

}  // namespace

std::vector<TextPiece> split_words(const TextPiece& line) {
  constexpr std::string_view blanks = " \t";
  std::vector<TextPiece> words;
  std::size_t at = line.text.find_first_not_of(blanks);
  while (at != std::string_view::npos) {
    const std::size_t end = std::min(line.text.find_first_of(blanks, at), line.text.size());
    words.push_back({line.text.substr(at, end - at), line.offset + at});
    at = line.text.find_first_not_of(blanks, end);
  }
  return words;
}

std::string without_escapes(std::string_view text) {
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
  return plain;
}

}  // namespace atoll_v1::atoll::importers
