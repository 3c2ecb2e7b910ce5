// Tests of reading `rocm-smi --showtopo`, and of files that are taken for one of a machine.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "atoll/tooling/load.hpp"
#include "atoll/topology.hpp"
#include "unit/captured_tree.hpp"
#include "unit/topology/import.hpp"
#include "unit/topology/machines.hpp"

namespace {

using atoll::IslandState;
using atoll::Topology;
using machines::contains;
using machines::gpus_of;
using machines::islands_of;
using topology_test::error_of;
using topology_test::island_sizes;

Topology load(const std::string& text) {
  const machines::CapturedTree folder;
  folder.write("rocm.txt", text);
  return atoll::load_topology(folder.path("rocm.txt"));
}

// Returns a table of 4 GPUs with the cell `near` for pairs inside {0, 1} and {2, 3}, else `far`.
std::string table(const std::string& title, const std::string& near, const std::string& far) {
  std::string text =
      "================ " + title + " ================\n       GPU0  GPU1  GPU2  GPU3\n";
  for (int i = 0; i < 4; ++i) {
    text += fmt::format("GPU{}", i);
    for (int j = 0; j < 4; ++j)
      text += fmt::format("   {}", i == j ? "0" : i / 2 == j / 2 ? near : far);
    text += '\n';
  }
  return text + '\n';
}

const std::string nodes =
    "============== Numa Nodes ==============\n"
    "GPU[0]\t\t: (Topology) Numa Node: 0\nGPU[0]\t\t: (Topology) Numa Affinity: 0\n"
    "GPU[3]\t\t: (Topology) Numa Node: 1\n============ End of ROCm SMI Log ============\n";

const std::string hives = "\n====== ROCm System Management Interface ======\n" +
                          table("Weight between two GPUs", "15", "72") +
                          table("Hops between two GPUs", "1", "3") +
                          table("Link Type between two GPUs", "XGMI", "PCIE") + nodes;

}  // namespace

TEST_CASE("showtopo: hives of xGMI are islands") {
  const Topology read = load(hives);
  CHECK(gpus_of(read) ==
        "rocm/gpu0 - index 0 numa 0 -; rocm/gpu1 - index 1 numa -1 -; "
        "rocm/gpu2 - index 2 numa -1 -; rocm/gpu3 - index 3 numa 1 -; ");
  CHECK(read.hosts[0].numa_nodes == 2);
  CHECK(read.hosts[0].gpu_links == IslandState::known);
  CHECK(read.links.size() == 2);
  CHECK(islands_of(read) == "2 known xgmi - -; 2 known xgmi - -; ");
}

TEST_CASE("showtopo: tables that are indented or quoted, and devices without brackets") {
  const Topology whole = load(hives);
  for (const std::string before : {"    ", "> ", "\t"}) {
    CAPTURE(before);
    std::string text = before;
    for (const char c : hives) text += c == '\n' ? '\n' + before : std::string(1, c);
    for (std::size_t at; (at = text.find("GPU[3]")) != std::string::npos;)
      text.replace(at, 6, "GPU 3");
    const Topology read = load(text);
    CHECK(island_sizes(read) == island_sizes(whole));
    CHECK(read.gpus.at(3).numa == 1);
  }
}

TEST_CASE("showtopo: pairs of several hops have no link of their own") {
  const std::string links = table("Link Type between two GPUs", "XGMI", "XGMI");
  CHECK(load(links).links.size() == 6);
  std::string hops = table("Hops between two GPUs", "1", "2");
  CHECK(load(hops + links).links.size() == 2);
}

TEST_CASE("showtopo: GPUs without xGMI, and pairs that the driver does not know") {
  const Topology pcie = load(table("Link Type between two GPUs", "PCIE", "PCIE"));
  CHECK(pcie.hosts[0].gpu_links == IslandState::none);
  CHECK(island_sizes(pcie) == std::vector<std::size_t>{1, 1, 1, 1});
  const Topology silent = load(table("Link Type between two GPUs", "N/A", "N/A"));
  CHECK(silent.hosts[0].gpu_links == IslandState::unknown);
}

TEST_CASE("showtopo: damage is named") {
  const std::string links = table("Link Type between two GPUs", "XGMI", "PCIE");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = links;
    return text.replace(text.find(from), from.size(), to);
  };
  CHECK(contains(error_of(load, links.substr(0, links.find("GPU3  "))), "lacks the row of GPU3"));
  CHECK(contains(error_of(load, with("GPU1   XGMI", "GPU1   PCIE")),
                 "the cell differs from row GPU0"));
  CHECK(contains(error_of(load, with("0   XGMI   PCIE   PCIE", "0   XGMI   PCIE")),
                 "row GPU0 has 3 cells"));
  CHECK(contains(error_of(load, with("GPU1   XGMI", "GPU7   XGMI")),
                 "no column has the name of the row GPU7"));
  CHECK(contains(error_of(load, links + links), "the table occurs twice"));
  CHECK(contains(error_of(load, table("Link Type between two GPUs", "CXL", "PCIE")),
                 "not XGMI, PCIE or N/A"));
  CHECK(contains(error_of(load, "== Link Type between two GPUs ==\n"), "is missing"));
}

TEST_CASE("load: files that are taken for a description of a machine are named") {
  CHECK(contains(error_of(load, "<graphs version=\"1\">\n<graph id=\"0\"/></graphs>\n"),
                 "NCCL_TOPO_DUMP_FILE"));
  CHECK(contains(error_of(load, "# tree\nSwitchName=s1 Nodes=n[0-3]\n"), "Slurm's topology file"));
  CHECK(contains(error_of(load, "GPU 0: NVIDIA RTX A6000 (UUID: GPU-1)\n\t Link 0: 14.062 GB/s\n"),
                 "nvidia-smi topo -m shows them"));
  CHECK(
      contains(error_of(load, "vendid=0x2c9\nswitchguid=0x1(1)\nSwitch 1 \"S-1\" # \"x\" lid 1\n"),
               "pass it to --fabric"));
  CHECK(contains(error_of(load, "\tNIC0\tNIC1\nNIC0\t X \tSYS\nNIC1\tSYS\t X \n"),
                 "NICs but no GPUs"));
  CHECK(contains(error_of(load, std::string("\xff\xfe<\0s\0", 6)), "UTF-16"));
  CHECK(contains(error_of(load, "neither this nor that"), "not in a format that atoll reads"));
  std::string gpus;
  for (int i = 0; i <= 1024; ++i)
    gpus += fmt::format("{}{{\"id\": \"a/gpu{}\", \"host\": \"a\"}}", i == 0 ? "" : ",", i);
  CHECK(contains(
      error_of(load,
               "{\"schema\": \"atoll-topology-1\", \"hosts\": [{\"id\": \"a\"}], \"gpus\": [" +
                   gpus + "]}"),
      "the host a has more than 1024 GPUs"));
  // A byte order mark of UTF-8 is no fault.
  CHECK(load("\xef\xbb\xbf\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n").links.size() == 1);
}
