// Fuzzes the importer FUZZED_IMPORTER, which CMakeLists.txt sets, and passes every machine that it
// accepts to the functions that inspect and print machines. None of these functions may fail.
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>

#include "atoll/tooling/inspection.hpp"
#include "inspect/importers/importer.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const atoll::importers::Importer& source = atoll::importers::FUZZED_IMPORTER;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  source.recognises(text);
  try {
    const atoll::Topology topology = source.read(text, "fuzz");
    const std::string json = topology.to_json();
    if (atoll::Topology::from_json(json, "own").to_json() != json) std::abort();
    const atoll::Inspection inspection = atoll::inspect(topology);
    std::size_t gpus = 0;
    for (const atoll::Island& island : inspection.islands) gpus += island.gpus.size();
    if (gpus != topology.gpus.size()) std::abort();
    to_tree(inspection);
    to_svg(inspection);
    to_nccl_xml(topology);
  } catch (const atoll::Error&) {
  }
  return 0;
}
