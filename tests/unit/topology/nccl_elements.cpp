// Tests of elements of NCCL topology files: how many there may be, which are noted, RDMA ports and
// partitions.
#include <sys/resource.h>

#include "unit/topology/nccl_files.hpp"

using namespace nccl_files;
using atoll::get_fact;
using atoll::Topology;

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

TEST_CASE("two <gpu> below one <pci> are partitions of one GPU") {
  const std::string links = to_gpu("0000:02:00.0", 4);
  const Topology read = nccl_files::read(
      one_cpu(pci("0000:01:00.0", "0x030200",
                  "<gpu dev=\"0\" sm=\"90\"/><gpu dev=\"1\" sm=\"90\">" + links + "</gpu>") +
              gpu("0000:02:00.0", 2, to_gpu("0000:01:00.0", 4))));
  REQUIRE(read.gpus.size() == 2);
  CHECK(read.gpus[0].partitions == std::vector<std::string>{"dev0", "dev1"});
  CHECK(read.gpus[1].partitions.empty());
  CHECK(sizes(read) == std::vector<std::size_t>{2});
  CHECK(read.conflicts.empty());
  CHECK(get_fact(read.hosts[0].facts, "note.nccl xml").empty());
}

TEST_CASE("elements that are not read are noted") {
  const Topology read = nccl_files::read(
      one_cpu(gpu("0000:01:00.0", 0, "<c2c bw=\"1\" count=\"2\"/>") + "<gpu dev=\"1\"/>"));
  CHECK(read.gpus.size() == 1);
  CHECK(get_fact(read.hosts[0].facts, "note.nccl xml") ==
        "the file has elements that are not read: 1 <c2c> in <gpu> and 1 <gpu> in <cpu>");
}

TEST_CASE("an RDMA port without a PCI class is known by its GUID, or by udev's name and its port") {
  const Topology read = nccl_files::read(one_cpu(
      net("name=\"ibp1s0\" port=\"1\" guid=\"0x9a70500003ae6d94\" gdr=\"1\"") +
      net("name=\"roceP2p1s0f1\" port=\"1\"") + net("name=\"ibp3s0\" port=\"0\" guid=\"0x0\"") +
      net("name=\"ib7\" port=\"1\" guid=\"0x9a70500003ae6d95\"")));
  REQUIRE(read.nics.size() == 4);
  CHECK(read.nics[0].layer == "infiniband");
  CHECK(read.nics[1].layer == "ethernet");
  CHECK(read.nics[2].layer.empty());  // IP over InfiniBand, through sockets
  CHECK(get_fact(read.nics[2].facts, atoll::fact::rdma).empty());
  CHECK(read.nics[3].layer.empty());
  CHECK(get_fact(read.nics[3].facts, atoll::fact::rdma) == "yes");
}
