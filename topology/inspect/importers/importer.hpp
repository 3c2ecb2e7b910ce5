// Importers make a Topology from a text. Each importer is a file in this folder that defines an
// `Importer`. The importers are declared below and listed in inspect/load.cpp, which also defines
// the importer of atoll's own JSON form.
#pragma once

#include <string>
#include <string_view>

#include "atoll/topology.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll::importers {

// load_topology() calls read() of the first importer that recognises a text. For invalid text,
// read() throws Error(bad_data) with `origin`, the name of the file, and a byte offset. If the text
// does not contain the host's name, the host is called host_of(origin).
struct Importer {
  std::string_view name;
  bool (*recognises)(std::string_view text);
  Topology (*read)(std::string_view text, std::string_view origin);
};

extern const Importer json;             // importer of atoll's own JSON form
extern const Importer hwloc_xml;        // importer of hwloc's XML, versions 1 to 3
extern const Importer nccl_xml;         // importer of topology files of NCCL and RCCL
extern const Importer nvidia_smi_xml;   // importer of the output of nvidia-smi -q -x
extern const Importer nvidia_smi_topo;  // importer of the output of nvidia-smi topo -m
extern const Importer rocm_smi_topo;    // importer of the output of rocm-smi --showtopo

// For a text that no importer reads, returns what it is and what to use instead; "" for unknown
// texts.
std::string_view why_not_read(std::string_view text);
// True for the output of ibnetdiscover, which describes a fabric.
bool is_fabric(std::string_view text);

// Returns a host name made from a file name: "node7" for "dumps/node7.xml".
std::string host_of(std::string_view origin);

// Reads a whole file, without a UTF-8 byte order mark. Throws Error(not_found | io), or
// Error(bad_data) for a file of more than 64 MiB and for UTF-16; the text names the file.
std::string read_file(const std::string& path);

}  // namespace atoll_v1::atoll::importers
