// Applies a fabric file to a small machine. The parser reads files by path, so the input is written
// to an anonymous file in memory.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>

#include "atoll/error.hpp"
#include "atoll/tooling/load.hpp"

namespace {

// Returns the machine that the seeds describe: hosts node0 and node1, each with the NICs mlx5_0 and
// mlx5_1.
atoll::Topology two_hosts() {
  atoll::Topology topology;
  for (int host = 0; host < 2; ++host) {
    const std::string name = fmt::format("node{}", host);
    topology.hosts.push_back({.id = name, .name = name});
    for (int number = 0; number < 2; ++number) {
      atoll::TopologyNic& nic = topology.nics.emplace_back();
      nic.name = fmt::format("mlx5_{}", number);
      nic.id = name + '/' + nic.name;
      nic.host = name;
      nic.facts.emplace("node_guid", fmt::format("0000:00aa:0000:00{}{}", host, number));
    }
  }
  return topology;
}

int memory_file() {
  const int file = memfd_create("fabric", 0);
  if (file < 0) std::abort();
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  static const int file = memory_file();
  static const std::string path = fmt::format("/proc/self/fd/{}", file);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  atoll::Topology topology = two_hosts();
  const std::string before = topology.to_json();
  bool is_refused = false;
  try {
    atoll::apply_fabric(path, topology);
  } catch (const atoll::Error&) {
    is_refused = true;
  }
  // A file must either be applied completely or be rejected without any change to the machine. A
  // file that changes nothing must be rejected.
  if (is_refused != (topology.to_json() == before)) std::abort();
  return 0;
}
