// Tests of merge_views(), which merges several views of one host. These tests cover links and
// paths.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "unit/captured_tree.hpp"
#include "unit/topology/views.hpp"

namespace {

using machines::conflicts_of;
using machines::gpu;
using machines::islands_of;
using machines::link;
using machines::links_of;
using namespace views;

}  // namespace

TEST_CASE("views: known links go before unknown ones") {
  Topology a = view("a", 4), b = view("b", 4);
  switched(b, 18);
  for (const auto& node : {merge_two(a, b), merge_two(b, a)}) {
    CHECK(node.hosts[0].gpu_links == IslandState::known);
    CHECK(node.links.size() == 4);
    CHECK(node.conflicts.empty());
    CHECK(atoll::find_islands(node).size() == 1);
  }
  const Topology none = merge_two(a, view("b", 4, IslandState::none));
  CHECK(none.hosts[0].gpu_links == IslandState::none);
  CHECK(merge_two(a, a).hosts[0].gpu_links == IslandState::unknown);
}

TEST_CASE("views: links get their rates when another view knows the model") {
  Topology a = view("a", 4), b = view("b", 4);
  switched(a, 18);
  for (auto& one : a.gpus) one.model.clear();
  for (auto& one : b.gpus) one.model = "NVIDIA H100 80GB HBM3";
  CHECK(islands_of(merge_two(a, b)) == "4 known nvlink 450 450; ");
}

TEST_CASE("views: the same links in other words") {
  Topology one_switch = view("a", 4), four_switches = view("b", 4);
  switched(one_switch, 16);
  switched(four_switches, 16, 4);
  CHECK(merge_two(one_switch, four_switches).conflicts.empty());
  SUBCASE("a pair on a switch") {
    Topology pair = view("c", 2, IslandState::known), on_switch = view("d", 2);
    link(pair, gpu("c", 0), gpu("c", 1), 12);
    switched(on_switch, 12);
    CHECK(merge_two(pair, on_switch).conflicts.empty());
  }
  SUBCASE("the first view with rates is taken") {
    for (auto& each : four_switches.links) each.gbyte_s = 100;
    const Topology node = merge_two(one_switch, four_switches);
    CHECK(node.links.size() == 16);
    CHECK(node.links[0].gbyte_s == 100);
  }
  SUBCASE("rates without numbers") {
    for (auto& each : four_switches.links) {
      each.count = 1;
      each.gbyte_s = 100;
    }
    CHECK(conflict(merge_two(one_switch, four_switches), "node", "links"));
    for (auto& each : one_switch.links) each.gbyte_s = 400;
    CHECK(merge_two(one_switch, four_switches).conflicts.empty());
  }
}

TEST_CASE("views: links that differ are one conflict, in words") {
  Topology on_switch = view("a", 4), in_pairs = view("b", 4, IslandState::known);
  switched(on_switch, 18);
  link(in_pairs, gpu("b", 0), gpu("b", 1), 4);
  link(in_pairs, gpu("b", 2), gpu("b", 3), 4);
  const Topology node = merge_two(on_switch, in_pairs);
  CHECK(conflicts_of(node) ==
        "node links 4 GPUs on a switch, 18 links each (a.xml), not 2 times 2 GPUs joined directly, "
        "4 links each (b.txt); ");
  CHECK(node.links.size() == 4);
  const Topology other = merge_two(in_pairs, on_switch);
  CHECK(atoll::find_islands(other).size() == 2);
  const Topology denied = merge_two(view("a", 4, IslandState::none), in_pairs);
  CHECK(denied.hosts[0].gpu_links == IslandState::none);
  CHECK(denied.links.empty());
  CHECK(dispute(denied, "node", "links").starts_with("no links (a.xml)"));
  Topology degraded = view("b", 4);  // one GPU has fewer links
  switched(degraded, 18).links[2].count = 16;
  CHECK(dispute(merge_two(on_switch, degraded), "node", "links")
            .ends_with("4 GPUs on a switch, 16 to 18 links each (b.txt)"));
}

TEST_CASE("views: links are compared on the GPUs that both views show") {
  Topology some = view("a", 4), all = view("b", 8);
  switched(some, 18);
  switched(all, 18);
  const Topology node = merge_two(some, all);
  CHECK(conflict(node, "node", "links") == nullptr);
  // The links include those of the four GPUs that only `all` contains.
  CHECK(node.links.size() == 8);
  CHECK(islands_of(node) == "8 known nvlink - -; ");
  CHECK(conflict(merge_two(all, some), "node", "links") == nullptr);
}

TEST_CASE("views: GPUs of which nothing is known never pass for GPUs without links") {
  Topology some = view("a", 2), all = view("b", 4);
  switched(some, 18);
  SUBCASE("the host's links are then unknown") {
    const Topology node = merge_two(some, all);
    CHECK(node.links.empty());
    CHECK(dispute(node, "node", "links") ==
          "unknown for node/gpu2 and node/gpu3 (b.txt), not 2 GPUs on a switch, 18 links each "
          "(a.xml)");
    CHECK(islands_of(node) == "4 unknown - - -; ");
  }
  SUBCASE("neither does \"none\" of some GPUs hold for the others") {
    const Topology node = merge_two(view("a", 2, IslandState::none), all);
    CHECK(node.hosts[0].gpu_links == IslandState::unknown);
  }
  SUBCASE("unless the model has no connector") {
    for (auto& one : all.gpus) one.model = "Tesla T4";
    for (auto& one : some.gpus) one.model = "";
    const Topology node = merge_two(some, all);
    CHECK(node.hosts[0].gpu_links == IslandState::known);
    CHECK(atoll::find_islands(node).size() == 3);
  }
  SUBCASE("or the driver reports their fabric") {
    for (auto& one : all.gpus) {
      one.facts.emplace("fabric.state", "completed");
      one.facts.emplace("fabric.cluster", "00000001-0000-0000-0000-000000000001");
    }
    CHECK(merge_two(some, all).hosts[0].gpu_links == IslandState::known);
    for (auto& one : all.gpus) one.facts["fabric.cluster"] = "00000000-0000-0000-0000-000000000000";
    CHECK(merge_two(some, all).hosts[0].gpu_links == IslandState::unknown);
  }
}

TEST_CASE("views: links to CPUs are carried once") {
  Topology a = view("a", 1), b = view("b", 1);
  for (Topology* one : {&a, &b})
    for (int i = 0; i < 2; ++i)
      one->links.push_back({.a = one->hosts[0].id + "/gpu0",
                            .b = one->hosts[0].id + "/cpu0",
                            .type = "nvlink_cpu",
                            .gbyte_s = 25.0});
  b.links.push_back({.a = "b/cpu0", .b = "b/gpu0", .type = "pci", .gbyte_s = 32.0});
  const Topology node = merge_two(a, b);
  CHECK(links_of(node) ==
        "node/gpu0 - node/cpu0 nvlink_cpu 1 25; node/gpu0 - node/cpu0 nvlink_cpu 1 25; "
        "node/cpu0 - node/gpu0 pci 1 32; ");
  CHECK(node.hosts[0].gpu_links == IslandState::unknown);
}

TEST_CASE("views: paths are joined, and all that differ are one conflict") {
  using atoll::PathLevel;
  Topology a = view("a", 2), b = view("b", 2);
  add_nic(a, "mlx5_0");
  add_nic(b, "mlx5_0");
  a.paths = {{.a = "a/gpu0", .b = "a/mlx5_0", .level = PathLevel::pix},
             {.a = "a/gpu1", .b = "a/mlx5_0", .level = PathLevel::sys}};
  b.paths = {{.a = "b/mlx5_0", .b = "b/gpu0", .level = PathLevel::phb},
             {.a = "b/gpu1", .b = "b/mlx5_0", .level = PathLevel::phb},
             {.a = "b/gpu0", .b = "b/gpu1", .level = PathLevel::node}};
  const Topology node = merge_two(a, b);
  REQUIRE(node.paths.size() == 3);
  CHECK(node.paths[0].level == PathLevel::pix);
  CHECK(node.paths[2].b == "node/gpu1");
  CHECK(conflicts_of(node) ==
        "node paths node/mlx5_0 - node/gpu0: PIX (a.xml), not PHB; 1 more pair (b.txt); ");
}

TEST_CASE("views: NAME=FILE,FILE loads and merges") {
  const machines::CapturedTree folder;
  folder.write("matrix.txt",
               "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n"
               "GPU0\t X \tNV12\t0-7\t0\nGPU1\tNV12\t X \t8-15\t1\n");
  folder.write("log.xml",
               "<nvidia_smi_log>"
               "<gpu id=\"00000000:81:00.0\"><product_name>NVIDIA A100 80GB PCIe"
               "</product_name></gpu><gpu id=\"00000000:A1:00.0\"><product_name>"
               "NVIDIA A100 80GB PCIe</product_name></gpu></nvidia_smi_log>");
  const Topology node =
      atoll::load_topology("box=" + folder.path("matrix.txt") + "," + folder.path("log.xml"));
  CHECK(node.conflicts.empty());
  CHECK(machines::gpus_of(node) ==
        "box/gpu0 00000000:81:00.0 index 0 numa 0 NVIDIA A100 80GB PCIe; "
        "box/gpu1 00000000:a1:00.0 index 1 numa 1 NVIDIA A100 80GB PCIe; ");
  CHECK(islands_of(node) == "2 known nvlink 300 300; ");
}
