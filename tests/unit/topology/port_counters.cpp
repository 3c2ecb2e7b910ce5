// Tests of the comparison of port counters before and after a run.
#include <doctest/doctest.h>

#include "facts.hpp"
#include "unit/topology/machines.hpp"

using atoll::compare_ports;
using atoll::Finding;
using atoll::Severity;
using atoll::Topology;
using machines::contains;
namespace fact = atoll::fact;
using Strings = std::vector<std::string>;

namespace {

// Two hosts with `ports` ports each, all of whose counters are 0.
Topology ports(const std::string& layer, int ports = 1) {
  Topology topology = machines::cpus(2);
  for (const char* host : {"a", "b"})
    for (int port = 0; port < ports; ++port) {
      atoll::TopologyNic& nic =
          machines::add_nic(topology, host, 400, "mlx5_" + std::to_string(port));
      nic.layer = layer;
      nic.facts = {{std::string(fact::errors), "none"}, {std::string(fact::congestion), "none"}};
    }
  return topology;
}

void set(Topology& topology, std::size_t nic, std::string_view fact, const std::string& counts) {
  topology.nics[nic].facts[std::string(fact)] = counts;
}

Finding the_finding(const Topology& before, const Topology& after) {
  const auto findings = compare_ports(before, after);
  REQUIRE(findings.size() == 1);
  return findings[0];
}

}  // namespace

TEST_CASE("port counters: what rose, how bad it is, and what to do") {
  struct {
    const char* layer;
    std::string_view fact;
    const char *counts, *id;
    Severity severity;
    const char* fix;  // a part of it
  } const cases[] = {
      {"infiniband", fact::errors, "port_rcv_errors 1", "errors_rose", Severity::warning,
       "mlxlink -d mlx5_0 -p 1 -c"},
      {"ethernet", fact::congestion, "packet_seq_err 2", "packets_lost", Severity::warning,
       "mlnx_qos -i $(ls /sys/class/infiniband/mlx5_0/device/net)"},
      {"infiniband", fact::congestion, "implied_nak_seq_err 1", "packets_lost", Severity::warning,
       "perfquery -x"},
      {"infiniband", fact::congestion, "port_xmit_discards 1", "packets_discarded",
       Severity::warning, "ibqueryerrors"},
      {"ethernet", fact::congestion, "port_xmit_discards 1", "packets_discarded", Severity::warning,
       "pause frames"},
      {"ethernet", fact::congestion, "np_cnp_sent 999", "fabric_congested", Severity::info,
       "each rail to one leaf switch"},
      {"ethernet", fact::congestion, "rp_cnp_handled 1000", "fabric_congested", Severity::warning,
       "each rail to one leaf switch"},
      {"infiniband", fact::congestion, "rnr_nak_retry_err 999", "receiver_not_ready",
       Severity::info, "atoll-topo --top"},
      {"infiniband", fact::congestion, "rnr_nak_retry_err 1000", "receiver_not_ready",
       Severity::warning, "atoll-topo --top"},
      {"infiniband", fact::congestion, "port_xmit_wait 123456789012", "sender_waited",
       Severity::info, "atoll-topo --doctor"}};
  for (const auto& one : cases) {
    CAPTURE(one.counts);
    const Topology before = ports(one.layer);
    Topology after = before;
    set(after, 0, one.fact, one.counts);
    const Finding finding = the_finding(before, after);
    CHECK(finding.id == one.id);
    CHECK(finding.severity == one.severity);
    CHECK(finding.subjects == Strings{"a/mlx5_0"});
    std::string rise = one.counts;
    rise.insert(rise.find(' ') + 1, 1, '+');
    CHECK(finding.evidence == "during the run, a/mlx5_0: " + rise);
    CHECK_FALSE(finding.consequence.empty());
    CHECK(contains(finding.fix, one.fix));
  }
}

TEST_CASE("port counters: only what rose is shown, and the command names the port") {
  Topology before = ports("infiniband"), after = ports("infiniband");
  set(before, 0, fact::errors, "symbol_error 12, link_downed 3");
  set(after, 0, fact::errors, "symbol_error 20, link_downed 3, port_rcv_errors 1");
  CHECK(the_finding(before, after).evidence ==
        "during the run, a/mlx5_0: symbol_error +8, port_rcv_errors +1");
  before.nics[0].name = after.nics[0].name = "mlx5_0:2";
  CHECK(the_finding(before, after).fix.starts_with("mlxlink -d mlx5_0 -p 2 -c;"));
  before.nics[0].name = after.nics[0].name = "$(reboot)";
  CHECK(the_finding(before, after).fix.starts_with("mlxlink -d NAME -p 1 -c;"));
}

TEST_CASE("port counters: counters that fell, vanished or are unknown are no finding") {
  Topology before = ports("infiniband"), after = ports("infiniband");
  CHECK(compare_ports(before, after).empty());
  set(before, 0, fact::errors, "symbol_error 12");  // reset
  set(before, 1, fact::errors, "symbol_error 65535, link_downed 1");
  set(after, 1, fact::errors, "symbol_error 3");  // overflow
  CHECK(compare_ports(before, after).empty());
  after.nics[0].facts.clear();
  before.nics[1].facts.clear();
  CHECK(compare_ports(before, after).empty());
  before = after = ports("infiniband");
  set(after, 0, fact::errors, ", symbol_error -5, link_downed many,  , 7");
  CHECK(compare_ports(before, after).empty());
  // A port that only one of the two topologies contains is not compared.
  set(after, 0, fact::errors, "symbol_error 5");
  before.nics.erase(before.nics.begin());
  CHECK(compare_ports(before, after).empty());
  CHECK(compare_ports(after, before).empty());
}

TEST_CASE("port counters: the worst ports first, the others counted") {
  const Topology before = ports("infiniband", 3);
  Topology after = before;
  for (std::size_t nic = 0; nic < 5; ++nic)
    set(after, nic, fact::errors, "symbol_error " + std::to_string(nic + 1));
  after.hosts[1].name = "node";
  const Finding finding = the_finding(before, after);
  CHECK(finding.subjects == Strings{"b/mlx5_1", "b/mlx5_0", "a/mlx5_2", "a/mlx5_1", "a/mlx5_0"});
  CHECK(finding.evidence ==
        "during the run, node/mlx5_1: symbol_error +5; node/mlx5_0: symbol_error +4; a/mlx5_2: "
        "symbol_error +3; and 2 more");
}

TEST_CASE("port counters: RoCE and InfiniBand have separate findings, warnings stand first") {
  const Topology before = ports("infiniband", 2);
  Topology after = before;
  after.nics[2].layer = "ethernet";
  for (std::size_t nic = 0; nic < 3; ++nic)
    set(after, nic, fact::congestion, "port_xmit_discards " + std::to_string(nic + 1));
  const auto findings = compare_ports(before, after);
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].subjects == Strings{"a/mlx5_1", "a/mlx5_0"});
  CHECK(findings[1].subjects == Strings{"b/mlx5_0"});
  after = before;
  set(after, 0, fact::congestion, "np_cnp_sent 1, rnr_nak_retry_err 1000");
  const auto two = compare_ports(before, after);
  REQUIRE(two.size() == 2);
  CHECK(two[0].id + ' ' + two[1].id == "receiver_not_ready fabric_congested");
}
