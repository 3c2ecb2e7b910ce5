// Tests how the GPU is found that each rank of a job uses.
#include <doctest/doctest.h>

#include <algorithm>

#include "unit/topology/machines.hpp"

using atoll::Error;
using atoll::RankEnvironment;
using atoll::RankSite;
using atoll::Topology;
using machines::gpu;

namespace {

// Returns two hosts with four GPUs each. GPU numbers are in the reverse order of bus ids, so gpu3
// has the lowest bus id.
Topology four() {
  Topology topology;
  for (const std::string host : {"a", "b"}) {
    machines::add_host(topology, host, 4);
    for (int i = 0; i < 4; ++i) {
      atoll::TopologyGpu& one =
          topology.gpus[topology.gpus.size() - 4 + static_cast<std::size_t>(i)];
      one.busid = "00000000:" + std::to_string(40 - 10 * i) + ":00.0";
      one.uuid = "GPU-" + host + std::to_string(i) + "c0ffee-0000-0000-0000-000000000000";
    }
  }
  return topology;
}

RankEnvironment environment(const std::string& host, int local_rank) {
  return {.host = host, .local_rank = local_rank, .visible = ""};
}

RankEnvironment seeing(const std::string& host, int local_rank, const std::string& visible) {
  RankEnvironment rank = environment(host, local_rank);
  rank.visible = visible;
  rank.has_visible = true;
  return rank;
}

std::vector<std::string> gpus(const Topology& topology, const std::vector<RankEnvironment>& ranks) {
  std::vector<std::string> result;
  for (const RankSite& site : resolve_ranks(topology, ranks)) result.push_back(site.gpu);
  return result;
}

// Returns the GPU of the only rank on host a, if CUDA_VISIBLE_DEVICES is `visible`.
std::string first(const Topology& topology, const std::string& visible) {
  return gpus(topology, {seeing("a", 0, visible)})[0];
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("ranks: without settings the local rank counts in the order of the bus") {
  const Topology topology = four();
  std::vector<RankEnvironment> ranks;
  for (int i = 0; i < 5; ++i) ranks.push_back(environment("a", i));
  ranks.push_back(environment("b", 0));
  ranks.push_back(environment("nowhere", 0));
  CHECK(gpus(topology, ranks) == Names{"a/gpu3", "a/gpu2", "a/gpu1", "a/gpu0", "", "b/gpu3", ""});
  // The order in which the ranks are listed does not matter.
  std::ranges::reverse(ranks);
  CHECK(gpus(topology, ranks) == Names{"", "b/gpu3", "", "a/gpu0", "a/gpu1", "a/gpu2", "a/gpu3"});
}

TEST_CASE("ranks: CUDA_VISIBLE_DEVICES by number") {
  const Topology topology = four();
  const std::string all = "2,0,3";
  CHECK(gpus(topology, {seeing("a", 0, all), seeing("a", 1, all), seeing("a", 2, all),
                        seeing("a", 3, all)}) == Names{"a/gpu1", "a/gpu3", "a/gpu0", ""});
  CHECK(first(topology, " 1 ") == "a/gpu2");
  // If CUDA_VISIBLE_DEVICES is set but empty, all GPUs are hidden.
  CHECK(first(topology, "").empty());
  CHECK(gpus(topology, {environment("a", 0)})[0] == "a/gpu3");
}

TEST_CASE("ranks: an invalid entry hides what follows it") {
  const Topology topology = four();
  for (const std::string invalid : {"-1", "4", "x", "0x1", "1.5", "", "99999999999999999999",
                                    "GPU-zz", "MIG-1", "NoDevFiles"}) {
    CAPTURE(invalid);
    CHECK(first(topology, invalid).empty());
    CHECK(first(topology, invalid + ",0").empty());
    const std::string list = "2," + invalid + ",0,1";
    // Only one GPU remains visible, and both ranks use it.
    CHECK(gpus(topology, {seeing("a", 0, list), seeing("a", 1, list)}) ==
          Names{"a/gpu1", "a/gpu1"});
  }
  // A GPU that is listed twice counts once, and its second entry ends the list.
  CHECK(gpus(topology, {seeing("a", 0, "2,1,2,0"), seeing("a", 1, "2,1,2,0"),
                        seeing("a", 2, "2,1,2,0")}) == Names{"a/gpu1", "a/gpu2", ""});
}

TEST_CASE("ranks: by UUID, whole or the beginning that tells one GPU") {
  const Topology topology = four();
  CHECK(first(topology, "GPU-a2c0ffee-0000-0000-0000-000000000000") == "a/gpu2");
  CHECK(first(topology, "GPU-a2") == "a/gpu2");
  CHECK(first(topology, "GPU-A2C0FFEE") == "a/gpu2");
  CHECK(first(topology, "GPU-a").empty());  // a prefix that four UUIDs share selects no GPU
  // A prefix of the UUID of another host's GPU selects no GPU.
  CHECK(first(topology, "GPU-b1").empty());
  CHECK(first(topology, "GPU-a2c0ffee-0000-0000-0000-0000000000000").empty());
  const std::string mixed = "GPU-a1,0,GPU-a2";
  CHECK(gpus(topology, {seeing("a", 0, mixed), seeing("a", 1, mixed), seeing("a", 2, mixed)}) ==
        Names{"a/gpu1", "a/gpu3", "a/gpu2"});
}

TEST_CASE("ranks: a UUID that several GPUs share tells none of them") {
  Topology topology = four();
  for (atoll::TopologyGpu& one : topology.gpus)
    one.uuid = "GPU-00000000-0000-0000-0000-000000000000";
  CHECK(first(topology, "GPU-00000000-0000-0000-0000-000000000000").empty());
  CHECK(first(topology, "2") == "a/gpu1");
  // A UUID that one GPU of each host has is still unique within each host.
  topology.gpus[1].uuid = topology.gpus[5].uuid = "GPU-11111111-0000-0000-0000-000000000000";
  CHECK(gpus(topology, {seeing("a", 0, "GPU-1"), seeing("b", 0, "GPU-1")}) ==
        Names{"a/gpu1", "b/gpu1"});
}

TEST_CASE("ranks: MIG instances") {
  Topology topology = four();
  topology.gpus[2].facts["mig"] = "yes";
  topology.gpus[2].partitions = {"MIG-5c1", "MIG-5c2"};
  const auto sites = resolve_ranks(
      topology, {seeing("a", 0, "MIG-5c2"), seeing("a", 1, "MIG-5c1"), seeing("a", 2, "1"),
                 seeing("a", 3, "GPU-a2"), seeing("a", 4, "MIG-5c"), seeing("b", 0, "MIG-5c1")});
  const auto uses = [&](std::size_t rank) { return sites[rank].gpu + " " + sites[rank].partition; };
  CHECK(uses(0) == "a/gpu2 MIG-5c2");
  CHECK(uses(1) == "a/gpu2 MIG-5c1");
  // The name of a whole GPU that is divided by MIG selects the first MIG instance of the GPU.
  CHECK(uses(2) == "a/gpu2 MIG-5c1");
  CHECK(uses(3) == "a/gpu2 MIG-5c1");
  CHECK(uses(4) == " ");
  CHECK(uses(5) == " ");
  // Older drivers write MIG-<GPU UUID>/<GPU instance>/<compute instance>. Such a name selects the
  // GPU, even if no source lists the instance.
  const auto old =
      resolve_ranks(topology, {seeing("a", 0, "MIG-" + topology.gpus[0].uuid + "/1/0")});
  CHECK(old[0].gpu == "a/gpu0");
  CHECK(old[0].partition == "MIG-" + topology.gpus[0].uuid + "/1/0");
}

TEST_CASE("ranks: HIP numbers the partitions of a divided GPU") {
  Topology topology;
  machines::add_host(topology, "a", 2);
  for (atoll::TopologyGpu& one : topology.gpus)
    one.partitions = {one.id + ".0", one.id + ".1", one.id + ".2"};
  std::vector<RankEnvironment> ranks;
  for (int i = 0; i < 6; ++i) ranks.push_back(environment("a", i));
  const auto sites = resolve_ranks(topology, ranks);
  CHECK(sites[2].gpu + ' ' + sites[2].partition == "a/gpu0 a/gpu0.2");
  CHECK(sites[3].gpu + ' ' + sites[3].partition == "a/gpu1 a/gpu1.0");
}

TEST_CASE("ranks: control groups renumber what they leave") {
  const Topology topology = four();
  RankEnvironment rank = environment("a", 0);
  // These are the bus ids of gpu3 and gpu1.
  rank.allowed_busids = {"00000000:10:00.0", "00000000:30:00.0"};
  CHECK(gpus(topology, {rank})[0] == "a/gpu3");
  rank.has_visible = true;
  rank.visible = "1";
  CHECK(gpus(topology, {rank})[0] == "a/gpu1");
  rank.visible = "2";
  CHECK(gpus(topology, {rank})[0].empty());
  rank.visible = "GPU-a0";
  CHECK(gpus(topology, {rank})[0].empty());
  // Other tools print bus ids with a shorter PCI domain or without a domain.
  rank.visible = "0";
  rank.allowed_busids = {"0000:30:00.0"};
  CHECK(gpus(topology, {rank})[0] == "a/gpu1");
  rank.allowed_busids = {"20:00.0"};
  CHECK(gpus(topology, {rank})[0] == "a/gpu2");
  // No GPU has the only allowed bus id, so the rank has no GPU.
  rank.allowed_busids = {"0000:99:00.0"};
  CHECK(gpus(topology, {rank})[0].empty());
}

TEST_CASE("ranks: as Slurm binds them, one GPU each or a set for several") {
  const Topology topology = four();
  std::vector<RankEnvironment> bound;
  for (int i = 0; i < 4; ++i) {
    bound.push_back(environment("a", i));
    bound.back().allowed_busids = {topology.gpus[static_cast<std::size_t>(i)].busid};
    bound.back().has_visible = true;
    bound.back().visible = "0";
  }
  CHECK(gpus(topology, bound) == Names{"a/gpu0", "a/gpu1", "a/gpu2", "a/gpu3"});
  // Ranks 0 and 1 see one set of GPUs, and ranks 2 and 3 see another set. The first rank of each
  // pair uses the first GPU of its set.
  CHECK(gpus(topology, {seeing("a", 0, "0,1"), seeing("a", 1, "0,1"), seeing("a", 2, "2,3"),
                        seeing("a", 3, "2,3")}) == Names{"a/gpu3", "a/gpu2", "a/gpu1", "a/gpu0"});
}

TEST_CASE("ranks: processor sets are carried") {
  RankEnvironment rank = environment("a", 0);
  rank.cpus = {0, 1, 8};
  rank.numa = 1;
  const RankSite site = resolve_ranks(four(), {rank}).at(0);
  CHECK(site.cpus == std::vector<int>{0, 1, 8});
  CHECK(site.numa == 1);
}

TEST_CASE("ranks: as a launcher fills hosts") {
  Topology topology = machines::hgx(2);
  machines::add_host(topology, "login");
  const auto ranks = fill_hosts(topology, 10);
  REQUIRE(ranks.size() == 10);
  CHECK(ranks[7].gpu == "a/gpu7");
  CHECK(ranks[9].gpu == "b/gpu1");
  CHECK(fill_hosts(topology, 0).size() == 16);
  for (const int count : {17, -1}) CHECK_THROWS_AS(fill_hosts(topology, count), Error);
  CHECK_THROWS_AS(fill_hosts(machines::cpus(1), 0), Error);
  CHECK_THROWS_AS(fill_hosts(Topology{}, 2), Error);

  const auto uneven = fill_hosts(machines::cpus(3), 8);
  REQUIRE(uneven.size() == 8);
  CHECK(std::ranges::count(uneven, "a", &RankSite::host) == 2);
  CHECK(std::ranges::count(uneven, "c", &RankSite::host) == 3);

  // If a host has more ranks than GPUs, the remaining ranks compute on the CPU.
  const auto mixed = assign_gpus(topology, std::vector<std::string>(9, "b"));
  CHECK(mixed[7].gpu == "b/gpu7");
  CHECK(mixed[8].gpu.empty());
}
