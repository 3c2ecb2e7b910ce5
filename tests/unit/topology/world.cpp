// Tests of the topology functions that need a World: meshes and discovery.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>

#include "atoll/mesh.hpp"
#include "comm/placement/rank_environment.hpp"
#include "thread_ranks.hpp"
#include "unit/captured_tree.hpp"
#include "unit/topology/machines.hpp"

using atoll::Error;
using atoll::Mesh;
using atoll::MeshShape;
using atoll::parse_mesh;
using atoll::Topology;
using atoll::World;

namespace {

// Runs `body` on `size` ranks, which are threads. Local ranks start at `first_local_rank`; without
// it, the library chooses them. An exception in any rank fails the test.
void on_ranks(int size, int islands, const std::function<void(World&)>& body,
              std::optional<int> first_local_rank = {}) {
  atoll_test::run_thread_ranks(size, body, [&](atoll::Config& config) {
    config.rendezvous_timeout = config.timeout = std::chrono::seconds(20);
    config.islands = islands;
    if (first_local_rank) config.local_rank = *first_local_rank + config.rank;
  });
}

}  // namespace

TEST_CASE("mesh: its text") {
  CHECK(parse_mesh("2x4") == MeshShape{2, 4});
  CHECK(parse_mesh("1x1") == MeshShape{1, 1});
  for (const char* text : {"", "x", "2x", "x4", "2X4", "2x4x1", "0x4", "2x-4", " 2x4", "2x4 ",
                           "2 x 4", "99999999999x1", "100000x100000", "two"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_mesh(text), Error);
  }
  CHECK_THROWS_WITH(parse_mesh("2by4"),
                    "\"2by4\" is not a mesh: write replicate x shard, as in 2x4");
}

TEST_CASE("mesh: a world of one") {
  World world = World::single();
  const Topology topology = Topology::discover(world);
  REQUIRE(topology.hosts.size() == 1);
  CHECK(topology.hosts[0].id == world.hosts()[0].id);
  CHECK(topology.hosts[0].name == world.hosts()[0].name);

  const Mesh mesh = Mesh::plan(topology, world);
  CHECK(mesh.shape() == MeshShape{1, 1});
  CHECK(mesh.to_string() == "1x1");
  CHECK(mesh.reason() == "one rank: nothing to shard or replicate over");
  for (const char* name : {"shard", "replicate", "world"}) {
    const atoll::Axis& axis = mesh.axis(name);
    CHECK(axis.world == &world);
    CHECK(axis.name == name);
    CHECK(axis.ranks == std::vector<int>{0});
    CHECK(axis.index == 0);
  }
  CHECK_THROWS_AS(mesh.axis("pipeline"), Error);
}

TEST_CASE("mesh: four ranks find one host and lay two emulated islands on it") {
  on_ranks(4, 2, [](World& world) {
    const Topology topology = Topology::discover(world);
    CHECK(topology.hosts.size() == 1);
    CHECK(Topology::discover(world).to_json() == topology.to_json());
    const int rank = world.rank();
    const Mesh mesh = Mesh::plan(topology, world);
    CHECK(mesh.to_string() == "2x2");
    CHECK(mesh.findings().empty());
    CHECK(mesh.axis("shard").ranks == std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1});
    CHECK(mesh.axis("shard").index == rank % 2);
    CHECK(mesh.axis("replicate").ranks == std::vector<int>{rank % 2, rank % 2 + 2});
    CHECK(mesh.axis("replicate").index == rank / 2);
    CHECK(mesh.axis("world").ranks == std::vector<int>{0, 1, 2, 3});
    CHECK(mesh.axis("world").index == rank);
    CHECK(mesh.axis("shard").rate.is_known());
    CHECK(mesh.axis("replicate").rate.latency_us > mesh.axis("shard").rate.latency_us);
    const Mesh crossing = Mesh::make(world, {1, 4}, topology);
    CHECK(crossing.findings().size() == 1);
    CHECK(crossing.axis("shard").size() == 4);
    CHECK(crossing.axis("shard").rate.gbyte_s == mesh.axis("world").rate.gbyte_s);
    CHECK_FALSE(Mesh::make(world, {1, 4}).axis("shard").rate.is_known());
  });
}

TEST_CASE("topology: the lowest rank of a host discovers it, whatever its local rank is") {
  const auto check = [](World& world) {
    const Topology topology = Topology::discover(world);
    REQUIRE(topology.hosts.size() == 1);
    CHECK(topology.hosts[0].id == world.hosts()[0].id);
  };
  on_ranks(2, 0, check, 1);
  on_ranks(2, 0, check, 0);
}

TEST_CASE("topology: ports are discovered on every host, without GPUs") {
  const auto body = [](World& world) {
    const Topology ports = Topology::discover_ports(world);
    REQUIRE(ports.hosts.size() == 2);
    for (std::size_t host = 0; host < 2; ++host)
      CHECK(ports.hosts[host].id == world.hosts()[host].id);
    CHECK(ports.gpus.empty());
  };
  atoll_test::run_thread_ranks(3, body, [](atoll::Config& config) {
    config.rendezvous_timeout = config.timeout = std::chrono::seconds(20);
    config.host_id = config.rank == 2 ? "b" : "a";
  });
}

TEST_CASE("mesh: the ranks' GPUs are those of their host") {
  on_ranks(3, 0, [](World& world) {
    // The topology gives this host two linked GPUs, but the job has three ranks.
    Topology topology;
    machines::add_host(topology, world.hosts()[0].id, 2, atoll::IslandState::known);
    machines::join_all(topology, world.hosts()[0].id, {0, 1});
    const Mesh mesh = Mesh::plan(topology, world);
    CHECK(mesh.to_string() == "1x3");
    CHECK(machines::mentions(mesh.findings(), "(2 ranks), host "));
  });
}

TEST_CASE("mesh: by hand") {
  World world = World::single();
  CHECK(Mesh::make(world, {1, 1}).reason() == "the user requested 1x1");
  CHECK(Mesh::make(world, {1, 1}, Topology{}).findings().empty());
  CHECK_THROWS_WITH(Mesh::make(world, {1, 2}), "a mesh of 1x2 does not fit a world of 1 ranks");
  CHECK_THROWS_AS(Mesh::make(world, {-1, -1}), Error);
}

TEST_CASE("ranks: what a process may use, and the word of it on its way") {
  const machines::CapturedTree tree;
  const std::string gpus = "proc/driver/nvidia/gpus/0000:";
  tree.write(gpus + "1b:00.0/information", "Model: x\nDevice Minor: \t 0\n");
  tree.write(gpus + "43:00.0/information", "Model: x\nDevice Minor: \t 1\n");
  tree.write("dev/nvidia1", "");
  tree.write("sys/devices/system/cpu/online", "0-63\n");
  tree.write("sys/devices/system/node/node0/cpulist", "\n");
  tree.write("sys/devices/system/node/node3/cpulist", "0-63\n");
  const atoll::EnvironmentRoots roots{
      .proc = tree.path("proc"), .dev = tree.path("dev"), .sys = tree.path("sys")};
  setenv("CUDA_VISIBLE_DEVICES", "3,GPU-\"5\"", 1);
  setenv("SLURM_JOB_ID", "1", 1);
  const atoll::RankEnvironment seen = atoll::look_around(roots);
  unsetenv("SLURM_JOB_ID");
  unsetenv("CUDA_VISIBLE_DEVICES");
  CHECK(seen.has_visible);
  CHECK(seen.visible == "3,GPU-\"5\"");
  CHECK(seen.allowed_busids == std::vector<std::string>{"0000:43:00.0"});
  CHECK(seen.numa == 3);
  const atoll::RankEnvironment told = atoll::rank_environment_from(to_text(seen));
  CHECK(to_text(told) == to_text(seen));
  CHECK(told.numa == 3);
  CHECK_THROWS_AS(atoll::rank_environment_from("{\"visible\": 7}"), Error);
  CHECK_FALSE(atoll::look_around(roots).has_visible);
}
