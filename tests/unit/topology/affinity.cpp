#include <doctest/doctest.h>

#include <algorithm>
#include <ctime>

#include "facts.hpp"
#include "path_level.hpp"
#include "unit/topology/machines.hpp"

using atoll::Affinity;
using atoll::PathLevel;
using atoll::Rail;
using atoll::Topology;
using atoll::TopologyNic;
using machines::contains;
using machines::gpu;

namespace {

using Names = std::vector<std::string>;

// Adds an active NIC with this PCI path to host "a", or to `host` if it is given.
TopologyNic& add_nic(Topology& topology, const std::string& name, const std::string& pci_path,
                     double gbit_s = 400, const std::string& host = "a") {
  TopologyNic& nic = machines::add_nic(topology, host, gbit_s, name);
  nic.pci_path = pci_path;
  return nic;
}

// Returns hosts a and b, in which GPU i and the NIC mlx5_i are alone below one PCI root.
Topology hosts_with_rails(int gpus) {
  Topology topology;
  for (const std::string host : {"a", "b"}) {
    machines::add_host(topology, host, gpus);
    for (int i = 0; i < gpus; ++i) {
      const std::string path = "pci0000:" + std::to_string(10 + i);
      auto& card = topology.gpus[topology.gpus.size() - static_cast<std::size_t>(gpus - i)];
      card.pci_path = path;
      card.numa = 0;
      add_nic(topology, "mlx5_" + std::to_string(i), path, 400, host).numa = 0;
    }
  }
  return topology;
}

// Returns the NICs of each GPU as text: "USED,USED of NEAREST,NEAREST: WHY".
Names uses(const Topology& topology) {
  Names text;
  for (const Affinity& one : find_affinity(topology))
    text.push_back(
        fmt::format("{} of {}: {}", fmt::join(one.use, ","), fmt::join(one.nearest, ","), one.why));
  return text;
}

// Returns each rail as text: "INDEX EVIDENCE: NICS of GPUS".
Names rails_of(const Topology& topology) {
  Names text;
  for (const Rail& rail : find_rails(topology, find_affinity(topology)))
    text.push_back(fmt::format("{} {}: {} of {}", rail.index, rail.evidence,
                               fmt::join(rail.nics, " "), fmt::join(rail.gpus, " ")));
  return text;
}

std::optional<PathLevel> level(const std::string& a, const std::string& b) {
  Topology topology;
  machines::add_host(topology, "a", 1);
  topology.gpus[0].pci_path = a;
  topology.gpus[0].numa = -1;
  const TopologyNic& nic = add_nic(topology, "mlx5_0", b);
  return atoll::PathLevels(topology).between(location_of(topology.gpus[0]), location_of(nic));
}

}  // namespace

TEST_CASE("paths: levels by the way through PCI") {
  CHECK(level("pci0000:15/15:01.0/16:00.0", "pci0000:15/15:01.0/16:00.0") == PathLevel::pix);
  // The devices are below two downstream ports of the same PCIe switch.
  CHECK(level("pci0000:15/15:01.0/16:00.0/17:00.0", "pci0000:15/15:01.0/16:00.0/17:01.0") ==
        PathLevel::pix);
  // One of the two devices is below a second PCIe switch.
  CHECK(level("pci0000:15/15:01.0/16:00.0/17:00.0/18:00.0", "pci0000:15/15:01.0/16:00.0/17:01.0") ==
        PathLevel::pxb);
  CHECK(level("pci0000:15/15:01.0", "pci0000:15/15:02.0") == PathLevel::phb);
  CHECK(level("pci0000:15", "pci0000:15") == PathLevel::phb);
  CHECK_FALSE(level("pci0000:15/15:01.0", "pci0000:37/37:01.0"));
  CHECK_FALSE(level("", "pci0000:37/37:01.0"));
}

TEST_CASE("paths: beyond the root complex, NUMA nodes and packages; what is stated goes first") {
  Topology topology;
  machines::add_host(topology, "a", 1);
  machines::add_host(topology, "b");
  atoll::TopologyGpu& card = topology.gpus[0];
  TopologyNic& nic = add_nic(topology, "mlx5_0", "pci0000:37");
  card.pci_path = "pci0000:15";
  const auto now = [&] {
    return atoll::PathLevels(topology).between(location_of(card), location_of(nic));
  };
  card.numa = nic.numa = 1;
  CHECK(now() == PathLevel::node);
  nic.numa = 2;
  CHECK(now() == PathLevel::sys);
  card.package = nic.package = 0;
  CHECK(now() == PathLevel::package);
  nic.package = 1;
  CHECK(now() == PathLevel::sys);
  topology.paths.push_back({.a = nic.id, .b = card.id, .level = PathLevel::pxb});
  CHECK(now() == PathLevel::pxb);
  nic.host = "b";
  CHECK_FALSE(now());
}

TEST_CASE("affinity: the nearest NIC, and the one to use when that is down") {
  Topology topology;
  machines::add_host(topology, "a", 2);
  topology.gpus[0].pci_path = "pci0000:15/15:01.0";
  topology.gpus[1].pci_path = "pci0000:37/37:01.0";
  topology.gpus[0].numa = topology.gpus[1].numa = 0;
  add_nic(topology, "mlx5_0", "pci0000:15/15:01.0").numa = 0;
  TopologyNic& down = add_nic(topology, "mlx5_1", "pci0000:37/37:01.0");
  down.numa = 0;
  down.state = "down";
  CHECK(find_affinity(topology)[0].level == PathLevel::pix);
  CHECK(
      uses(topology) ==
      Names{"a/mlx5_0 of a/mlx5_0: mlx5_0 is nearest (PIX)",
            "a/mlx5_0 of a/mlx5_1: mlx5_0 is nearest (NODE); mlx5_1 is as near as a chosen NIC or "
            "nearer, but down"});
}

TEST_CASE("affinity: ties are spread, in the order in which people count") {
  Topology topology;
  machines::add_host(topology, "a", 2);
  for (auto& card : topology.gpus) card.pci_path = "pci0000:15/15:01.0";
  for (const char* name : {"mlx5_10", "mlx5_2", "mlx5_1"})
    add_nic(topology, name, "pci0000:15/15:01.0");
  CHECK(uses(topology)[0].starts_with("a/mlx5_1 of a/mlx5_1,a/mlx5_2,a/mlx5_10: "));
  CHECK(uses(topology)[1] ==
        "a/mlx5_2 of a/mlx5_1,a/mlx5_2,a/mlx5_10: mlx5_2 is nearest (PIX); 2 GPUs are equally near "
        "to mlx5_1, mlx5_2 and mlx5_10 and spread over them, 1 NIC left over");
  add_nic(topology, "mlx5_11", "pci0000:15/15:01.0");
  CHECK(uses(topology)[0].starts_with("a/mlx5_1,a/mlx5_2 of "));
  CHECK(uses(topology)[1].starts_with("a/mlx5_10,a/mlx5_11 of "));
}

TEST_CASE("affinity: as many GPUs and NICs as a host may have take little time") {
#ifdef ATOLL_SANITIZE_ADDRESS
  constexpr int gpus = 256, nics = 1024;  // code without optimisation takes 50 times as long
#else
  constexpr int gpus = 1024, nics = 4096;
#endif
  Topology topology;
  machines::add_host(topology, "a", gpus);
  const std::string way = "pci0000:15/15:01.0/16:00.0/17:00.0/18:00.0/";
  for (auto& one : topology.gpus) one.pci_path = way + one.id;
  for (int i = 0; i < nics; ++i)
    add_nic(topology, "mlx5_" + std::to_string(i), way + std::to_string(i), i % 2 == 0 ? 400 : 100);
  const std::clock_t start = std::clock();  // CPU time, since other tests run beside this one
  CHECK(find_affinity(topology)[1].use == Names{"a/mlx5_4", "a/mlx5_6"});
  // Comparing each GPU with each pair of NICs would take hours.
  CHECK(std::clock() - start < 30 * CLOCKS_PER_SEC);
}

TEST_CASE("affinity: virtual NICs and those of a lesser fabric are not used") {
  Topology topology;
  machines::add_host(topology, "a", 1);
  topology.gpus[0].pci_path = "pci0000:15/15:01.0";
  topology.gpus[0].numa = 0;
  TopologyNic& socket = add_nic(topology, "eth0", "pci0000:15/15:01.0", 100);
  socket.layer = "ethernet";
  add_nic(topology, "veth1", "pci0000:15/15:01.0", 10).is_virtual = true;
  add_nic(topology, "mlx5_0", "pci0000:37").numa = 0;
  CHECK(uses(topology)[0] ==
        "a/mlx5_0 of a/eth0: mlx5_0 is nearest (NODE); eth0 is as near as a chosen NIC or nearer, "
        "but a plain network interface");
  const auto why_with = [&](const std::string& layer, double gbit_s) {
    Topology two = topology;
    TopologyNic& other = add_nic(two, "mlx5_1", "pci0000:15/15:01.0", gbit_s);
    other.layer = layer;
    two.nics[2].pci_path = "pci0000:15/15:01.0";
    const std::string why = find_affinity(two)[0].why;
    return why.substr(why.find("mlx5_1 is as near"));
  };
  const std::string near = "mlx5_1 is as near as a chosen NIC or nearer, but ";
  CHECK(why_with("infiniband", 100) == near + "slower");
  CHECK(why_with("ethernet", 100) == near + "of another fabric");
  CHECK(why_with("", 100) == near + "of unknown fabric");
}

TEST_CASE("affinity: GPUs at different distances share the same NICs, and the text says so") {
  Topology topology;
  machines::add_host(topology, "a", 3);
  add_nic(topology, "mlx5_0", "");
  add_nic(topology, "mlx5_1", "");
  for (int i = 0; i < 3; ++i)
    for (const char* nic : {"a/mlx5_0", "a/mlx5_1"})
      topology.paths.push_back(
          {.a = gpu("a", i), .b = nic, .level = i == 1 ? PathLevel::phb : PathLevel::sys});
  const auto affinity = find_affinity(topology);
  CHECK(affinity[1].why ==
        "mlx5_0 is nearest (PHB); 3 GPUs have no nearer NICs than mlx5_0 and mlx5_1 and are spread "
        "over them (1 at PHB and 2 at SYS)");
  // The tree shows the distance of the NIC that each GPU uses, although it is one of several.
  const std::string tree = to_tree(atoll::inspect(topology));
  CHECK(contains(tree, "-> mlx5_0 (PHB)\n"));
  CHECK(contains(tree, "-> mlx5_1 (SYS)\n"));
}

TEST_CASE("affinity: the fabric that joins hosts, with and without rates") {
  Topology topology;
  machines::add_host(topology, "a", 1);
  add_nic(topology, "mlx5_an0", "").layer = "ethernet";
  add_nic(topology, "mlx5_ib0", "");
  for (auto& nic : topology.nics) nic.rate_gbit_s.reset();
  CHECK(find_affinity(topology)[0].use == Names{"a/mlx5_ib0"});
  CHECK(find_rails(topology, {}).empty());
  // A RoCE port of 400 Gbit/s is preferred to an InfiniBand port of 100 Gbit/s, which usually
  // serves storage.
  for (auto& nic : topology.nics) nic.rate_gbit_s = 100;
  topology.nics[0].rate_gbit_s = 400;
  CHECK(find_affinity(topology)[0].use == Names{"a/mlx5_an0"});
  Topology cpus = topology;
  cpus.gpus.clear();
  for (auto& nic : cpus.nics) nic.rate_gbit_s.reset();
  const auto rails = find_rails(cpus, {});
  REQUIRE(rails.size() == 1);
  CHECK(rails[0].nics == Names{"a/mlx5_ib0"});
}

TEST_CASE("affinity: where no source tells the way, nothing is nearest and all are used") {
  Topology topology;
  machines::add_host(topology, "a", 2);
  for (auto& card : topology.gpus) card.numa = -1;
  add_nic(topology, "mlx5_0", "");
  add_nic(topology, "mlx5_1", "");
  CHECK_FALSE(find_affinity(topology)[0].level);
  CHECK(uses(topology)[0].starts_with("a/mlx5_0 of : "));
  CHECK(uses(topology)[1].starts_with("a/mlx5_1 of : "));
  topology.nics.clear();
  CHECK(uses(topology)[0] == " of : no active NIC that joins hosts");
}

TEST_CASE("usable rate: the least of port, PCIe link and share of the adapter") {
  Topology topology;
  machines::add_host(topology, "a", 1);
  add_nic(topology, "mlx5_0", "", 400);
  CHECK(usable_gbyte_s(topology)[0] == 50);
  // PCIe Gen4 x8 carries 16 GT/s * 8 lanes * 128/130 / 8 bits = 15.754 GB/s.
  topology.nics[0].facts = {{"pci.gt_s", "16"}, {"pci.width", "8"}};
  CHECK(usable_gbyte_s(topology)[0].value() == doctest::Approx(15.754));
  topology.nics[0].facts = {{"pci.gbyte_s", "31.5"}};
  CHECK(usable_gbyte_s(topology)[0] == 31.5);
  // A PCIe link does not show what a port of unknown rate carries.
  topology.nics[0].rate_gbit_s.reset();
  CHECK_FALSE(usable_gbyte_s(topology)[0]);
  topology.nics[0].rate_gbit_s = 400;
  // The two ports of a ConnectX-6 adapter share 200 Gbit/s and one PCIe slot, so each port gets
  // 12.5 GB/s.
  topology.nics[0].facts = {{"pci.device", "15b3:101b"}};
  topology.nics[0].adapter = "0x1";
  topology.nics.push_back(topology.nics[0]);
  topology.nics[1].id = "a/mlx5_1";
  CHECK(usable_gbyte_s(topology)[1] == 12.5);
  CHECK(usable_gbyte_s(topology)[0] == 12.5);
  topology.nics[1].state = "down";
  CHECK(usable_gbyte_s(topology)[0] == 25);
  // In a virtual machine, the PCIe link is emulated, so its speed does not limit the rate of the
  // NIC.
  topology.nics[0].facts = {{"pci.gt_s", "2.5"}, {"pci.width", "1"}};
  CHECK(usable_gbyte_s(topology)[0].value() == doctest::Approx(0.25));
  topology.hosts[0].facts = {{"virtual_machine", "yes"}};
  CHECK(usable_gbyte_s(topology)[0] == 50);
  topology.nics[0].rate_gbit_s.reset();
  CHECK_FALSE(usable_gbyte_s(topology)[0]);
}

TEST_CASE("rails: equal positions of the hosts, until a fabric file names leaves") {
  Topology topology = hosts_with_rails(2);
  CHECK(rails_of(topology) == Names{"0 assumed: a/mlx5_0 b/mlx5_0 of a/gpu0 b/gpu0",
                                    "1 assumed: a/mlx5_1 b/mlx5_1 of a/gpu1 b/gpu1"});

  // The cables of host b are crossed: mlx5_0 is on leaf switch 2, and mlx5_1 is on leaf switch 1.
  for (auto& nic : topology.nics)
    nic.facts["leaf"] = (nic.id == "a/mlx5_0" || nic.id == "b/mlx5_1") ? "leaf-1" : "leaf-2";
  CHECK(rails_of(topology) == Names{"0 fabric: a/mlx5_0 b/mlx5_1 of a/gpu0 b/gpu1",
                                    "1 fabric: a/mlx5_1 b/mlx5_0 of a/gpu1 b/gpu0"});
}

TEST_CASE("rails: GPUs that share a NIC share its rail; hosts without GPUs count NICs") {
  Topology topology;
  machines::add_host(topology, "a", 2);
  for (auto& card : topology.gpus) card.pci_path = "pci0000:15";
  add_nic(topology, "mlx5_0", "pci0000:15");
  CHECK(rails_of(topology) == Names{"0 assumed: a/mlx5_0 of a/gpu0 a/gpu1"});

  Topology cpus = machines::cpus(2);
  for (const std::string host : {"a", "b"})
    for (const char* name : {"mlx5_1", "mlx5_0"}) add_nic(cpus, name, "", 100, host);
  CHECK(rails_of(cpus) ==
        Names{"0 assumed: a/mlx5_0 b/mlx5_0 of ", "1 assumed: a/mlx5_1 b/mlx5_1 of "});
}

TEST_CASE("diff: what was added, lost and changed") {
  const Topology before = machines::hgx(1);
  CHECK(diff(before, before).empty());
  Topology after = before;
  after.gpus[2].facts["nvlink.active"] = "17";
  // diff() ignores throttle reasons, because they change every minute, and notes about files.
  after.gpus[2].facts["throttle"] = "thermal";
  after.hosts[0].facts["note.nccl xml"] = "3 <c2c> are not read";
  after.hosts[0].host_cores = 4;
  add_nic(after, "mlx5_0", "");
  after.links.pop_back();
  Names lines = diff(before, after);
  std::ranges::sort(lines);
  CHECK(lines == Names{"+ a/mlx5_0", "+ island of a/gpu7", "- a/gpu7 - a/nvswitch0 (nvlink)",
                       "~ a/gpu2: nvlink.active unknown -> 17", "~ a: cores 8 -> 4",
                       "~ island of a/gpu0: GPUs 8 -> 7"});
  const auto p1 = [](PathLevel one) {
    Topology wired = machines::hgx(1);
    wired.paths.push_back({.a = gpu("a", 0), .b = gpu("a", 1), .level = one});
    return wired;
  };
  CHECK(diff(p1(PathLevel::pix), p1(PathLevel::sys)) ==
        Names{"~ a/gpu0 - a/gpu1 (path): level PIX -> SYS"});
  // If each topology has a single host, diff() compares the two hosts even if their names differ.
  Topology renamed;
  machines::add_switched(renamed, "other", 8);
  CHECK(diff(before, renamed).empty());
}

TEST_CASE("rails: a port that is down moves no other; its GPU borrows the least used NIC near it") {
  Topology topology = hosts_with_rails(4);
  topology.nics[1].state = "down";
  CHECK(uses(topology)[0].starts_with("a/mlx5_0 of a/mlx5_0: "));
  CHECK(uses(topology)[1].starts_with("a/mlx5_0 of a/mlx5_1: "));
  CHECK(uses(topology)[2].starts_with("a/mlx5_2 of a/mlx5_2: "));
  // Rails are listed in the order in which GPUs use them. The NIC b/mlx5_1 is alone on the last
  // rail, because a/mlx5_1 is down.
  CHECK(rails_of(topology) == Names{"0 assumed: a/mlx5_0 b/mlx5_0 of a/gpu0 a/gpu1 b/gpu0",
                                    "1 assumed: a/mlx5_2 b/mlx5_2 of a/gpu2 b/gpu2",
                                    "2 assumed: a/mlx5_3 b/mlx5_3 of a/gpu3 b/gpu3",
                                    "3 assumed: b/mlx5_1 of b/gpu1"});
}

namespace {

// A host with four adapters: two on NUMA node 0, one of them slow; one on node 1; and one on node
// 2, which is down.
Topology cpu_host() {
  Topology topology;
  topology.hosts.push_back({.id = "a", .name = "a", .numa_nodes = 4});
  const auto add = [&](const std::string& name, int numa, double gbit_s) -> TopologyNic& {
    TopologyNic& nic = add_nic(topology, name, "", gbit_s);
    nic.numa = numa;
    return nic;
  };
  add("mlx5_10", 0, 400);
  add("mlx5_2", 1, 400);
  add("mlx5_0", 0, 100);
  add("mlx5_3", 2, 400).state = "down";
  add("virtual", 3, 400).is_virtual = true;
  return topology;
}

}  // namespace

TEST_CASE("affinity of cores: the fastest active NIC of their NUMA node") {
  const Affinity zero = find_cpu_affinity(cpu_host(), "a", 0);
  CHECK(zero.gpu.empty());
  CHECK(zero.use == Names{"a/mlx5_10"});
  CHECK(zero.nearest == Names{"a/mlx5_0", "a/mlx5_10"});
  CHECK(zero.level == PathLevel::node);
  CHECK(zero.why == "mlx5_10 is on NUMA node 0, where the rank runs");
  CHECK(find_cpu_affinity(cpu_host(), "a", 1).use == Names{"a/mlx5_2"});
}

TEST_CASE("affinity of cores: all fast NICs of the host if the node has no active one") {
  for (const int numa : {2, 3}) {
    const Affinity far = find_cpu_affinity(cpu_host(), "a", numa);
    CHECK(far.use == Names{"a/mlx5_2", "a/mlx5_10"});
    CHECK(far.why == "mlx5_2 and mlx5_10: no active NIC is on NUMA node " + std::to_string(numa) +
                         ", where the rank runs");
  }
  Topology unplaced = cpu_host();
  for (auto& nic : unplaced.nics) nic.numa = -1;
  CHECK(find_cpu_affinity(unplaced, "a", 2)
            .why.ends_with("no active NIC is known to be on NUMA node 2, where the rank runs"));
  // If the source gives no states, or only those of some NICs, it is unknown whether any is active.
  Topology stateless = cpu_host();
  for (auto& nic : stateless.nics) nic.state = "";
  stateless.nics[3].state = "down";
  CHECK(contains(find_cpu_affinity(stateless, "a", 2).why, "no active NIC is known to be on"));
  Topology mixed = cpu_host();
  mixed.nics[3].state = "active";
  mixed.nics[3].layer = "ethernet";
  for (auto& nic : mixed.nics)
    if (nic.layer.empty()) nic.layer = "infiniband";
  CHECK(
      find_cpu_affinity(mixed, "a", 2)
          .why.ends_with(": the NICs on NUMA node 2, where the rank runs, are of another fabric"));
  const Affinity several = find_cpu_affinity(cpu_host(), "a", -1);
  CHECK(several.use == Names{"a/mlx5_2", "a/mlx5_10"});
  CHECK(several.nearest.empty());
  CHECK_FALSE(several.level);
  CHECK(several.why == "mlx5_2 and mlx5_10: the rank is not bound to the cores of one NUMA node");
}

TEST_CASE("rails: a lost GPU and another order of the list move no NIC") {
  Topology topology = hosts_with_rails(4);
  topology.gpus.erase(topology.gpus.begin() + 4);  // remove the GPU b/gpu0 from the topology
  std::swap(topology.gpus[1], topology.gpus[2]);
  const auto rails = find_rails(topology, find_affinity(topology));
  for (const auto& rail : rails)
    for (const std::string& nic : rail.nics) CHECK(nic.substr(1) == rail.nics.front().substr(1));
  CHECK(rails.size() == 4);
}
