// Tests of the topology doctor, which finds faults in machines: the structure of a diagnosis, the
// report, and the checks of links between GPUs.
#include "unit/topology/doctor.hpp"

#include <set>

namespace fact = atoll::fact;
using atoll::diagnose;
using atoll::to_line;
using namespace machines;

TEST_CASE("diagnosis: every check has a unique id, a title, and a reason when it did not look") {
  for (const Topology& topology : {Topology{}, machines::cluster(2), machines::cpus(1)}) {
    const Diagnosis diagnosis = diagnose(topology);
    std::set<std::string> ids;
    for (const atoll::Check& check : diagnosis.checks) {
      CHECK(ids.insert(check.id).second);
      CHECK_FALSE(check.title.empty());
      CHECK((check.status == CheckStatus::not_checked) == !check.reason.empty());
    }
    CHECK(ids.size() == 52);
    for (const Finding& finding : diagnosis.findings) CHECK(ids.contains(finding.id));
  }
}

TEST_CASE("diagnosis: a machine without GPUs and NICs says so") {
  const Diagnosis diagnosis = diagnose(machines::cpus(1));
  CHECK(diagnosis.findings.empty());
  for (const char* id : {"nvlink_down", "mig", "throttle", "islands_unequal", "nic_far"})
    CHECK(state_of(diagnosis, id) == "no GPUs");
  CHECK(state_of(diagnosis, "link_errors") == "no NICs");
  CHECK(state_of(diagnosis, "pcie_width") == "no GPUs and no NICs");
  CHECK(state_of(diagnosis, "ranks_share_gpu") == "this is not a job: there are no ranks");
  CHECK(state_of(diagnosis, "mesh") == "no mesh");
}

TEST_CASE("diagnosis: what a source says of itself is the reason") {
  Topology topology = machines::cluster(1);
  topology.links.clear();
  topology.hosts[0].gpu_links = atoll::IslandState::unknown;
  CHECK(state_of(topology, "mig") == "no source provides mig");
  set_hosts(topology, "source.nvml", "libnvidia-ml.so.1 cannot be opened");
  set_hosts(topology, "source.sysfs_pci", "needs root");
  const Diagnosis diagnosis = diagnose(topology);
  CHECK(state_of(diagnosis, "mig") == "no NVML: libnvidia-ml.so.1 cannot be opened");
  CHECK(state_of(diagnosis, "nvlink_down") == "no NVML: libnvidia-ml.so.1 cannot be opened");
  CHECK(state_of(diagnosis, "acs") == "needs root");
}

TEST_CASE("diagnosis: errors stand first, then the order of the checks") {
  Topology topology = machines::cluster(1);
  set_gpus(topology, fact::persistence, "no");
  set_gpus(topology, fact::nvlink_errors, "7");
  set_gpus(topology, fact::fabric_state, "in_progress");
  set_gpus(topology, fact::mig, "yes");
  std::vector<std::string> ids;
  for (const Finding& finding : diagnose(topology).findings) ids.push_back(finding.id);
  CHECK(ids == Strings{"fabric_not_completed", "nvlink_errors", "mig", "persistence"});
}

TEST_CASE("diagnosis: equal findings of a cluster are one, and many different ones are folded") {
  Topology topology = machines::cluster(20, 8);
  set_gpus(topology, fact::persistence, "no");
  const Finding finding = the_finding(topology, "persistence");
  CHECK(finding.subjects.size() == 160);
  CHECK(finding.subjects.back() == "t/gpu7");
  for (std::size_t i = 0; i < topology.gpus.size(); ++i) {
    set(topology.gpus[i].facts, fact::power_limit_w, std::to_string(400 + i));
    set(topology.gpus[i].facts, fact::power_default_w, "700");
  }
  const auto many = found_in(diagnose(topology), "power_cap");
  REQUIRE(many.size() == 12);
  CHECK(many[0].evidence == "the power limit is 400 W, but 700 W by default");
  CHECK(many[11].evidence ==
        "149 more cases; the first: the power limit is 411 W, but 700 W by default");
  CHECK(many[11].subjects.size() == 149);
}

TEST_CASE("line: evidence, consequence and fix, on one line") {
  CHECK(to_line({.id = "x", .evidence = "seen"}) == "seen");
  CHECK(to_line({.id = "x", .evidence = "seen", .fix = "mend"}) == "seen; mend");
  CHECK(to_line({.id = "x", .evidence = "a\nb\x1b[31m", .consequence = "c", .fix = "d"}) ==
        "a b [31m; c; d");
}

TEST_CASE("report: groups, names, reasons and the sum") {
  Diagnosis diagnosis;
  const std::string host = "n0/6f0e1c2d-0000-4000-8000-000000000001/4026531840/";
  diagnosis.findings = {{"port_down",
                         Severity::error,
                         {host + "mlx5_1", host + "mlx5_2"},
                         "the port is down",
                         "7 of 8 are active",
                         "look at the cable"},
                        {"mig", Severity::warning, {"n1/gpu0"}, "MIG is on", "", ""},
                        {"mesh_uneven", Severity::info, {}, "8 + 7 + 1", "", ""}};
  diagnosis.checks = {{"port_down", "", CheckStatus::finding, ""},
                      {"mig", "", CheckStatus::finding, ""},
                      {"shm_small", "/dev/shm is large", CheckStatus::ok, ""},
                      {"throttle", "", CheckStatus::not_checked, "needs root"},
                      {"acs", "", CheckStatus::not_checked, "needs root"},
                      {"mtu_differs", "", CheckStatus::not_checked, "no source provides mtu"}};
  const std::string report = to_report(diagnosis);
  for (const char* part :
       {"error\n  port_down  n0/mlx5_1-2\n    seen    the port is down\n"
        "    costs   7 of 8 are active\n    fix     look at the cable\n",
        "\nwarning\n  mig  n1/gpu0\n", "\ninformation\n  mesh_uneven\n",
        "\n1 error, 1 warning, 1 info; 1 check ok, 3 not checked (-v says why)\n"})
    CHECK_MESSAGE(contains(report, part), report);
  CHECK(report.starts_with("3 findings, the most severe first\n\nerror\n"));
  // Only the last line has counts, and passed checks are listed only if that is asked for.
  CHECK(report.find("1 check ok") == report.rfind("1 check ok"));
  for (const char* part : {"shm_small", "throttle", "needs root"})
    CHECK_FALSE(contains(report, part));
  const std::string all = to_report(diagnosis, atoll::Colour::off, atoll::PassedChecks::listed);
  // The report does not name missing facts, because their names are internal.
  for (const char* part : {"\nok\n    shm_small: /dev/shm is large\nnot checked\n",
                           "    needs root\n      throttle, acs\n",
                           "    no source provides what a check needs\n      mtu_differs\n"})
    CHECK_MESSAGE(contains(all, part), all);
  CHECK(all.ends_with(" not checked\n"));
}

TEST_CASE("report: without a fault, the verdict says so, and why checks were not made") {
  Diagnosis diagnosis = diagnose(machines::cpus(1));
  CHECK(to_report(diagnosis).starts_with("nothing found that would make it slow; "));
  diagnosis.checks = {{"mig", "", CheckStatus::ok, ""},
                      {"nvlink_down", "", CheckStatus::not_checked, "no GPUs"},
                      {"mesh", "", CheckStatus::not_checked, "no mesh"},
                      {"acs", "", CheckStatus::not_checked, "needs root"}};
  diagnosis.findings = {{"rails_assumed", Severity::info, {}, "", "", ""}};
  CHECK(to_report(diagnosis).starts_with(
      "nothing found that would make it slow (1 info); 1 of 4 checks made; not made: 2 (no "
      "GPUs, NICs, ranks or the like to examine), 1 (facts are missing)\n\ninformation\n"));
}

TEST_CASE("report: colours only where they are asked for, and never those of a file") {
  Diagnosis diagnosis;
  diagnosis.findings = {{"mig", Severity::error, {"n\x1b[2J/gpu0"}, "bell \a", "", ""}};
  CHECK_FALSE(contains(to_report(diagnosis, atoll::Colour::off), "\x1b"));
  const std::string coloured = to_report(diagnosis, atoll::Colour::on);
  CHECK(contains(coloured, "\x1b[31merror\x1b[0m"));
  CHECK_FALSE(contains(coloured, "\x1b[2J"));
  CHECK_FALSE(contains(coloured, "\a"));
}

TEST_CASE("report: long lists of subjects are shortened, long lines broken") {
  Diagnosis diagnosis;
  Finding finding{.id = "mig", .severity = Severity::warning, .evidence = std::string()};
  for (const char* host : {"red", "green", "blue", "cyan", "pink", "grey", "black", "white"})
    finding.subjects.push_back(std::string(host) + "/gpu0");
  for (int i = 0; i < 60; ++i) finding.evidence += "word ";
  diagnosis.findings = {finding};
  const std::string report = to_report(diagnosis);
  CHECK(contains(report,
                 "red/gpu0, green/gpu0, blue/gpu0, cyan/gpu0, pink/gpu0, grey/gpu0 and 2 more"));
  for (std::size_t at = 0; at < report.size();) {
    const std::size_t end = std::min(report.find('\n', at), report.size());
    CHECK(end - at <= 100);
    at = end + 1;
  }
}

TEST_CASE("nvlink_down: fewer links than the chip has") {
  Topology topology = machines::cluster(1);
  set_gpus(topology, fact::nvlink_total, "18");
  set_gpus(topology, fact::nvlink_active, "18");
  CHECK(state_of(topology, "nvlink_down") == "ok");
  set(topology.gpus[1].facts, fact::nvlink_active, "17");
  expect_finding(
      topology, "nvlink_down", Severity::warning, {"a/gpu1"},
      {"17 of 18 NVLinks are up", "NVLink carries 425 of 450 GB/s", "nvidia-smi nvlink -s -i 1"});
}

TEST_CASE(
    "nvlink_down: a GPU without any link, a source without links, and one that tells nothing") {
  Topology topology = machines::cluster(1);
  topology.links.erase(topology.links.begin() + 2);
  expect_finding(topology, "nvlink_down", Severity::error, {"a/gpu2"},
                 {"0 of 18 NVLinks are up", "instead of NVLinks of 450 GB/s"});
  topology.links.clear();
  topology.hosts[0].gpu_links = atoll::IslandState::none;
  CHECK(the_finding(topology, "nvlink_down").subjects.size() == 4);
  // NVLinks are off while MIG is enabled, so missing links are no fault.
  set_gpus(topology, fact::mig, "yes");
  CHECK(state_of(topology, "nvlink_down") == "ok");
  set_gpus(topology, fact::mig, "no");
  // If an island is known only by its fabric id, its GPUs list no links.
  topology.hosts[0].gpu_links = atoll::IslandState::unknown;
  set_gpus(topology, fact::fabric_state, "completed");
  set_gpus(topology, fact::fabric_cluster, "6f0e1c2d-0000-4000-8000-000000000001");
  set_gpus(topology, fact::fabric_clique, "0");
  CHECK(state_of(topology, "nvlink_down") == "no source provides nvlink.active");
}

TEST_CASE("nvlink_down: bridges may be left out, and hidden GPUs hide links") {
  Topology cards = machines::cluster(1);
  cards.links.clear();
  cards.hosts[0].gpu_links = atoll::IslandState::none;
  for (auto& card : cards.gpus) card.model = "NVIDIA A100 80GB PCIe";
  CHECK(state_of(cards, "nvlink_down") == "ok");

  // The process sees two of the four GPUs of a board without NVSwitches. Each visible GPU has 6
  // links to hidden GPUs, so no link is missing.
  Topology board;
  machines::add_host(board, "a", 2, atoll::IslandState::known);
  machines::link(board, gpu("a", 0), gpu("a", 1), 6);
  for (auto& one : board.gpus) one.model = "NVIDIA H100 80GB HBM3";
  CHECK(state_of(board, "nvlink_down") == "ok");

  // The process sees all four GPUs, and one pair of GPUs loses a link, which is a fault.
  Topology whole;
  machines::add_host(whole, "a", 4, atoll::IslandState::known);
  machines::join_all(whole, "a", {0, 1, 2, 3}, 6);
  for (auto& one : whole.gpus) one.model = "NVIDIA H100 80GB HBM3";
  CHECK(state_of(whole, "nvlink_down") == "ok");
  whole.links[0].count = 5;
  CHECK(the_finding(whole, "nvlink_down").subjects == Strings{"a/gpu0", "a/gpu1"});

  for (auto& one : whole.gpus) one.model = "Tesla T4";
  CHECK(state_of(whole, "nvlink_down") == "no GPU that can have NVLinks");
}

TEST_CASE("fabric_not_completed: the state, and the status") {
  Topology topology = machines::cluster(1);
  CHECK(state_of(topology, "fabric_not_completed") == "no source provides fabric.state");
  set_gpus(topology, fact::fabric_state, "completed");
  set_gpus(topology, fact::fabric_status, "success");
  CHECK(state_of(topology, "fabric_not_completed") == "ok");
  set(topology.gpus[0].facts, fact::fabric_state, "in_progress");
  expect_finding(
      topology, "fabric_not_completed", Severity::error, {"a/gpu0"},
      {"the state of the NVLink fabric is in_progress", "systemctl restart nvidia-fabricmanager"});
  set(topology.gpus[0].facts, fact::fabric_state, "completed");
  set(topology.gpus[0].facts, fact::fabric_status, "unknown error");
  expect_finding(topology, "fabric_not_completed", std::nullopt, {},
                 {"its status \"unknown error\""});
  set_gpus(topology, fact::fabric_state, "not_supported");
  CHECK(state_of(topology, "fabric_not_completed") == "ok");
}

TEST_CASE("imex_channel: only where an NVLink domain spans hosts") {
  Topology topology = machines::cluster(1);
  CHECK(state_of(topology, "imex_channel") == "no NVLink domain spans hosts");
  set_gpus(topology, fact::fabric_cluster, "00000000-0000-0000-0000-000000000000");
  CHECK(state_of(topology, "imex_channel") == "no NVLink domain spans hosts");
  set_gpus(topology, fact::fabric_cluster, "6f0e1c2d-0000-4000-8000-000000000001");
  CHECK(contains(state_of(topology, "imex_channel"), "no source provides imex.channel"));
  set_hosts(topology, fact::imex_channel, "yes");
  CHECK(state_of(topology, "imex_channel") == "ok");
  set_hosts(topology, fact::imex_channel, "no");
  CHECK(the_finding(topology, "imex_channel").severity == Severity::warning);

  Topology rack;
  for (const char* host : {"a", "b"}) {
    machines::add_host(rack, host, 4, atoll::IslandState::known);
    for (int i = 0; i < 4; ++i) machines::link(rack, gpu(host, i), "rack:1", 18, 50);
  }
  set_hosts(rack, fact::imex_channel, "no");
  expect_finding(rack, "imex_channel", Severity::error, {"a", "b"},
                 {"/dev/nvidia-caps-imex-channels/channel0"});
}

TEST_CASE("islands_unequal: a GPU that fell out of its island") {
  Topology topology = machines::cluster(2, 8);
  CHECK(state_of(topology, "islands_unequal") == "ok");
  topology.links.erase(topology.links.begin() + 11);
  expect_finding(topology, "islands_unequal", Severity::error, {"b/gpu3"},
                 {"the 8 GPUs form islands of 7 + 1", "shrinks to 1"});
}

TEST_CASE("islands_unequal: hosts of one model with islands of another size") {
  Topology topology = machines::cluster(3, 8);
  machines::add_switched(topology, "z", 6);
  for (auto& one : topology.gpus) one.model = "NVIDIA H100 80GB HBM3";
  expect_finding(
      topology, "islands_unequal", Severity::warning, {"z"},
      {"an island of this host has 6 GPUs, but 3 islands on other hosts have 8", "shrinks to 2"});
  for (auto& one : topology.gpus)
    if (one.host == "z") one.model = "NVIDIA A100-SXM4-80GB";
  CHECK(state_of(topology, "islands_unequal") == "ok");
}

TEST_CASE("islands_unequal: a display card is no fault, unknown links prove nothing") {
  Topology topology = machines::cluster(1);
  topology.gpus.push_back(topology.gpus[0]);
  topology.gpus.back().id = "a/gpu4";
  topology.gpus.back().model = "NVIDIA T400";
  CHECK(state_of(topology, "islands_unequal") == "ok");
  topology.gpus.pop_back();
  topology.links.clear();
  topology.hosts[0].gpu_links = atoll::IslandState::unknown;
  CHECK(state_of(topology, "islands_unequal") == "no source provides nvlink.active");
}

TEST_CASE("islands_unequal: a bridge joins two cards, so the third of three has none") {
  for (const char* model : {"", "NVIDIA RTX A6000"}) {
    CAPTURE(model);
    Topology topology;
    machines::add_host(topology, "a", 3, atoll::IslandState::known);
    for (auto& card : topology.gpus) card.model = model;
    machines::link(topology, gpu("a", 0), gpu("a", 1), 4);
    CHECK(state_of(topology, "nvlink_down") == "ok");
    expect_finding(topology, "islands_unequal", Severity::info, {"a/gpu2"}, {});
    // A bridge could join the two unlinked cards, so the finding is a warning.
    topology.gpus.push_back(topology.gpus[2]);
    topology.gpus.back().id = gpu("a", 3);
    CHECK(the_finding(topology, "islands_unequal").severity == Severity::warning);
    CHECK(state_of(topology, "nvlink_down") == "ok");
  }
  // Neither xGMI nor a switch is a bridge, so the third GPU is cut off.
  Topology pair;
  machines::add_host(pair, "a", 3, atoll::IslandState::known);
  for (auto& one : pair.gpus) one.model = "";
  Topology switched = pair;
  machines::link(pair, gpu("a", 0), gpu("a", 1));
  pair.links[0].type = "xgmi";
  for (const int one : {0, 1}) machines::link(switched, gpu("a", one), "a/nvswitch0", 18);
  for (const Topology& topology : {pair, switched}) {
    const Finding finding = the_finding(topology, "islands_unequal");
    CHECK(finding.severity == Severity::error);
    CHECK_FALSE(contains(finding.fix, "bridge"));
  }
  // Three GPUs that are all linked with each other are on a board, and the fourth is cut off.
  Topology board;
  machines::add_host(board, "a", 4, atoll::IslandState::known);
  for (auto& one : board.gpus) one.model = "";
  machines::join_all(board, "a", {0, 1, 2}, 4);
  CHECK(the_finding(board, "nvlink_down").severity == Severity::error);
  CHECK(the_finding(board, "islands_unequal").severity == Severity::error);
}

TEST_CASE("files_whole: what a file lists and was not read") {
  Topology topology = machines::cluster(2);
  CHECK(state_of(topology, "files_whole") == "ok");
  set(topology.hosts[1].facts, "note.nccl xml", "3 <c2c> are not read");
  expect_finding(topology, "files_whole", Severity::info, {"b"},
                 {"nccl xml: 3 <c2c> are not read"});
}

TEST_CASE("links_unknown: says what to do about it") {
  Topology topology = machines::cluster(2);
  CHECK(state_of(topology, "links_unknown") == "ok");
  topology.links.clear();
  for (auto& host : topology.hosts) host.gpu_links = atoll::IslandState::unknown;
  set_hosts(topology, "source.nvml", "no NVML: cannot be opened");
  expect_finding(
      topology, "links_unknown", Severity::info, {"a", "b"},
      {"no source shows the links between the GPUs of this host (no NVML", "nvidia-smi topo -m"});
}

TEST_CASE("sources_conflict: each conflict, equal ones together") {
  Topology topology = machines::cluster(1);
  CHECK(state_of(topology, "sources_conflict") == "ok");
  for (const int number : {0, 1})
    topology.conflicts.push_back({.subject = gpu("a", number),
                                  .member = "numa",
                                  .believed = "1 (a.xml)",
                                  .contradiction = "0 (b.txt)"});
  expect_finding(topology, "sources_conflict", Severity::warning, {"a/gpu0", "a/gpu1"},
                 {"sources disagree about numa: 1 (a.xml) is used, 0 (b.txt) is ignored"});
}
