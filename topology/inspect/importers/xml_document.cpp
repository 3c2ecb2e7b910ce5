#include "inspect/importers/xml_document.hpp"

#include <fmt/format.h>

#include "inspect/importers/importer.hpp"
#include "parse_number.hpp"

namespace atoll_v1::atoll::importers {
namespace {

constexpr std::size_t most_elements = 2'000'000;
constexpr std::size_t most_attributes = 4'000'000;
constexpr int most_depth = 64;

// Stops the traversal of an XML document at the first element that is nested too deeply.
struct DepthLimit : pugi::xml_tree_walker {
  pugi::xml_node last;
  bool for_each(pugi::xml_node& node) override {
    last = node;
    return depth() <= most_depth;
  }
};

// Throws an error if a text can have more elements or attributes than the limits. This is counted
// before the text is parsed, because each of them takes up to 64 bytes of memory.
void check_size(std::string_view text, std::string_view origin) {
  std::size_t elements = 0, attributes = 0;
  for (std::size_t at = text.find_first_of("<="); at != std::string_view::npos;
       at = text.find_first_of("<=", at + 1)) {
    if (text[at] == '=' && ++attributes > most_attributes)
      fail_at(origin, at, fmt::format("the XML text has more than {} attributes", most_attributes));
    const bool is_end = at + 1 < text.size() && text[at + 1] == '/';
    if (text[at] == '<' && !is_end && ++elements > most_elements)
      fail_at(origin, at, fmt::format("the XML text has more than {} elements", most_elements));
  }
}

// Returns the position after the "<? ... ?>", "<!-- ... -->" or "<! ... >" that begins at `at`;
// npos when its end is missing.
std::size_t skip_markup(std::string_view text, std::size_t at) {
  const bool is_comment = text.substr(at, 4) == "<!--";
  const std::string_view end = is_comment ? "-->" : ">";
  const std::size_t found = text.find(end, at);
  return found == std::string_view::npos ? found : found + end.size();
}

}  // namespace

XmlDocument::XmlDocument(std::string_view text, std::string_view origin) : origin_(origin) {
  if (const auto zero = text.find('\0'); zero != std::string_view::npos)
    fail_at(origin_, zero, "the text contains a zero byte: it is not XML");
  check_size(text, origin_);
  const auto result =
      document_.load_buffer(text.data(), text.size(), pugi::parse_default, pugi::encoding_utf8);
  if (!result)
    fail_at(origin_, static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, result.offset)),
            fmt::format("invalid XML: {}", result.description()));
  // pugixml's traverse() does not recurse, so it can check any depth. After this check, readers of
  // the document can safely recurse.
  DepthLimit limit;
  if (!document_.traverse(limit))
    fail(limit.last.parent(),
         fmt::format("XML elements are nested more than {} levels deep", most_depth));
}

pugi::xml_node XmlDocument::root(std::string_view name) const {
  const pugi::xml_node root = document_.document_element();
  if (root.name() != name) fail(root, fmt::format("the root element is not <{}>", name));
  return root;
}

void XmlDocument::fail(pugi::xml_node node, std::string_view what) const {
  fail_at(origin_, static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, node.offset_debug())),
          what);
}

std::optional<long long> XmlDocument::integer(pugi::xml_node node, const char* attribute) {
  return parse_integer(node.attribute(attribute).value());
}

bool first_element_is(std::string_view text, std::string_view name) {
  text = text.substr(0, std::size_t{64} << 10);
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  std::size_t at = 0;
  while (true) {
    at = text.find_first_not_of(" \t\r\n", at);
    if (at == std::string_view::npos || text[at] != '<') return false;
    const char next = at + 1 < text.size() ? text[at + 1] : '\0';
    if (next != '!' && next != '?') break;
    at = skip_markup(text, at);
    if (at == std::string_view::npos) return false;
  }
  const std::string_view element = text.substr(at + 1);
  if (!element.starts_with(name)) return false;
  const char after = element.size() > name.size() ? element[name.size()] : '\0';
  return std::string_view(" \t\r\n>/").find(after) != std::string_view::npos;
}

}  // namespace atoll_v1::atoll::importers
