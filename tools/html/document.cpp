#include "html/document.hpp"

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

namespace html {

// The parts of report.html before and after the data, which the build generates.
std::array<std::string_view, 2> template_parts();

std::string document(const nlohmann::json& data) {
  const auto [before, behind] = template_parts();
  std::string page(before);
  for (const char letter : data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) {
    // A '<' could end the element of the data, or begin a comment. JSON has it only in strings.
    if (letter == '<') {
      page += "\\u003c";
    } else {
      page += letter;
    }
  }
  return page.append(behind);
}

}  // namespace html
