// Tests of the comparison of port counters before and after a run.
#include <doctest/doctest.h>

#include "facts.hpp"
#include "unit/unit/topology/machines.hpp"

using atoll::compare_ports;
using atoll::Finding;
using atoll::Severity;
using atoll::Topology;
namespace fact = atoll::fact;
using Strings = std::vector<std::string>;

namespace {

// Two hosts with `ports` ports each, all of whose counters are 0.
Topology ports(const std::string& layer, int ports = 1) {
  Topology topology = machines::cpus(2);
  for (const char* host : {"a", "b"})
    for (int port = 0; port < ports; ++port) {
      topology.nics.push_back({.id = std::string(host) + "/mlx5_" + std::to_string(port),
                               .host = host,
                               .name = "mlx5_" + std::to_string(port),
                               .busid = "",
                               .adapter = "",
                               .layer = layer,
                               .state = "active",
                               .rate_gbit_s = 400,
                               .evidence = "test"});
      topology.nics.back().facts = {{std::string(fact::errors), "none"},
                                    {std::string(fact::congestion), "none"}};
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

TEST_CASE("port counters: errors that rose") {
  Topology before = ports("infiniband"), after = ports("infiniband");
  set(before, 0, fact::errors, "symbol_error 12, link_downed 3");
  set(after, 0, fact::errors, "symbol_error 20, link_downed 3, port_rcv_errors 1");
  set(before, 1, fact::errors, "symbol_error 7");
  set(after, 1, fact::errors, "symbol_error 7");
  Finding finding = the_finding(before, after);
  CHECK(finding.id == "errors_rose");
  CHECK(finding.severity == Severity::warning);
  CHECK(finding.subjects == Strings{"a/mlx5_0"});
  CHECK(finding.evidence == "during the run, a/mlx5_0: symbol_error +8, port_rcv_errors +1");
  CHECK(finding.consequence ==
        "packets are sent again or lost, because a cable, transceiver or port is bad");
  CHECK(finding.fix ==
        "mlxlink -d mlx5_0 -p 1 -c; clean or change the cable, then the transceiver");
  before.nics[0].name = after.nics[0].name = "mlx5_0:2";
  CHECK(the_finding(before, after).fix ==
        "mlxlink -d mlx5_0 -p 2 -c; clean or change the cable, then the transceiver");
  before.nics[0].name = after.nics[0].name = "$(reboot)";
  CHECK(the_finding(before, after).fix ==
        "mlxlink -d NAME -p 1 -c; clean or change the cable, then the transceiver");
}

TEST_CASE("port counters: counters that fell, vanished or are unknown are no finding") {
  Topology before = ports("infiniband"), after = ports("infiniband");
  CHECK(compare_ports(before, after).empty());
  set(before, 0, fact::errors, "symbol_error 12");  // reset
  set(before, 1, fact::errors, "symbol_error 65535, link_downed 1");
  set(after, 1, fact::errors, "symbol_error 3");  // overflow
  CHECK(compare_ports(before, after).empty());
  after.nics[0].facts.clear();
  CHECK(compare_ports(before, after).empty());
  before.nics[1].facts.clear();
  CHECK(compare_ports(before, after).empty());
  before = ports("infiniband");
  after = ports("infiniband");
  set(before, 0, fact::errors, "symbol_error");
  set(after, 0, fact::errors, ", symbol_error -5, link_downed many,  , 7");
  CHECK(compare_ports(before, after).empty());
  // A port that is in one of both topologies only.
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

TEST_CASE("port counters: packets that were lost, on RoCE and on InfiniBand") {
  Topology before = ports("ethernet"), after = before;
  set(after, 0, fact::congestion, "out_of_sequence 3, packet_seq_err 2, local_ack_timeout_err 1");
  Finding finding = the_finding(before, after);
  CHECK(finding.id == "packets_lost");
  CHECK(finding.severity == Severity::warning);
  CHECK(finding.evidence ==
        "during the run, a/mlx5_0: out_of_sequence +3, packet_seq_err +2, "
        "local_ack_timeout_err +1");
  CHECK(finding.consequence == "packets were lost or overtook each other, and were sent again");
  CHECK(finding.fix ==
        "give RoCE one priority with PFC and ECN on all NICs and switch ports: mlnx_qos -i $(ls "
        "/sys/class/infiniband/mlx5_0/device/net); look for discards on the switches");
  before = after = ports("infiniband");
  set(after, 0, fact::congestion, "implied_nak_seq_err 1");
  finding = the_finding(before, after);
  CHECK(finding.id == "packets_lost");
  CHECK(finding.fix ==
        "find errors and discards on the way of the packets: ibqueryerrors; perfquery -x");
}

TEST_CASE("port counters: ports of RoCE and of InfiniBand have separate findings") {
  const Topology before = ports("infiniband", 2);
  Topology after = before;
  after.nics[2].layer = "ethernet";
  for (std::size_t nic = 0; nic < 3; ++nic)
    set(after, nic, fact::congestion, "port_xmit_discards " + std::to_string(nic + 1));
  const auto findings = compare_ports(before, after);
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].id == "packets_discarded");
  CHECK(findings[0].severity == Severity::warning);
  CHECK(findings[0].subjects == Strings{"a/mlx5_1", "a/mlx5_0"});
  CHECK(findings[0].evidence ==
        "during the run, a/mlx5_1: port_xmit_discards +2; a/mlx5_0: port_xmit_discards +1");
  CHECK(findings[0].consequence == "the port discarded packets, because it was down or congested");
  CHECK(findings[0].fix ==
        "find a link that went down (dmesg) or a congested switch port (ibqueryerrors)");
  CHECK(findings[1].subjects == Strings{"b/mlx5_0"});
  CHECK(findings[1].fix ==
        "find a link that went down (dmesg) or a congested switch port (its counters of discards "
        "and pause frames)");
}

TEST_CASE("port counters: congestion is a warning if there was much of it") {
  const Topology before = ports("ethernet");
  Topology after = before;
  set(after, 0, fact::congestion, "np_ecn_marked_roce_packets 999, np_cnp_sent 40");
  Finding finding = the_finding(before, after);
  CHECK(finding.id == "fabric_congested");
  CHECK(finding.severity == Severity::info);
  CHECK(finding.evidence ==
        "during the run, a/mlx5_0: np_ecn_marked_roce_packets +999, np_cnp_sent +40");
  CHECK(finding.consequence == "queues in switches grew, and senders slowed down");
  CHECK(finding.fix ==
        "spread flows over the links between switches (adaptive routing, ECMP), connect each rail "
        "to one leaf switch, and look for other jobs on these links");
  set(after, 1, fact::congestion, "rp_cnp_handled 1000");
  finding = the_finding(before, after);
  CHECK(finding.severity == Severity::warning);
  CHECK(finding.subjects == Strings{"b/mlx5_0", "a/mlx5_0"});
}

TEST_CASE("port counters: waiting senders and receivers, warnings before information") {
  const Topology before = ports("infiniband");
  Topology after = before;
  set(after, 0, fact::congestion, "rnr_nak_retry_err 10, port_xmit_wait 123456789012");
  auto findings = compare_ports(before, after);
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].id == "receiver_not_ready");
  CHECK(findings[0].severity == Severity::info);
  CHECK(findings[0].evidence == "during the run, a/mlx5_0: rnr_nak_retry_err +10");
  CHECK(findings[0].consequence == "the port waited for receivers that had no buffer ready");
  CHECK(findings[0].fix ==
        "find the slow ranks among those that this port sends to: atoll-topo --top");
  CHECK(findings[1].id == "sender_waited");
  CHECK(findings[1].severity == Severity::info);
  CHECK(findings[1].evidence == "during the run, a/mlx5_0: port_xmit_wait +123456789012");
  CHECK(findings[1].consequence ==
        "the port had data to send, but a receiver or a switch was slow; the length of a tick "
        "depends on the adapter, so compare ports and runs");
  CHECK(findings[1].fix ==
        "find slow receivers (atoll-topo --doctor) and congested switch ports (ibqueryerrors)");
  set(after, 0, fact::congestion, "np_cnp_sent 1, rnr_nak_retry_err 1000");
  findings = compare_ports(before, after);
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].id == "receiver_not_ready");
  CHECK(findings[0].severity == Severity::warning);
  CHECK(findings[1].id == "fabric_congested");
}
