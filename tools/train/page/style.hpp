// The style sheet and the script that every page contains.
#pragma once

#include <string>
#include <string_view>

namespace train::page {

// A whole document that needs no other file and no network. `title` is plain text, `body` HTML.
std::string document(std::string_view title, std::string_view body);

}  // namespace train::page
