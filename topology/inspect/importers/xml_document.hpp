// Parses untrusted XML documents: at most 2,000,000 elements with 4,000,000 attributes, nested at
// most 64 levels deep. Error messages contain the byte offset of the faulty element.
#pragma once

#include <cstddef>
#include <optional>
#include <pugixml.hpp>
#include <string>
#include <string_view>

#include "atoll/error.hpp"

namespace atoll_v1::atoll::importers {

class XmlDocument {
 public:
  // Parses `text` without expanding entities or reading external files. Throws Error(bad_data) with
  // `origin` and a byte offset.
  XmlDocument(std::string_view text, std::string_view origin);

  // Returns the root element. Throws Error(bad_data) unless the element is called `name`.
  pugi::xml_node root(std::string_view name) const;
  [[noreturn]] void fail(pugi::xml_node node, std::string_view what) const;

  // Reads an attribute as a decimal integer, or as a hexadecimal one after "0x". Empty when the
  // attribute is absent or invalid.
  static std::optional<long long> integer(pugi::xml_node node, const char* attribute);

 private:
  pugi::xml_document document_;
  std::string origin_;
};

// True if the first element of an XML text is called `name`. Comments, declarations and white space
// may precede the element. Examines only the first 64 KiB.
bool first_element_is(std::string_view text, std::string_view name);

}  // namespace atoll_v1::atoll::importers
