// atoll's own JSON, as `atoll-topo --format json` writes it. The schema is in topology/README.md.
#include "sources/source.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

bool recognises(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  return begin != std::string_view::npos && text[begin] == '{';
}

}  // namespace

const TextSource json{"json", recognises, Topology::from_json};

}  // namespace atoll_v1::atoll::topology_sources
