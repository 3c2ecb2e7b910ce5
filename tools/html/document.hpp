// The page on which programs show what they measured or predicted.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace html {

// Returns report.html with this data: one document that needs no other file and no network. `data`
// has "kind", which selects the page, "title", and the members that the functions of report.html
// read for this kind. Text in `data` may be hostile; invalid UTF-8 is replaced.
std::string document(const nlohmann::json& data);

}  // namespace html
