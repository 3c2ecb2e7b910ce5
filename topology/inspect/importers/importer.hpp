// Machines from text. An importer is one file in this folder that defines one descriptor, declared
// below and listed in inspect/load.cpp; nothing else knows it.
#pragma once

#include <string>
#include <string_view>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::importers {

// Reads a text. The first importer that recognises its beginning reads it, and throws Error(bad_data)
// with `origin` (the file's name) and a byte offset when it does not like it. A host without a name
// in the text is called after the file: `host_of(origin)`.
struct Importer {
  std::string_view name;
  bool (*recognises)(std::string_view text);
  Topology (*read)(std::string_view text, std::string_view origin);
};

extern const Importer json;             // atoll's own form
extern const Importer hwloc_xml;        // hwloc 1 and 2
extern const Importer nccl_xml;         // NCCL's and RCCL's topology files
extern const Importer nvidia_smi_xml;   // nvidia-smi -q -x
extern const Importer nvidia_smi_topo;  // nvidia-smi topo -m

// "node7" for "dumps/node7.xml".
std::string host_of(std::string_view origin);

}  // namespace atoll_v1::atoll::importers
