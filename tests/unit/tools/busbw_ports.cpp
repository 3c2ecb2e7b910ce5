// Tests of the findings of atoll-busbw about network ports.
#include "report.hpp"

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <vector>

#include "atoll/topology.hpp"
#include "atoll/world.hpp"
#include "thread_ranks.hpp"

TEST_CASE("ports: findings as comments") {
  using atoll::Severity;
  const std::vector<atoll::Finding> findings{
      {"errors_rose", Severity::warning, {"a/mlx5_0"}, "symbol_error +8", "packets", "clean"},
      {"sender_waited", Severity::info, {"a/mlx5_0"}, "port_xmit_wait +9", "slow", ""}};
  CHECK(busbw::port_lines(findings) ==
        "# warning: symbol_error +8; packets; clean\n"
        "# info: port_xmit_wait +9; slow\n");
  CHECK(busbw::port_lines({}).empty());
}

TEST_CASE("ports: discovered on every host, without GPUs") {
  const std::array hosts{"a", "a", "b"};
  const auto body = [](atoll::World& world) {
    const auto ports = atoll::Topology::discover_ports(world);
    REQUIRE(ports.hosts.size() == 2);
    for (std::size_t host = 0; host < 2; ++host) {
      CHECK(ports.hosts[host].id == world.hosts()[host].id);
      CHECK(ports.hosts[host].name == world.hosts()[host].name);
    }
    CHECK(ports.gpus.empty());
  };
  atoll_test::run_thread_ranks(3, body, [&](atoll::Config& config) {
    config.host_id = hosts[static_cast<std::size_t>(config.rank)];
    config.rendezvous_timeout = config.timeout = std::chrono::seconds(20);
  });
}
