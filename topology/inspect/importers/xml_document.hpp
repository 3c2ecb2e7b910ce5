// Parses untrusted XML of at most 2,000,000 elements that nest at most 64 deep. Errors name the byte
// offset of the element.
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
  // Does not expand entities or read external files. Error(bad_data) names `origin` and a byte
  // offset.
  XmlDocument(std::string_view text, std::string_view origin);

  // The root element. Throws Error(bad_data) unless it is called `name`.
  pugi::xml_node root(std::string_view name) const;
  [[noreturn]] void fail(pugi::xml_node node, std::string_view what) const;

  // An attribute as a decimal integer, or hexadecimal after "0x"; empty when absent or invalid.
  static std::optional<long long> integer(pugi::xml_node node, const char* attribute);

 private:
  pugi::xml_document document_;
  std::string origin_;
};

// True if the first element of an XML text is `name`, after any comments, declarations and white
// space. Examines only the first 64 KiB.
bool first_element_is(std::string_view text, std::string_view name);

}  // namespace atoll_v1::atoll::importers
