#include "topology_source.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  return atoll_fuzz::read_topology(atoll::importers::rocm_smi_topo, data, size);
}
