// Tests of elements of NCCL topology files: how many there may be, which are noted, and how RDMA ports
// and partitions are told.
#include <sys/resource.h>

#include "unit/topology_nccl_files.hpp"

using namespace nccl_files;

TEST_CASE("a file of small elements or attributes is refused before it takes memory") {
  const auto peak_mib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss >> 10;
  };
  const auto repeated = [](std::string_view part) {
    std::string text = "<system version=\"1\"";
    text.reserve(std::size_t{48} << 20);
    while (text.size() + part.size() < std::size_t{48} << 20) text += part;
    return text;
  };
  for (const auto& [part, what] : {std::pair("><a/", "more than 2000000 elements"),
                                   std::pair(" b=''", "more than 4000000 attributes")}) {
    const std::string text = repeated(part);
    const auto before = peak_mib();
    std::string error;
    try {
      read(text);
    } catch (const atoll::Error& caught) {
      error = caught.what();
    }
    CHECK(error.find(what) != std::string::npos);
    CHECK(peak_mib() - before < 128);
  }
}
