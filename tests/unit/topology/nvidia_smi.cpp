// Tests of reading the matrix that `nvidia-smi topo -m` prints. nvidia_smi_log.cpp tests
// `nvidia-smi -q -x`.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstring>
#include <string>
#include <vector>

#include "atoll/topology.hpp"
#include "facts.hpp"
#include "inspect/importers/importer.hpp"
#include "unit/topology/import.hpp"
#include "unit/topology/machines.hpp"

namespace {

using atoll::get_fact;
using atoll::IslandState;
using atoll::Topology;
using machines::contains;
using machines::gpus_of;
using machines::islands_of;
using machines::links_of;
using topology_test::error_of;
using topology_test::island_sizes;
namespace importers = atoll::importers;

Topology read_topo(const std::string& text) {
  return importers::nvidia_smi_topo.read(text, "dir/node7.txt");
}

std::string at_byte(const std::string& text, const std::string& what, std::size_t past = 0) {
  return fmt::format("dir/node7.txt: byte {}: ", text.find(what) + past);
}

// Returns a matrix with the same cell for every pair of GPUs.
std::string uniform(int gpus, const std::string& cell) {
  std::string text;
  for (int i = 0; i < gpus; ++i) text += fmt::format("\tGPU{}", i);
  text += "\tCPU Affinity\tNUMA Affinity\n";
  for (int i = 0; i < gpus; ++i) {
    text += fmt::format("GPU{}", i);
    for (int j = 0; j < gpus; ++j) text += '\t' + (i == j ? std::string(" X ") : cell);
    text += "\t0-7\t0\n";
  }
  return text;
}

const std::string pairs =
    "        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    CPU Affinity    NUMA Affinity   GPU "
    "NUMA ID\n"
    "GPU0     X      NV4     SYS     NODE    PIX     SYS     0-3,8-11        0               N/A\n"
    "GPU1    NV4      X      SYS     SYS     PXB     SYS     0-3,8-11        0               N/A\n"
    "GPU2    SYS     SYS      X      NV4     SYS     PHB     4-7,12-15       1               N/A\n"
    "GPU3    NODE    SYS     NV4      X      SYS     PIX     4-7,12-15       1               N/A\n"
    "NIC0    PIX     PXB     SYS     SYS      X      SYS\n"
    "NIC1    SYS     SYS     PHB     PIX     SYS      X\n"
    "\n"
    "Legend:\n"
    "\n"
    "  X    = Self\n"
    "  NV#  = Connection traversing a bonded set of # NVLinks\n"
    "\n"
    "NIC Legend:\n"
    "\n"
    "  NIC0: mlx5_0\n"
    "  NIC1: mlx5_bond_0\n";

const atoll::TopologyPath* path_between(const Topology& topology, const std::string& a,
                                        const std::string& b) {
  for (const auto& path : topology.paths)
    if ((path.a == a && path.b == b) || (path.a == b && path.b == a)) return &path;
  return nullptr;
}

}  // namespace

TEST_CASE("topo -m: devices, their NUMA nodes, and the host") {
  const Topology read = read_topo(pairs);
  REQUIRE(read.hosts.size() == 1);
  CHECK(read.hosts[0].name == "node7");
  CHECK(read.hosts[0].threads == 16);
  CHECK(read.hosts[0].numa_nodes == 2);
  CHECK(gpus_of(read) ==
        "node7/gpu0 - index 0 numa 0 -; node7/gpu1 - index 1 numa 0 -; "
        "node7/gpu2 - index 2 numa 1 -; node7/gpu3 - index 3 numa 1 -; ");
  REQUIRE(topology_test::nics_of(read) == "node7/mlx5_0 - - - -\nnode7/mlx5_bond_0 - - - -\n");
  CHECK(read.nics[0].numa == -1);
}

TEST_CASE("topo -m: a set of links belongs to its pair on a board without switches") {
  const Topology read = read_topo(pairs);
  CHECK(read.hosts[0].gpu_links == IslandState::known);
  CHECK(links_of(read) ==
        "node7/gpu0 - node7/gpu1 nvlink 4 -; node7/gpu2 - node7/gpu3 nvlink 4 -; ");
  CHECK(island_sizes(read) == std::vector<std::size_t>{2, 2});
}

TEST_CASE("topo -m: every pair without links has a path") {
  const Topology read = read_topo(pairs);
  CHECK(read.paths.size() == 15 - 2);
  REQUIRE(path_between(read, "node7/gpu0", "node7/mlx5_0"));
  CHECK(path_between(read, "node7/gpu0", "node7/mlx5_0")->level == atoll::PathLevel::pix);
  CHECK(path_between(read, "node7/gpu1", "node7/mlx5_0")->level == atoll::PathLevel::pxb);
  CHECK(path_between(read, "node7/gpu2", "node7/mlx5_bond_0")->level == atoll::PathLevel::phb);
  CHECK(path_between(read, "node7/gpu0", "node7/gpu3")->level == atoll::PathLevel::node);
  CHECK(path_between(read, "node7/mlx5_0", "node7/mlx5_bond_0")->level == atoll::PathLevel::sys);
  CHECK(path_between(read, "node7/gpu0", "node7/gpu1") == nullptr);
}

TEST_CASE("topo -m: a row with more links than a GPU has is that of a switch") {
  struct {
    int gpus;
    const char* cell;
    bool is_switched;
  } const machines[] = {{4, "NV18", true}, {8, "NV12", true},  {16, "NV6", true},
                        {4, "NV12", true}, {2, "NV18", true},  {4, "NV6", false},
                        {4, "NV4", false}, {2, "NV12", false}, {2, "NV4", false}};
  for (const auto& machine : machines) {
    CAPTURE(machine.gpus);
    CAPTURE(machine.cell);
    const Topology read = read_topo(uniform(machine.gpus, machine.cell));
    const auto gpus = static_cast<std::size_t>(machine.gpus);
    REQUIRE(read.links.size() == (machine.is_switched ? gpus : gpus * (gpus - 1) / 2));
    for (const auto& link : read.links) {
      CHECK((link.b == "node7/nvswitch0") == machine.is_switched);
      CHECK(link.count == std::stoi(std::string(machine.cell).substr(2)));
    }
    CHECK(island_sizes(read) == std::vector{gpus});
    CHECK(read.paths.empty());
  }
}

TEST_CASE("topo -m: two sets of GPUs on switches that do not meet stay two islands") {
  std::string text = "\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tCPU Affinity\n";
  for (int i = 0; i < 6; ++i) {
    text += fmt::format("GPU{}", i);
    for (int j = 0; j < 6; ++j) text += i == j ? "\tX" : i / 3 == j / 3 ? "\tNV12" : "\tSYS";
    text += "\t0-7\n";
  }
  const Topology read = read_topo(text);
  CHECK(read.links.size() == 6);
  CHECK(island_sizes(read) == std::vector<std::size_t>{3, 3});
}

TEST_CASE("topo -m: what it says about links when it shows none") {
  const Topology alone = read_topo(uniform(3, "PHB"));
  CHECK(alone.hosts[0].gpu_links == IslandState::none);
  CHECK(island_sizes(alone) == std::vector<std::size_t>{1, 1, 1});
  CHECK(islands_of(read_topo(uniform(1, ""))) == "1 unknown - - -; ");  // it has no peer
  CHECK(islands_of(read_topo(uniform(2, "N/A"))) == "2 unknown - - -; ");
  CHECK(read_topo(uniform(2, "N/A")).paths.empty());
}

TEST_CASE("topo -m: terminal escapes, whole or as a paste leaves them") {
  for (const auto& [begin, end] : {std::pair("\x1b[4m", "\x1b[0m"), std::pair("[4m", "[0m"),
                                   std::pair("^[[4m", "^[[0m"), std::pair("\x1b[1;4m", "\x1b[K")}) {
    CAPTURE(begin);
    const std::string text = std::string(begin) + "\tGPU0\tGPU1\tCPU Affinity" + end +
                             "\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\r\n";
    CHECK(importers::nvidia_smi_topo.recognises(text));
    const Topology read = read_topo(text);
    CHECK(read.gpus.size() == 2);
    CHECK(read.hosts[0].host_threads == 8);
    const std::string damaged = text.substr(0, text.rfind("NV4")) + "NVX\t X\n";
    CHECK(error_of(read_topo, damaged).starts_with(at_byte(damaged, "NVX")));
  }
}

TEST_CASE("topo -m: older drivers name NICs in the header and have other words") {
  const std::string text =
      "\tGPU0\tGPU1\tmlx5_0\thfi1_0\tCPU Affinity\n"
      "GPU0\t X \tPSB\tSOC\tPHB\t0-3\n"
      "GPU1\tPSB\t X \tSOC\tPHB\t4-7\n"
      "mlx5_0\tSOC\tSOC\t X \tSOC\t\n"
      "hfi1_0\tPHB\tPHB\tSOC\t X \t\n";
  const Topology read = read_topo(text);
  REQUIRE(read.nics.size() == 2);
  CHECK(read.nics[0].id == "node7/mlx5_0");
  CHECK(read.nics[1].name == "hfi1_0");
  CHECK(path_between(read, "node7/gpu0", "node7/gpu1")->level == atoll::PathLevel::pix);
  CHECK(path_between(read, "node7/gpu0", "node7/mlx5_0")->level == atoll::PathLevel::sys);
  CHECK(read.hosts[0].host_threads == 8);
  CHECK(read.hosts[0].numa_nodes == 0);
}

TEST_CASE("topo -m: the legend names NICs without its heading as well") {
  std::string pasted = pairs;
  pasted.erase(pasted.find("NIC Legend:"), std::string("NIC Legend:\n").size());
  const Topology read = read_topo(pasted);
  CHECK(topology_test::nics_of(read) == topology_test::nics_of(read_topo(pairs)));
  CHECK(read.nics[1].name == "mlx5_bond_0");
  // Older drivers name the NICs in the header of the matrix. A line that begins with such a name is
  // not part of a legend.
  std::string old = pasted;
  for (auto at = old.find("NIC1  "); at != std::string::npos; at = old.find("NIC1  ", at))
    old.replace(at, 6, "mlx5_7");
  CHECK(read_topo(old + "mlx5_7: active\n").nics[1].name == "mlx5_7");
}

TEST_CASE("topo -m: a NIC without a legend keeps its number as name") {
  const Topology read = read_topo(pairs.substr(0, pairs.find("NIC Legend:")));
  CHECK(read.nics[0].id == "node7/NIC0");
  CHECK(read.nics[0].name == "NIC0");
}

TEST_CASE("topo -m: a GPU is near one NUMA node only where the file says so") {
  const auto numa_of = [](const std::string& tail) {
    const Topology read =
        read_topo("\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU3\t X \t" + tail + "\n");
    CHECK(read.gpus[0].index == 3);
    CHECK(read.gpus[0].id == "node7/gpu3");
    return read.gpus[0].numa;
  };
  CHECK(numa_of("0-15\t1\t\tN/A") == 1);
  // The last column is the NUMA node of the GPU's own memory and is ignored.
  CHECK(numa_of("0-15\t1\t\t2") == 1);
  CHECK(numa_of("0-15\t0-1\t\tN/A") == -1);
  CHECK(numa_of("0-15\tN/A\t\tN/A") == -1);
  CHECK(numa_of("0-15\t-1\t\tN/A") == -1);
  // No column can be identified as the NUMA node, as in the output under WSL.
  CHECK(numa_of("\t\t\t\tN/A") == -1);
  CHECK(numa_of("") == -1);
}

TEST_CASE("topo -m: the matrix is found in a log, and other matrices are not it") {
  const std::string p2p =
      "$ nvidia-smi topo -p2p r\n\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n\nX = Self\n";
  const std::string log_text = "NVIDIA H100: GPU0 is fine\n" + p2p + "## topo -m\n\n" + pairs;
  CHECK(importers::nvidia_smi_topo.recognises(log_text));
  CHECK(read_topo(log_text).links.size() == 2);
  CHECK(read_topo(pairs + p2p).nics[1].name == "mlx5_bond_0");
  CHECK_FALSE(importers::nvidia_smi_topo.recognises(p2p));
  CHECK_FALSE(importers::nvidia_smi_topo.recognises(std::string(300, '\n') + pairs));
  const std::string bare = "\tGPU0\tGPU1\n\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n";
  CHECK(importers::nvidia_smi_topo.recognises(bare));
  CHECK(read_topo(bare).links.size() == 1);
  CHECK(read_topo("GPU0 pinned by CPU Affinity 0-15\n" + pairs).links.size() == 2);
}

TEST_CASE("topo -m: other texts are not recognised") {
  for (const char* text :
       {"", "\n\n", "{\"schema\": \"atoll-topology-1\"}", "<system version=\"1\"/>",
        "GPU0 X NV4\nGPU1 NV4 X\n", "GPU0: NVIDIA H100\n", "GPU\tCPU Affinity\n", "\x7f\x45LF\x01"})
    CHECK_FALSE(importers::nvidia_smi_topo.recognises(text));
}

namespace {

std::string note_of(const Topology& topology) {
  return std::string(get_fact(topology.hosts[0].facts, "note.nvidia-smi topo -m"));
}

// The rows of two GPUs and four NICs whose names udev has set. GPU1 is near the last NIC only.
const std::string udev_rows =
    "GPU0\t X \tNV18\tNODE\tNODE\tNODE\tSYS\t0-71\t0,2-17\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\tSYS\tSYS\tNODE\t72-143\t1,18-33\t\tN/A\n"
    "ibp3s0\tNODE\tSYS\t X \tNODE\tNODE\tSYS\n"
    "ibP2p3s0\tNODE\tSYS\tNODE\t X \tNODE\tSYS\n"
    "roceP6p3s0\tNODE\tSYS\tNODE\tNODE\t X \tSYS\n"
    "ib7\tSYS\tNODE\tSYS\tSYS\tSYS\t X \n";
const std::string udev_tail = "ib7\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n";
const std::string udev = "\tGPU0\tGPU1\tibp3s0\tibP2p3s0\troceP6p3s0\t" + udev_tail + udev_rows;

}  // namespace

TEST_CASE("topo -m: every NIC is an RDMA device, and udev's names show the link layer") {
  const Topology read = read_topo(udev);
  std::vector<std::string> layers;
  for (const auto& nic : read.nics) layers.push_back(nic.layer);
  CHECK(layers == std::vector<std::string>{"infiniband", "infiniband", "ethernet", ""});
  const auto affinity = find_affinity(read);
  CHECK(affinity[0].use == std::vector<std::string>{"node7/ibP2p3s0"});
  CHECK(affinity[0].why.ends_with(
      "; roceP6p3s0 is as near as a chosen NIC or nearer, but of another fabric"));
  CHECK(affinity[1].why.ends_with(
      "; ib7 is as near as a chosen NIC or nearer, but of unknown fabric"));
  // IP over InfiniBand may have such a name too, but the driver lists RDMA devices only.
  Topology alone = read;
  std::erase_if(alone.nics, [](const auto& nic) { return nic.name != "ib7"; });
  CHECK(get_fact(alone.nics[0].facts, "rdma") == "yes");
  CHECK(find_affinity(alone)[1].use == std::vector<std::string>{"node7/ib7"});
}

TEST_CASE("topo -m: labels that run together are split") {
  std::string glued = pairs;
  glued.replace(glued.find("NIC0    NIC1    CPU"), 19, "NIC0NIC1        CPU");
  CHECK(read_topo(glued).to_json() == read_topo(pairs).to_json());
  glued.replace(glued.find("NIC0NIC1        CPU"), 19, "NIC0      NIC1CPU  ");
  CHECK(read_topo(glued).to_json() == read_topo(pairs).to_json());
}

TEST_CASE("topo -m: a header that is broken over lines is joined") {
  const std::string whole = read_topo(udev).to_json();
  for (const char* begin : {"Note: GPU0 detected\n\tGPU0\nGPU1\tibp3s0\tibP2p3s0\troceP6p3s0\t",
                            "GPU0\tGPU1\tibp3s0\t\n\nibP2p3s0\troceP6p3s0\n",
                            "GPU0 is fine\nGPU0\tGPU1\tibp3s0\tibP2p3s0\n   \troceP6p3s0\t"}) {
    CAPTURE(begin);
    CHECK(importers::nvidia_smi_topo.recognises(begin + udev_tail + udev_rows));
    CHECK(read_topo(begin + udev_tail + udev_rows).to_json() == whole);
  }
  std::string tail = udev;
  tail.replace(tail.find("GPU NUMA ID"), 11, "GPU\nNUMA ID");
  CHECK(read_topo(tail).to_json() == whole);
}

TEST_CASE("topo -m: Markdown tables, with and without the rows of the NICs") {
  const std::string gpus =
      "| | GPU0 | GPU1 | NIC0 | NIC1 |\n|---|:--:|---|---|---|\n"
      "| **GPU0** | X | NV18 | PIX | SYS |\n| GPU1 | NV18 | X | SYS | `PIX` |\n";
  const Topology read = read_topo(gpus);
  CHECK(read.gpus.size() == 2);
  CHECK(read.nics.size() == 2);
  CHECK(path_between(read, "node7/gpu1", "node7/NIC1")->level == atoll::PathLevel::pix);
  CHECK(path_between(read, "node7/NIC0", "node7/NIC1") == nullptr);
  CHECK(note_of(read) ==
        "the matrix lacks the rows of NIC0 and NIC1, so the distances between NICs are unknown");
  const Topology whole = read_topo(gpus +
                                   "| NIC0 | PIX | SYS | X | NODE |\n"
                                   "| NIC1 | SYS | PIX | NODE | X |\n");
  CHECK(path_between(whole, "node7/NIC0", "node7/NIC1")->level == atoll::PathLevel::node);
  CHECK(note_of(whole).empty());
  CHECK(error_of(read_topo, gpus.substr(0, gpus.find("| GPU1 | NV18")))
            .ends_with(
                "the matrix has 1 rows, but 4 columns: it lacks the rows of GPU1, NIC0 and NIC1"));
}

TEST_CASE("topo -m: a second matrix is not read, and noted") {
  CHECK(note_of(read_topo(pairs)).empty());
  const std::string text = pairs + "# node8\n" + pairs;
  const Topology read = read_topo(text);
  CHECK(read.gpus.size() == 4);
  CHECK(read.nics[1].name == "mlx5_bond_0");
  CHECK(note_of(read).starts_with("the text has a second matrix, from byte "));
}

// The fuzzer nvidia_smi_topo covers other damage.
TEST_CASE("topo -m: damage is named with its byte") {
  const auto with = [](const char* from, const char* to) {
    std::string text = pairs;
    return text.replace(text.find(from), std::strlen(from), to);
  };
  const auto says = [](const std::string& text, const std::string& what) {
    const std::string error = error_of(read_topo, text);
    CHECK_MESSAGE(error.find(what) != std::string::npos, error);
  };
  std::string text = with("SYS     PHB     PIX     SYS      X\n", "SYS     PHB\n");
  says(text, at_byte(text, "PHB\n\n", 3) + "row NIC1 has no cell for GPU3");
  text = with("NV4", "NV0");
  says(text, at_byte(text, "NV0") + "row GPU0, column GPU1");
  says(text + pairs, "row GPU0, column GPU1");  // even if another matrix follows
  says(with("NV4", "NV99999"), "row GPU0, column GPU1");
  says(with("PIX     SYS     0-3", "0-3,8-11    0"),
       "row GPU0, column NIC0: this is not a cell of nvidia-smi topo -m");
  says(with("GPU1    NV4 ", "GPU1    NV2 "),
       "row GPU1, column GPU0: the cell differs from row GPU0, column GPU1");
  says(with("NIC1    SYS", "mlx5_7  SYS"), "no column has the name of the row mlx5_7");
  says(with("NIC0    PIX", "WARNING: slow\nNIC0    PIX"),
       "the line \"WARNING: slow\" is no row, but the row NIC0 follows: remove the line, or join");
  says(with("NIC1: mlx5_bond_0", "NIC1: mlx5_0"), "two devices are called mlx5_0");
  says(with("PIX", "NV1"), "a NIC has no NVLinks");
  says(with("GPU2    GPU3", "GPU2    GPU2"), "two columns are called GPU2");
  says(with("\nGPU1 ", "\nGPU0 "), "two rows are called GPU0");
  says(with("mlx5_bond_0", "mlx5/0"), "not the name of a device");
  says(pairs.substr(0, pairs.find("NIC1    SYS")),
       "the matrix has 5 rows, but 6 columns: it lacks the row of NIC1");
}

TEST_CASE("topo -m: sizes are bounded") {
  std::string header;
  for (int i = 0; i < 1025; ++i) header += fmt::format(" GPU{}", i);
  CHECK(contains(error_of(read_topo, header + " CPU Affinity\n"), "more than 1024 devices"));
  const std::string wide =
      "\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\t" + std::string(70'000, ' ') + "NV4\n";
  CHECK(contains(error_of(read_topo, wide), "the line is longer than 65536 bytes"));
  const std::string cpus = "\tGPU0\tCPU Affinity\nGPU0\tX\t0-9,5-9,5-9\n";
  // Ranges that overlap are not accepted as a list of CPUs.
  CHECK(read_topo(cpus).hosts[0].host_threads == 0);
}
