// Tests of the link test of atoll-busbw: its plan, its table, and the errors of a wrong call. The
// test itself needs RDMA devices (tests/vm).
#include "link.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "atoll/error.hpp"
#include "documents.hpp"
#include "ports.hpp"
#include "thread_ranks.hpp"

using atoll::World;
using busbw::MeasuredLink;
using busbw::Options;

namespace {

// Runs `body` on ranks that are threads; rank i runs on the emulated host hosts[i].
void on_hosts(const std::vector<std::string>& hosts, const std::function<void(World&)>& body) {
  atoll_test::run_thread_ranks(static_cast<int>(hosts.size()), body, [&](atoll::Config& config) {
    config.host_id = hosts[static_cast<std::size_t>(config.rank)];
    config.rendezvous_timeout = config.timeout = std::chrono::seconds(20);
  });
}

Options options_for(const std::string& link) {
  Options options;
  options.link = link;
  options.min_bytes = 8;
  options.max_bytes = 128;
  options.step_factor = 4;
  options.iterations = 50;
  return options;
}

}  // namespace

TEST_CASE("link: from rank 0 to the first rank of another host") {
  on_hosts({"a", "a", "b", "c"}, [](World& world) {
    const auto test = plan_link(world, options_for("mlx5_0"));
    CHECK(test.ranks == std::array{0, 2});
    CHECK(test.ports == std::array<std::string, 2>{"mlx5_0", "mlx5_0"});
    CHECK(test.sizes == std::vector<std::uint64_t>{8, 32, 128});
    CHECK(test.iterations == 50);
  });
  on_hosts({"a", "a"}, [](World& world) {
    const auto test = plan_link(world, options_for("mlx5_0,mlx5_1:2"));
    CHECK(test.ranks == std::array{0, 1});
    CHECK(test.ports == std::array<std::string, 2>{"mlx5_0", "mlx5_1:2"});
  });
}

TEST_CASE("link: one rank is too few") {
  World world = World::single();
  CHECK_THROWS_WITH_AS(plan_link(world, options_for("mlx5_0")),
                       "--link needs two ranks: start one on each host (mpirun -n 2)",
                       atoll::Error);
  CHECK_THROWS_WITH_AS(atoll::test_link(world, {.ports = {"a", "b"}, .sizes = {8}}),
                       "link test: there is no rank 1 in a job of 1: start two ranks, one on each "
                       "host",
                       atoll::Error);
}

TEST_CASE("link: every rank learns that a port does not exist") {
  on_hosts({"a", "b", "c"}, [](World& world) {
    atoll::LinkTest test{.ports = {"none_0", "none_1"}, .sizes = {8}};
    std::string what;
    try {
      test_link(world, test);
    } catch (const atoll::Error& error) {
      what = error.what();
    }
    // Without libibverbs, or without a device, no backend can test a link.
    const bool names_backends = what.find("no usable backend can test a link") != std::string::npos;
    const bool names_port = what.find("there is no RDMA device none_") != std::string::npos;
    CHECK_MESSAGE((names_backends || names_port), what);
    const auto all = world.exchange("what", what);
    for (const auto& other : all) CHECK(other == what);
  });
}

TEST_CASE("link: the table") {
  World world = World::single();
  MeasuredLink link;
  link.test.ranks = {0, 0};
  link.report = {"verbs",
                 {"mlx5_0 port 1", "mlx5_1 port 1"},
                 {{8, 0.032, 1.5, 2.25}, {1 << 20, 47.5, 25.0, 26.0}}};
  link.port_gbyte_s = 50;
  const std::string host = world.hosts()[0].name;
  CHECK(link_lines(world, link) ==
        "# Raw RDMA writes with the backend verbs; 1 GB/s = 1e9 bytes per second\n"
        "# from rank 0 on " +
            host +
            ": mlx5_0 port 1\n"
            "# to   rank 0 on " +
            host +
            ": mlx5_1 port 1\n"
            "# The slower port carries 50 GB/s.\n"
            "#      bytes      GB/s    Gbit/s % of port   M writes/s   latency us       p99 us\n"
            "           8     0.032     0.256       0.1            4         1.50         2.25\n"
            "     1048576      47.5       380      95.0       0.0453        25.00        26.00\n");
  link.port_gbyte_s.reset();
  CHECK(link_lines(world, link).find("# The topology does not know the rate of these ports.\n") !=
        std::string::npos);
}

TEST_CASE("ports: findings as comments and as JSON") {
  MeasuredLink link;
  link.findings = {
      {"errors_rose",
       atoll::Severity::warning,
       {"a/mlx5_0"},
       "symbol_error +8",
       "packets",
       "clean"},
      {"sender_waited", atoll::Severity::info, {"a/mlx5_0"}, "port_xmit_wait +9", "slow", ""}};
  CHECK(busbw::port_lines(link.findings) ==
        "# warning: symbol_error +8; packets; clean\n"
        "# info: port_xmit_wait +9; slow\n");
  CHECK(busbw::port_lines({}).empty());
  const auto json = nlohmann::json::parse(busbw::to_json({}, link));
  REQUIRE(json.at("ports").size() == 2);
  CHECK(json.at("ports")[0] == nlohmann::json{{"id", "errors_rose"},
                                              {"severity", "warning"},
                                              {"subjects", {"a/mlx5_0"}},
                                              {"evidence", "symbol_error +8"},
                                              {"consequence", "packets"},
                                              {"fix", "clean"}});
}

TEST_CASE("ports: discovered on every host, without GPUs") {
  on_hosts({"a", "a", "b"}, [](World& world) {
    const auto ports = atoll::Topology::discover_ports(world);
    REQUIRE(ports.hosts.size() == 2);
    for (std::size_t host = 0; host < 2; ++host) {
      CHECK(ports.hosts[host].id == world.hosts()[host].id);
      CHECK(ports.hosts[host].name == world.hosts()[host].name);
    }
    CHECK(ports.gpus.empty());
  });
}
