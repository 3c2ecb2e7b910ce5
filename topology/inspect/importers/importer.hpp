// Importers make a Topology from a text. An importer is a file in this folder that defines one
// descriptor, which is declared below and listed in inspect/load.cpp.
#pragma once

#include <string>
#include <string_view>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::importers {

// load_topology() uses the first importer that recognises the beginning of a text. read() throws
// Error(bad_data) with `origin`, which is the file's name, and a byte offset. If the text does not
// name its host, the host is called host_of(origin).
struct Importer {
  std::string_view name;
  bool (*recognises)(std::string_view text);
  Topology (*read)(std::string_view text, std::string_view origin);
};

extern const Importer json;             // reads atoll's own JSON form
extern const Importer hwloc_xml;        // reads hwloc's XML, versions 1 to 3
extern const Importer nccl_xml;         // reads topology files of NCCL and RCCL
extern const Importer nvidia_smi_xml;   // reads nvidia-smi -q -x
extern const Importer nvidia_smi_topo;  // reads nvidia-smi topo -m

// Names a host after its file: "node7" for "dumps/node7.xml".
std::string host_of(std::string_view origin);

// Reads a whole file of at most 64 MiB. Error(not_found | io | bad_data) names the file.
std::string read_file(const std::string& path);

// Throws Error(bad_data) with the text "ORIGIN: byte OFFSET: WHAT".
[[noreturn]] void fail_at(std::string_view origin, std::size_t offset, std::string_view what);

}  // namespace atoll_v1::atoll::importers
