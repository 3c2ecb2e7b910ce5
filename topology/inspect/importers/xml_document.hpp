// XML from a stranger: parsed within limits, and complaints name the byte where an element stands.
#pragma once

#include <cstddef>
#include <optional>
#include <pugixml.hpp>
#include <string>
#include <string_view>

#include "atoll/error.hpp"

namespace atoll_v1::atoll::importers {

struct XmlLimits {
  std::size_t nodes = 2'000'000;
  std::size_t depth = 64;
};

class XmlDocument {
 public:
  // Entities are not expanded and external parts not read. Throws Error(bad_data) that names
  // `origin` and a byte offset.
  XmlDocument(std::string_view text, std::string_view origin, XmlLimits limits = {});

  // The document's element; throws unless it is called `name`.
  pugi::xml_node root(std::string_view name) const;
  [[noreturn]] void fail(pugi::xml_node node, std::string_view what) const;

  // An attribute as an integer (0x... is hexadecimal); empty when absent or not a number in range.
  static std::optional<long long> integer(pugi::xml_node node, const char* attribute);

 private:
  pugi::xml_document document_;
  std::string origin_;
};

// Whether an XML text's first element is `name`; comments, declarations and white space may stand
// before it. Looks at the first 64 KiB.
bool first_element_is(std::string_view text, std::string_view name);

}  // namespace atoll_v1::atoll::importers
