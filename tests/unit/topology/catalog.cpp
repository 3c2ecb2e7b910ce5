// Tests of the catalog of machine types against published figures, and of the clusters that are
// made from the catalog.
#include <doctest/doctest.h>

#include <map>
#include <set>

#include "atoll/error.hpp"
#include "atoll/tooling/load.hpp"
#include "facts.hpp"
#include "gpu_models.hpp"
#include "unit/error_text.hpp"
#include "unit/topology/import.hpp"
#include "unit/topology/machines.hpp"

using atoll::catalog_cluster;
using atoll::ErrorCode;
using atoll::Island;
using atoll::IslandState;
using atoll::Topology;
using machines::contains;
using topology_test::island_sizes;

namespace {

// Figures from data sheets and from the documentation of cloud providers.
struct Published {
  const char* name;
  std::size_t hosts, gpus;
  std::vector<std::size_t> islands;
  double gpu_gbyte_s;   // bandwidth of one GPU to its island in GB/s; 0 without links
  double pair_gbyte_s;  // bandwidth between two GPUs in GB/s; 0 when pairs differ or have no links
  std::size_t nics;     // number of NICs in each host
  double nic_gbit_s;    // network bandwidth of each GPU in Gbit/s
};

const std::vector<Published> published{
    {"a100-4", 1, 4, {4}, 300, 100, 4, 200},
    {"aws-p4d", 1, 8, {8}, 300, 300, 4, 50},
    {"aws-p5", 1, 8, {8}, 450, 450, 32, 400},
    {"azure-nd-a100-v4", 1, 8, {8}, 300, 300, 8, 200},
    {"azure-nd-h100-v5", 1, 8, {8}, 450, 450, 8, 400},
    {"dgx-1v", 1, 8, {8}, 150, 0, 4, 50},
    {"dgx-2", 1, 16, {16}, 150, 150, 8, 50},
    {"gb200-nvl72", 18, 72, {72}, 900, 900, 4, 400},
    {"gcp-a3-mega", 1, 8, {8}, 450, 450, 8, 200},
    {"h100-4", 1, 4, {4}, 450, 150, 4, 400},
    {"h100-pcie-pairs", 1, 8, {2, 2, 2, 2}, 300, 300, 4, 200},
    {"hgx-a100", 1, 8, {8}, 300, 300, 8, 200},
    {"hgx-b200", 1, 8, {8}, 900, 900, 8, 400},
    {"hgx-h100", 1, 8, {8}, 450, 450, 8, 400},
    {"hgx-h200", 1, 8, {8}, 450, 450, 8, 400},
    {"oci-h100", 1, 8, {8}, 450, 450, 16, 400},
    {"pcie-8", 1, 8, {1, 1, 1, 1, 1, 1, 1, 1}, 0, 0, 4, 200},
};

std::string failure(const std::string& name) {
  return atoll_test::error_of([&] { catalog_cluster(name); });
}

}  // namespace

TEST_CASE("catalog: every entry is listed with its title and checked here") {
  const auto entries = atoll::catalog();
  REQUIRE(entries.size() == published.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    CHECK(entries[i].name == published[i].name);
    CHECK(entries[i].title.size() > 20);
    CHECK(entries[i].title.size() < 110);
  }
}

TEST_CASE("catalog: hosts, GPUs, islands and network are as published") {
  for (const Published& expected : published) {
    CAPTURE(expected.name);
    const Topology topology = catalog_cluster(expected.name);
    CHECK(topology.hosts.size() == expected.hosts);
    CHECK(topology.gpus.size() == expected.gpus);
    const std::vector<Island> islands = find_islands(topology);
    CHECK(island_sizes(topology) == expected.islands);
    for (const Island& island : islands) {
      if (expected.gpu_gbyte_s == 0) {
        CHECK(island.state == IslandState::none);
        continue;
      }
      CHECK(island.state == IslandState::known);
      CHECK(island.gpu_gbyte_s == expected.gpu_gbyte_s);
      CHECK(island.uniform == (expected.pair_gbyte_s > 0));
      if (expected.pair_gbyte_s > 0) CHECK(island.pair_gbyte_s == expected.pair_gbyte_s);
    }
    CHECK(topology.nics.size() == expected.nics * expected.hosts);
    double gbit_s = 0;
    for (const auto& nic : topology.nics) gbit_s += nic.rate_gbit_s.value_or(0);
    CHECK(gbit_s == expected.nic_gbit_s * static_cast<double>(expected.gpus));
  }
}

TEST_CASE("catalog: every device has what planning, affinity and exports need") {
  for (const Published& expected : published) {
    CAPTURE(expected.name);
    const Topology topology = catalog_cluster(expected.name);
    std::map<std::string, std::set<std::string>> busids;
    for (const auto& gpu : topology.gpus) {
      CAPTURE(gpu.id);
      CHECK(gpu.id == gpu.host + "/gpu" + std::to_string(gpu.index));
      CHECK(gpu.numa >= 0);
      CHECK(gpu.package >= 0);
      CHECK(gpu.pci_path.starts_with("pci"));
      CHECK(busids[gpu.host].insert(gpu.busid).second);
      CHECK(atoll::number_fact(gpu.facts, atoll::fact::memory_bytes).value_or(0) > 3e10);
      const auto* model = atoll::find_gpu_model(gpu.model);
      REQUIRE(model != nullptr);
      CHECK(atoll::number_fact(gpu.facts, atoll::fact::nvlink_total) == model->links);
      CHECK(atoll::model_of_pci_device(atoll::get_fact(gpu.facts, atoll::fact::pci_device)) ==
            gpu.model);
    }
    for (const auto& nic : topology.nics) {
      CAPTURE(nic.id);
      CHECK(nic.id == nic.host + "/" + nic.name);
      CHECK(nic.state == "active");
      CHECK(nic.evidence == "catalog");
      CHECK_FALSE(nic.layer.empty());
      CHECK(nic.numa >= 0);
      CHECK(nic.pci_path.starts_with("pci"));
      CHECK(busids[nic.host].insert(nic.busid).second);
    }
    for (const auto& host : topology.hosts) {
      CHECK(host.id.starts_with(expected.name));
      CHECK(host.packages == 2);
      CHECK(host.cores == host.host_cores);
      CHECK(host.gpu_links == (expected.gpu_gbyte_s > 0 ? IslandState::known : IslandState::none));
      const std::string_view is_virtual = atoll::get_fact(host.facts, atoll::fact::virtual_machine);
      const std::string name = expected.name;
      CHECK((is_virtual == "yes") ==
            (name.starts_with("azure") || name.starts_with("aws") || name.starts_with("gcp")));
    }
  }
}

TEST_CASE("catalog: the paths lead each GPU to its own NICs") {
  const auto nearest = [](const char* cluster, std::size_t gpu) {
    std::string names;
    const auto affinity = find_affinity(catalog_cluster(cluster));
    for (const std::string& nic : affinity.at(gpu).nearest)
      names += nic.substr(nic.find('/') + 1) + ' ';
    return names;
  };
  CHECK(nearest("hgx-h100", 0) == "mlx5_0 ");
  CHECK(nearest("hgx-h100", 7) == "mlx5_11 ");
  CHECK(nearest("aws-p4d", 4) == "rdmap144s27 ");
  CHECK(nearest("aws-p4d", 5) == "rdmap144s27 ");
  CHECK(nearest("aws-p5", 0) == "rdmap79s0 rdmap80s0 rdmap81s0 rdmap82s0 ");
  CHECK(nearest("hgx-a100", 2) == "mlx5_2 mlx5_3 ");
  CHECK(nearest("dgx-2", 15) == "mlx5_9 ");
  CHECK(nearest("oci-h100", 5) == "mlx5_12 mlx5_13 ");
  // The GPUs and adapters of a Grace CPU share no PCIe switch, so the NUMA node decides.
  CHECK(nearest("gb200-nvl72", 0) == "mlx5_0 mlx5_1 ");
}

TEST_CASE("catalog: the cube mesh of the DGX-1 is that of its white paper") {
  const Topology topology = catalog_cluster("dgx-1v");
  std::map<std::set<std::string>, int> links;
  std::map<std::string, int> sums;
  for (const auto& link : topology.links) {
    links[{link.a.substr(link.a.size() - 1), link.b.substr(link.b.size() - 1)}] = link.count;
    for (const auto& end : {link.a, link.b}) sums[end] += link.count;
  }
  for (const auto& [gpu, sum] : sums) CHECK(sum == 6);
  CHECK(links.size() == 16);
  CHECK(links[{"0", "3"}] == 2);
  CHECK(links[{"0", "4"}] == 2);
  CHECK(links[{"2", "6"}] == 1);
  CHECK_FALSE(links.contains({"0", "5"}));
  CHECK_FALSE(links.contains({"3", "4"}));
  // The four GPUs of each CPU are all linked to each other.
  for (const char* first : {"0123", "4567"})
    for (int a = 0; a < 4; ++a)
      for (int b = a + 1; b < 4; ++b)
        CHECK(links.contains({std::string(1, first[a]), std::string(1, first[b])}));
}

TEST_CASE("catalog: ports of one adapter share it, in every copy its own") {
  const Topology topology = catalog_cluster("oci-h100x2");
  std::map<std::string, int> ports;
  for (const auto& nic : topology.nics) ++ports[nic.adapter];
  CHECK(ports.size() == 16);
  for (const auto& [adapter, count] : ports) CHECK(count == 2);
}

TEST_CASE("catalog: each rack is a separate fabric") {
  const Topology topology = catalog_cluster("gb200-nvl72x2");
  CHECK(topology.hosts.size() == 36);
  CHECK(topology.hosts[5].id == "gb200-nvl72-0-t05");
  CHECK(topology.hosts[35].id == "gb200-nvl72-1-t17");
  CHECK(island_sizes(topology) == std::vector<std::size_t>{72, 72});
  std::set<std::string> clusters, switches;
  for (const auto& gpu : topology.gpus)
    clusters.emplace(atoll::get_fact(gpu.facts, atoll::fact::fabric_cluster));
  for (const auto& link : topology.links) switches.insert(link.b);
  CHECK(clusters == std::set<std::string>{"a7011000-0000-4000-8000-000000000001",
                                          "a7011000-0000-4000-8000-000000000002"});
  CHECK(switches == std::set<std::string>{"rack:gb200-nvl72-0", "rack:gb200-nvl72-1"});
}

TEST_CASE("catalog: the names that providers use are accepted, in any case") {
  for (const auto& [type, entry] : {std::pair{"p4d.24xlarge", "aws-p4d"},
                                    {"p5.48xlarge", "aws-p5"},
                                    {"a3-megagpu-8g", "gcp-a3-mega"},
                                    {"BM.GPU.H100.8", "oci-h100"},
                                    {"standard_nd96asr_v4", "azure-nd-a100-v4"},
                                    {"Standard_ND96isr_H100_v5", "azure-nd-h100-v5"}})
    CHECK(catalog_cluster(type).hosts[0].id == entry);
  CHECK(catalog_cluster("a3-megagpu-8gx2").hosts[1].id == "gcp-a3-mega-1");
}

TEST_CASE("catalog: unknown names name the nearest entries") {
  const std::string unknown = std::string(name(ErrorCode::not_found)) + ": ";
  const std::string near = failure("hgx-h10");
  CHECK(near.starts_with(unknown));
  CHECK(
      atoll_test::has(near, {"\"hgx-h10\"", "hgx-h100", "hgx-h200", "atoll-topo --cluster list"}));
  CHECK_FALSE(contains(near, "gcp-a3-mega"));
  CHECK(contains(failure("hgxh100x16"), "similar names: hgx-h100"));
  // Parts of the names that providers use, and names of machines that the catalog lacks.
  CHECK(contains(failure("ND96isr_H100_v5x4"), "similar names: azure-nd-h100-v5;"));
  CHECK(contains(failure("a3-highgpu-8g"), "similar names: gcp-a3-mega;"));
  CHECK(contains(failure("p5e.48xlarge"), "similar names: aws-p5;"));
  CHECK(contains(failure("azure"), "similar names: azure-nd-a100-v4, azure-nd-h100-v5;"));
  for (const char* odd : {"", "x", "x4", "hgx-h100x", "hgx-h100 x2", "hgx-h100x-1", "hgx-h100x2x2"})
    CHECK(failure(odd).starts_with(unknown));
  const std::string hostile = failure(std::string(1'000'000, '\x1b'));
  CHECK(hostile.starts_with(unknown));
  CHECK(hostile.size() < 220);
  CHECK_FALSE(contains(hostile, "\x1b"));
}

TEST_CASE("catalog: a cluster has at least one and at most 65,536 hosts, each with its number") {
  CHECK(catalog_cluster("hgx-h100").hosts[0].id == "hgx-h100");
  CHECK(catalog_cluster("hgx-h100x1").hosts[0].id == "hgx-h100-0");
  CHECK(atoll::load_topology("hgx-h100x2").gpus.size() == 16);
  for (const char* cluster : {"hgx-h100x0", "hgx-h100x65537", "gb200-nvl72x3641",
                              "hgx-h100x99999999999999999999999999"}) {
    CHECK(failure(cluster).starts_with(name(ErrorCode::invalid_argument)));
    CHECK(contains(failure(cluster), cluster));
  }
  CHECK(contains(failure("gb200-nvl72x3641"), "1 to 3640"));
  CHECK(catalog_cluster("a100-4x4096").gpus.size() == 16384);
}
