// Tests of the environment source on temporary folders that replace /sys, /proc and /etc, and of
// discovery on the machine that runs the test.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/stat.h>

#include <chrono>

#include "facts.hpp"
#include "sources/small_file.hpp"
#include "sources/source.hpp"
#include "unit/captured_tree.hpp"
#include "unit/topology/import.hpp"
#include "unit/topology/machines.hpp"

using atoll::get_fact;
using atoll::Island;
using atoll::Topology;
using topology_test::check_facts;
namespace fact = atoll::fact;
namespace sources = atoll::topology_sources;
using machines::CapturedTree;

namespace {

atoll::Facts surroundings(const CapturedTree& tree, const std::vector<std::string>& variables = {},
                          Topology topology = {}) {
  if (topology.hosts.empty()) machines::add_host(topology, "h");
  sources::read_environment(tree.request(), variables, topology);
  return topology.hosts[0].facts;
}

void write_driver(const CapturedTree& tree, std::string_view kind, std::string_view version,
                  std::string_view kernel) {
  tree.write("proc/driver/nvidia/version",
             fmt::format("NVRM version: NVIDIA UNIX {}  {}  Release Build  (builder)  Wed Jan 1\n"
                         "GCC version:  gcc version 11.4.0 (Debian)\n",
                         kind, version));
  tree.write("proc/sys/kernel/osrelease", std::string(kernel) + "\n");
  tree.make_folder("sys/module");
}

constexpr std::string_view open_module = "Open Kernel Module for x86_64";
constexpr std::string_view closed_module = "x86_64 Kernel Module";

}  // namespace

TEST_CASE("small files: bytes of terminals, endless lines, and pipes") {
  const CapturedTree tree;
  tree.write("odd", "\xff\x01z\n");
  CHECK(sources::first_line(tree.path("odd")) == "??z");
  tree.write("long", std::string(10000, 'x'));
  CHECK(sources::first_line(tree.path("long")).size() == 1024);
  // Reading a pipe without a writer must not block.
  REQUIRE(mkfifo(tree.path("pipe").c_str(), 0600) == 0);
  CHECK_FALSE(sources::read_start(tree.path("pipe"), 10));
}

TEST_CASE("environment: nothing is known of nothing") {
  const CapturedTree tree;
  atoll::Facts facts = surroundings(tree);
  CHECK(facts.erase("memlock_bytes") == 1);
  CHECK(facts.empty());
}

TEST_CASE("environment: virtual machine and container") {
  const CapturedTree tree;
  tree.write("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu sse hypervisor\nbugs\t: \n");
  CHECK(get_fact(surroundings(tree), fact::virtual_machine) == "yes");
  tree.write("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu sse hypervisor_not\nbugs\t: \n");
  CHECK(get_fact(surroundings(tree), fact::virtual_machine) == "no");
  tree.write("proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd\n");
  CHECK(get_fact(surroundings(tree), fact::virtual_machine).empty());

  CHECK(get_fact(surroundings(tree), fact::container).empty());
  CHECK(get_fact(surroundings(tree, {"container=podman"}), fact::container) == "yes");
  tree.write("proc/1/cgroup", "0::/init.scope\n");
  CHECK(get_fact(surroundings(tree), fact::container) == "no");
  tree.write("proc/1/cgroup", "4:memory:/kubepods/burstable/pod1/2\n");
  CHECK(get_fact(surroundings(tree), fact::container) == "yes");
  tree.write("proc/1/cgroup", "0::/\n");
  tree.write("proc/self/mountinfo",
             "20 1 8:2 / / rw,relatime - ext4 /dev/sda2 rw\n"
             "30 20 0:40 / /data rw - overlay overlay rw,lowerdir=/a\n");
  CHECK(get_fact(surroundings(tree), fact::container) == "no");
  tree.write("proc/self/mountinfo", "20 1 0:40 / / rw - overlay overlay rw,lowerdir=/a\n");
  CHECK(get_fact(surroundings(tree), fact::container) == "yes");
}

TEST_CASE("environment: the IOMMU, of GPUs and NICs first") {
  const CapturedTree tree;
  tree.make_folder("sys/class");
  CHECK(get_fact(surroundings(tree), fact::iommu) == "off");
  tree.write("sys/kernel/iommu_groups/0/type", "DMA-FQ\n");
  tree.write("sys/kernel/iommu_groups/1/type", "identity\n");
  CHECK(get_fact(surroundings(tree), fact::iommu) == "translated");
  const std::string gpu = tree.add_pci("pci0000:15/0000:17:00.0");
  tree.link(gpu + "iommu_group", "sys/kernel/iommu_groups/1");
  Topology topology;
  machines::add_host(topology, "h", 1);
  topology.gpus[0].busid = "00000000:17:00.0";
  CHECK(get_fact(surroundings(tree, {}, topology), fact::iommu) == "passthrough");
  // Old kernels do not report the type of an IOMMU group.
  const CapturedTree old;
  old.make_folder("sys/class");
  old.make_folder("sys/kernel/iommu_groups/0");
  CHECK(get_fact(surroundings(old), fact::iommu) == "translated");
  old.write("proc/cmdline", "quiet intel_iommu=on iommu=pt\n");
  CHECK(get_fact(surroundings(old), fact::iommu) == "passthrough");
}

TEST_CASE("environment: driver, dma-buf, peermem, IMEX") {
  const CapturedTree tree;
  write_driver(tree, open_module, "550.54.15", "5.15.0-1053-azure");
  atoll::Facts facts = surroundings(tree);
  check_facts(facts,
              "driver.version 550.54.15; kernel.release 5.15.0-1053-azure; dma_buf yes; peermem "
              "no; imex.channel no");

  write_driver(tree, open_module, "550.54.15", "5.4.0");
  CHECK(get_fact(surroundings(tree), fact::dma_buf) == "no");
  write_driver(tree, closed_module, "535.129.03", "6.1.0");
  tree.write("proc/modules", "nvidia_uvm 1 0 - Live 0x0\nnvidia_peermem 16384 0 - Live 0x0\n");
  tree.make_folder("dev/nvidia-caps-imex-channels");
  tree.write("dev/nvidia-caps-imex-channels/channel0", "");
  facts = surroundings(tree);
  check_facts(facts, "driver.version 535.129.03; dma_buf no; peermem yes; imex.channel yes");
  tree.write("proc/modules", "my_nvidia_peermem 1 0 - Live 0x0\n");
  CHECK(get_fact(surroundings(tree), fact::peermem) == "no");
  tree.make_folder("sys/module/nv_peer_mem");
  CHECK(get_fact(surroundings(tree), fact::peermem) == "yes");
}

TEST_CASE("environment: limits, and what a container hides") {
  const CapturedTree tree;
  tree.make_folder("dev/shm");
  atoll::Facts facts = surroundings(tree);
  CHECK_FALSE(get_fact(facts, fact::memlock_bytes).empty());
  CHECK(atoll::number_fact(facts, fact::shm_bytes).value_or(0) > 0);
  CHECK(get_fact(facts, fact::hidden).empty());
  tree.write("proc/bus/pci/devices", "1700\t10de2330\n");
  CHECK(get_fact(surroundings(tree), fact::hidden) == "/sys");
  tree.make_folder("sys/class/infiniband/mlx5_0");
  CHECK(get_fact(surroundings(tree), fact::hidden) == "/sys /dev/infiniband");
  tree.add_pci("pci0000:15/0000:17:00.0");
  CHECK(get_fact(surroundings(tree), fact::hidden) == "/dev/infiniband");
  tree.make_folder("dev/infiniband");
  CHECK(get_fact(surroundings(tree), fact::hidden).empty());
}

TEST_CASE("environment: shared memory that no process maps") {
  const CapturedTree tree;
  CHECK(get_fact(surroundings(tree), fact::shm_left).empty());
  tree.make_folder("dev/shm");
  CHECK(get_fact(surroundings(tree), fact::shm_left) == "none");
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  const auto add = [&](const std::string& name) {
    tree.write("dev/shm/" + name, "x");
    std::filesystem::last_write_time(tree.path("dev/shm/" + name), old);
  };
  add("atoll-01");
  add("nccl-used");
  add("other-01");
  add("atoll-;rm");
  tree.write("dev/shm/atoll-new", "x");
  struct stat used {};
  REQUIRE(::stat(tree.path("dev/shm/nccl-used").c_str(), &used) == 0);
  tree.write("proc/77/maps",
             fmt::format("7f00-7f01 rw-s 00000000 00:1a {} /dev/shm/nccl-used\n", used.st_ino));
  CHECK(get_fact(surroundings(tree), fact::shm_left) == "atoll-01");
}

TEST_CASE("environment: NCCL's variables") {
  const CapturedTree tree;
  const atoll::Facts facts =
      surroundings(tree, {"NCCL_IB_HCA==mlx5_0:1", "NCCL_DEBUG=INFO", "PATH=/bin", "NCCL_EMPTY=",
                          "NCCL_LONG=" + std::string(5000, 'x'), "NCCL_ODD=\n\xff", "NCCL_BROKEN"});
  check_facts(facts, "env.NCCL_IB_HCA =mlx5_0:1; env.NCCL_DEBUG INFO");
  CHECK(get_fact(facts, "env.NCCL_LONG").size() == 1024);
  CHECK(get_fact(facts, "env.NCCL_ODD") == "??");
  std::size_t settings = 0;
  for (const auto& [name, value] : facts) settings += name.starts_with("env.") ? 1 : 0;
  CHECK(settings == 4);
}

TEST_CASE("environment: NCCL's files, the user's before the host's") {
  const CapturedTree tree;
  tree.write("etc/nccl.conf",
             "# for all\nNCCL_DEBUG=WARN\n  NCCL_IB_HCA = mlx5_0 \r\nno setting\n#NCCL_ALGO=Ring\n"
             "=x\nNCCL BAD=1\n");
  tree.write("home/.nccl.conf", "NCCL_DEBUG=INFO");
  tree.write("other", "NCCL_DEBUG=TRACE");
  atoll::Facts facts = surroundings(tree);
  check_facts(facts, "nccl.conf.NCCL_DEBUG WARN; nccl.conf.NCCL_IB_HCA mlx5_0");
  CHECK(facts.size() == 3);  // these are the two NCCL settings and memlock_bytes
  facts = surroundings(tree, {"HOME=" + tree.path("home")});
  check_facts(facts, "nccl.conf.NCCL_DEBUG INFO; nccl.conf.NCCL_IB_HCA mlx5_0");
  facts = surroundings(tree, {"HOME=" + tree.path("home"), "NCCL_CONF_FILE=" + tree.path("other")});
  CHECK(get_fact(facts, "nccl.conf.NCCL_DEBUG") == "TRACE");
  // NCCL_CONF_FILE may name any kind of file, even a device or a folder, without an error.
  CHECK_NOTHROW(surroundings(tree, {"NCCL_CONF_FILE=/dev/zero"}));
  CHECK_NOTHROW(surroundings(tree, {"NCCL_CONF_FILE=" + tree.path("home")}));
}

TEST_CASE("live: this host") {
  const Topology topology = Topology::discover_local();
  REQUIRE(topology.hosts.size() == 1);
  const auto& host = topology.hosts[0];
  CHECK_FALSE(host.id.empty());
  CHECK(host.id == host.name);
  CHECK(host.cores >= 1);
  CHECK(host.threads >= host.cores);
  CHECK(host.host_cores >= host.cores);
  CHECK(host.memory_bytes > 0);
  CHECK(Topology::discover_local("some id").hosts[0].id == "some id");
  CHECK(Topology::from_json(topology.to_json(), "live").to_json() == topology.to_json());
  std::size_t gpus = 0;
  for (const Island& island : find_islands(topology)) gpus += island.gpus.size();
  CHECK(gpus == topology.gpus.size());
}

TEST_CASE("live: a bound process sees what it may use") {
  cpu_set_t before;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  const Topology topology = Topology::discover_local();
  REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
  CHECK(topology.hosts[0].cores == 1);
  CHECK(topology.hosts[0].threads == 1);
  CHECK(topology.hosts[0].host_threads >= CPU_COUNT(&before));
}
