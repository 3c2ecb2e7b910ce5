// Imports topologies in atoll's own JSON form. The parser is in json/read.cpp.
#include "inspect/importers/importer.hpp"

namespace atoll_v1::atoll::importers {
namespace {

bool recognises(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  return begin != std::string_view::npos && text[begin] == '{';
}

}  // namespace

const Importer json{"atoll json", recognises, Topology::from_json};

}  // namespace atoll_v1::atoll::importers
