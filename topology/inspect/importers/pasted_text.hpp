// Text that people copied out of a terminal: lines and words that know where they stand.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace atoll_v1::atoll::importers {

struct TextPiece {
  std::string_view text;
  std::size_t offset = 0;  // in the whole text
};

// The lines of a text, one after the other.
class TextLines {
 public:
  explicit TextLines(std::string_view text) : text_(text) {}
  std::optional<TextPiece> next() {
    if (at_ >= text_.size()) return std::nullopt;
    const std::size_t end = std::min(text_.find('\n', at_), text_.size());
    const TextPiece line{text_.substr(at_, end - at_), at_};
    at_ = end + 1;
    return line;
  }
  std::size_t offset() const { return std::min(at_, text_.size()); }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

// The words between blanks and tabs.
std::vector<TextPiece> split_words(const TextPiece& line);

// Control sequences (ECMA-48) and control characters become blanks, so that offsets stay. Of
// "ESC[4m" some pastes leave "[4m" or "^[[4m".
std::string without_escapes(std::string_view text);

}  // namespace atoll_v1::atoll::importers
