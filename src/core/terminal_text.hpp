// Text of untrusted files, made safe for a terminal.
#pragma once

#include <string>
#include <string_view>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// Returns the text with escapes, such as \x1b, in place of the bytes that a terminal could obey or
// that would hide other text: control characters of ASCII and of Unicode (U+0080 to U+009F), the
// marks that change the direction of text, and line separators. Other bytes stay as they are.
std::string terminal_text(std::string_view text);

}  // namespace atoll_v1::atoll
