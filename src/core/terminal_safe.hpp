// Makes untrusted text safe for a terminal, and checks users' text before it is stored.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// Returns the text with escapes, such as \x1b, in place of the bytes that a terminal could obey or
// that would hide other text: control characters of ASCII and of Unicode (U+0080 to U+009F), the
// marks that change the direction of text, line separators, and bytes that are not UTF-8.
std::string terminal_safe(std::string_view text);

// Returns the text in one line: each run of white space becomes one space, white space at
// both ends is left out, and other characters become those of terminal_safe().
std::string one_line(std::string_view text);

// Returns the byte at which the text stops being valid UTF-8 (no surrogates, no overlong forms), or
// nothing. JSON cannot hold other text.
std::optional<std::size_t> invalid_utf8(std::string_view text) noexcept;

}  // namespace atoll_v1::atoll
