// Tests of the topology doctor's checks of PCIe links and of single GPUs.
#include "unit/topology/doctor.hpp"

namespace fact = atoll::fact;
using atoll::diagnose;
using namespace machines;

namespace {

void set_link(atoll::Facts& facts, const char* gt_s, const char* gt_s_max, const char* width,
              const char* width_max) {
  set(facts, fact::pci_gt_s, gt_s);
  set(facts, fact::pci_gt_s_max, gt_s_max);
  set(facts, fact::pci_width, width);
  set(facts, fact::pci_width_max, width_max);
}

Topology with_links() {
  Topology topology = machines::cluster(1);
  for (auto& gpu : topology.gpus) set_link(gpu.facts, "32", "32", "16", "16");
  for (auto& nic : topology.nics) set_link(nic.facts, "32", "32", "16", "16");
  return topology;
}

}  // namespace

TEST_CASE("pcie_width: lanes that are missing, with the bandwidth lost") {
  CHECK(state_of(machines::cluster(1), "pcie_width") == "no source provides pci.width");
  Topology topology = with_links();
  CHECK(state_of(topology, "pcie_width") == "ok");
  // The GPU is idle, so its link speed is low as well. The low speed must not count as a fault, but
  // the missing lanes must.
  set_link(topology.gpus[1].facts, "2.5", "32", "8", "16");
  expect_finding(topology, "pcie_width", Severity::warning, {"a/gpu1"},
                 {"the PCIe link has 8 of 16 lanes", "the link carries 31.5 of 63 GB/s",
                  "lspci -vv -s 0000:11:00.0 "});
}

TEST_CASE("pcie_width: a link of unknown maximum, and an emulated one, are not judged") {
  Topology topology = machines::cluster(1);
  set_gpus(topology, fact::pci_width, "8");
  CHECK(contains(state_of(topology, "pcie_width"), "no source provides pci.width_max"));
  for (auto& gpu : topology.gpus) set_link(gpu.facts, "2.5", "2.5", "1", "16");
  topology.nics.clear();
  set_hosts(topology, fact::virtual_machine, "yes");
  CHECK(state_of(topology, "pcie_width") == "a virtual machine shows emulated PCIe links");
  CHECK(state_of(topology, "pcie_speed") == "a virtual machine shows emulated PCIe links");
  for (auto& gpu : topology.gpus) set_link(gpu.facts, "32", "32", "8", "16");
  CHECK(the_finding(topology, "pcie_width").subjects.size() == 4);
}

TEST_CASE("pcie_speed: idle devices are information, a NIC whose port is faster is a warning") {
  CHECK(state_of(machines::cluster(1), "pcie_speed") == "no source provides pci.gt_s");
  Topology topology = with_links();
  CHECK(state_of(topology, "pcie_speed") == "ok");
  set_link(topology.gpus[0].facts, "2.5", "32", "16", "16");
  expect_finding(topology, "pcie_speed", Severity::info, {},
                 {"the PCIe link runs at 2.5 of 32 GT/s", "idle"});
  set_link(topology.gpus[0].facts, "32", "32", "16", "16");
  set_link(topology.nics[2].facts, "16", "32", "16", "16");
  expect_finding(topology, "pcie_speed", Severity::warning, {"a/mlx5_2"},
                 {"the link carries 31.5 GB/s, but the port 50 GB/s"});
  topology.nics[2].rate_gbit_s = 200;
  CHECK(the_finding(topology, "pcie_speed").severity == Severity::info);
}

TEST_CASE("pcie_replays: a few are usual, many are not") {
  Topology topology = ok_with(set_gpus, "pcie_replays", fact::pci_replays, "0");
  set(topology.gpus[0].facts, fact::pci_replays, "2");
  CHECK(the_finding(topology, "pcie_replays").severity == Severity::info);
  set(topology.gpus[1].facts, fact::pci_replays, "4321");
  set(topology.gpus[2].facts, fact::pci_replays, "40");
  const auto findings = found_in(diagnose(topology), "pcie_replays");
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].severity == Severity::warning);
  CHECK(findings[0].subjects == Strings{"a/gpu1", "a/gpu2"});
  CHECK(findings[0].evidence == "40 to 4321 PCIe replays");
}

TEST_CASE("acs: bridges that redirect are named once") {
  Topology topology = machines::cluster(1);
  set_hosts(topology, "source.sysfs_pci", "needs root");
  CHECK(state_of(topology, "acs") == "needs root");
  set_gpus(topology, fact::pci_acs, "off");
  CHECK(state_of(topology, "acs") == "ok");
  // The bridge 00:01.0 is above both the GPU and the NIC. The traffic between the two stays below
  // this bridge, so the bridge redirects nothing.
  set(topology.gpus[0].facts, fact::pci_acs, "00000000:00:01.0 00000000:00:02.0");
  set(topology.nics[0].facts, fact::pci_acs, "00000000:00:01.0 00000000:00:03.0");
  expect_finding(
      topology, "acs", Severity::warning, {"a/gpu0", "a/mlx5_0"},
      {"ACS redirects the traffic of these devices at 2 PCIe bridges", "ECAP_ACS+0x6.w=0000"});
  set_hosts(topology, fact::virtual_machine, "yes");
  CHECK(contains(state_of(topology, "acs"), "a virtual machine needs ACS"));
}

TEST_CASE("acs: bridges that are not between a GPU and a NIC do no harm") {
  Topology topology = machines::cluster(1, 2);
  set_gpus(topology, fact::pci_acs, "off");
  // The NIC is below a different PCIe root port than the GPU.
  topology.nics[0].pci_path = "pci0000:00/00000000:00:09.0/00000000:00:0a.0";
  set(topology.nics[0].facts, fact::pci_acs, "00000000:00:09.0 00000000:00:0a.0");
  set(topology.gpus[0].facts, fact::pci_acs, "00000000:00:01.0 00000000:00:02.0");
  // The bridge 01:01.0 is above both the NIC and the GPU.
  set(topology.nics[1].facts, fact::pci_acs, "00000000:01:01.0");
  CHECK(state_of(topology, "acs") == "ok");
  topology.gpus[0].pci_path = topology.nics[0].pci_path = "";
  topology.gpus[1].pci_path = topology.nics[1].pci_path = "";
  CHECK(state_of(topology, "acs") == "no source provides pci.acs");
  topology.gpus.clear();
  CHECK(state_of(topology, "acs") == "no host with GPUs and RDMA NICs");
}

TEST_CASE("iommu: translation is a warning, but not on Grace") {
  Topology topology = machines::cluster(2);
  CHECK(state_of(topology, "iommu") == "no source provides iommu");
  set(topology.hosts[0].facts, fact::iommu, "passthrough");
  CHECK(state_of(topology, "iommu") == "ok");
  set(topology.hosts[1].facts, fact::iommu, "translated");
  expect_finding(topology, "iommu", Severity::warning, {"b"}, {"iommu=pt"});
  for (auto& gpu : topology.gpus) gpu.model = "NVIDIA GB200";
  CHECK(state_of(topology, "iommu") == "ok");
  topology.nics.clear();
  CHECK(state_of(topology, "iommu") == "no host with GPUs and RDMA NICs");
}

TEST_CASE("ats: matters where addresses are translated, or in a virtual machine") {
  Topology topology = ok_with(set_nics, "ats", fact::pci_ats, "no");
  set_hosts(topology, fact::iommu, "translated");
  const Finding finding = the_finding(topology, "ats");
  CHECK(finding.severity == Severity::warning);
  CHECK(finding.subjects.size() == 4);
  CHECK(contains(finding.fix, "mlxconfig -d 0000:a0:00.0 set ATS_ENABLED=true"));
  for (auto& nic : topology.nics) nic.busid = "";
  CHECK(contains(the_finding(topology, "ats").fix, "mlxconfig set ATS_ENABLED=true"));
  set_nics(topology, fact::pci_ats, "yes");
  CHECK(state_of(topology, "ats") == "ok");
}

TEST_CASE("max_read_request: small requests on fast ports, and what the others have") {
  Topology topology = ok_with(set_nics, "max_read_request", fact::pci_max_read_request, "4096");
  set(topology.nics[1].facts, fact::pci_max_read_request, "512");
  expect_finding(topology, "max_read_request", Severity::warning, {"a/mlx5_1"},
                 {"the NIC reads at most 512 bytes at once, but other NICs read 4096",
                  "setpci -s 0000:a1:00.0 CAP_EXP+8.w=5000:7000"});
  topology.nics[1].rate_gbit_s = 100;
  CHECK(the_finding(topology, "max_read_request").severity == Severity::info);
  set_hosts(topology, fact::virtual_machine, "yes");
  CHECK(contains(state_of(topology, "max_read_request"), "virtual function"));
}

TEST_CASE("relaxed_ordering: off in the device, or in NCCL's settings") {
  Topology topology = ok_with(set_nics, "relaxed_ordering", fact::pci_relaxed_ordering, "yes");
  set(topology.nics[3].facts, fact::pci_relaxed_ordering, "no");
  expect_finding(topology, "relaxed_ordering", Severity::warning, {"a/mlx5_3"}, {});
  set_nics(topology, fact::pci_relaxed_ordering, "yes");
  set_hosts(topology, "nccl.conf.NCCL_IB_PCI_RELAXED_ORDERING", "0");
  expect_finding(topology, "relaxed_ordering", std::nullopt, {"a"},
                 {"NCCL_IB_PCI_RELAXED_ORDERING is 0 (nccl.conf)"});
}

TEST_CASE("ecc_remap: pending is a warning, failed an error") {
  Topology topology = machines::cluster(1);
  CHECK(contains(state_of(topology, "ecc_remap"), "no source provides ecc.remap_pending"));
  set_gpus(topology, fact::ecc_remap_pending, "no");
  set_gpus(topology, fact::ecc_remap_failed, "no");
  CHECK(state_of(topology, "ecc_remap") == "ok");
  set(topology.gpus[1].facts, fact::ecc_remap_pending, "yes");
  expect_finding(topology, "ecc_remap", Severity::warning, {"a/gpu1"}, {"nvidia-smi -r -i 1"});
  set_gpus(topology, fact::ecc_remap_pending, "no");
  set(topology.gpus[2].facts, fact::ecc_remap_failed, "yes");
  expect_finding(topology, "ecc_remap", Severity::error, {"a/gpu2"}, {});
}

TEST_CASE("power_cap: a limit below the default") {
  Topology topology = machines::cluster(1);
  CHECK(state_of(topology, "power_cap") == "no source provides power.limit_w");
  set_gpus(topology, fact::power_limit_w, "700");
  set_gpus(topology, fact::power_default_w, "700");
  CHECK(state_of(topology, "power_cap") == "ok");
  set(topology.gpus[3].facts, fact::power_limit_w, "400");
  expect_finding(topology, "power_cap", Severity::warning, {},
                 {"the power limit is 400 W, but 700 W by default", "nvidia-smi -i 3 -pl 700"});
}

TEST_CASE("checks of one fact: not looked at, ok, and a finding") {
  const struct {
    const char* id;
    void (*set)(Topology&, std::string_view, std::string_view);
    std::string_view fact;
    const char *good, *bad;
    Severity severity;
    const char *words, *fix;
  } checks[] = {
      {"nvlink_errors", set_gpus, fact::nvlink_errors, "0", "3", Severity::warning,
       "3 link errors (CRC, replay, recovery)", ""},
      {"fabric_degraded", set_gpus, fact::fabric_health, "healthy", "degraded bandwidth",
       Severity::warning, "degraded bandwidth", ""},
      {"throttle", set_gpus, fact::throttle, "none", "power_cap", Severity::info, "power_cap", ""},
      {"throttle", set_gpus, fact::throttle, "none", "power_cap thermal", Severity::warning,
       "clocks are reduced: power_cap, thermal", ""},
      {"persistence", set_gpus, fact::persistence, "yes", "no", Severity::info, "", ""},
      {"memlock", set_hosts, fact::memlock_bytes, "unlimited", "8388608", Severity::warning,
       "lock only 8 MiB of memory", "ulimit -l unlimited"},
      {"shm_small", set_hosts, fact::shm_bytes, "1073741824", "67108864", Severity::warning,
       "/dev/shm holds only 64 MiB", "--shm-size"}};
  for (const auto& check : checks) {
    Topology topology = ok_with(check.set, check.id, check.fact, check.good);
    check.set(topology, check.fact, check.bad);
    expect_finding(topology, check.id, check.severity, {}, {check.words, check.fix});
  }
  Topology other = ok_with(set_gpus, "mig", fact::mig, "no");
  set(other.gpus[0].facts, fact::mig, "yes");
  other.gpus[0].partitions = {"MIG-1", "MIG-2"};
  expect_finding(other, "mig", Severity::warning, {"a/gpu0"},
                 {"MIG is on, with 2 instances", "nvidia-smi -i 0 -mig 0"});
  other.nics.clear();
  CHECK(state_of(other, "memlock") == "no RDMA NICs");
}

TEST_CASE("fix: a command names the first device, and no name that a shell would run") {
  Topology topology = machines::cluster(1);
  topology.gpus[0].index = -1;
  set_gpus(topology, fact::mig, "yes");
  CHECK(contains(the_finding(topology, "mig").fix, "nvidia-smi -i 0000:10:00.0 -mig 0"));
  for (auto& nic : topology.nics) nic.name = "mlx5;reboot", nic.state = "down";
  for (const Finding& finding : found_in(diagnose(topology), "port_down"))
    CHECK_FALSE(contains(finding.fix, "reboot"));
}
