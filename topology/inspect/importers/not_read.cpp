// Recognises files that people mistake for a description of a machine or a fabric. The error can
// then name the kind of file, and the command whose output atoll reads.
#include <array>

#include "inspect/importers/device_matrix.hpp"
#include "inspect/importers/importer.hpp"
#include "inspect/importers/xml_document.hpp"
#include "parse_number.hpp"

namespace atoll_v1::atoll::importers {
namespace {

// True if a line in the first 64 KiB begins with one of these prefixes, after blanks.
bool has_line(std::string_view text, std::initializer_list<std::string_view> prefixes) {
  std::string_view rest = text.substr(0, std::size_t{64} << 10);
  while (const auto line = next_line(rest))
    if (starts_with_any(trimmed(*line), prefixes)) return true;
  return false;
}

bool is_nccl_graph(std::string_view text) { return first_element_is(text, "graphs"); }

bool is_slurm(std::string_view text) {
  return has_line(text, {"SwitchName=", "BlockName="}) ||
         (has_line(text, {"- topology:"}) &&
          has_line(text, {"- switch:", "- block:", "block_sizes:"}));
}

bool is_nvlink_status(std::string_view text) {
  return has_line(text, {"GPU 0: "}) && has_line(text, {"Link 0: ", "NVML: "});
}

bool is_matrix_of_nics(std::string_view text) {
  return has_line(text, {"NIC0 ", "NIC0\t"}) && !has_line(text, {"GPU"});
}

// The lines of `ibnetdiscover -p`: "SW 13 1 0xb8599f0300fc6de4 4x EDR - CA ...".
bool is_port_list(std::string_view text) {
  std::string_view rest = text.substr(0, std::size_t{64} << 10);
  while (const auto line = next_line(rest)) {
    const Tokens words = split(*line);
    if (words.size() > 4 && (words[0] == "CA" || words[0] == "SW" || words[0] == "RT") &&
        words[3].starts_with("0x"))
      return true;
  }
  return false;
}

}  // namespace

bool is_fabric(std::string_view text) { return has_line(text, {"switchguid=", "caguid="}); }

std::string_view why_not_read(std::string_view text) {
  struct Kind {
    bool (*is)(std::string_view text);
    std::string_view advice;
  };
  constexpr std::array kinds{
      Kind{is_nccl_graph,
           "this is NCCL's graph (NCCL_GRAPH_DUMP_FILE), which has rings and trees but not the "
           "machine: NCCL_TOPO_DUMP_FILE=FILE writes the topology"},
      Kind{is_slurm,
           "this is Slurm's topology file, which atoll does not read: --fabric reads the output of "
           "ibnetdiscover, or JSON with the schema \"atoll-fabric-1\""},
      Kind{is_nvlink_status,
           "this is the output of nvidia-smi nvlink -s, which does not show the ends of the links: "
           "nvidia-smi topo -m shows them"},
      Kind{is_matrix_of_nics,
           "this matrix has NICs but no GPUs: pass the whole output of nvidia-smi topo -m, which "
           "begins with the row of GPU0"},
      Kind{is_port_list,
           "this is the list of ports that ibnetdiscover -p prints: run ibnetdiscover without -p, "
           "and pass its output to --fabric"},
  };
  for (const Kind& kind : kinds)
    if (kind.is(text)) return kind.advice;
  return {};
}

}  // namespace atoll_v1::atoll::importers
