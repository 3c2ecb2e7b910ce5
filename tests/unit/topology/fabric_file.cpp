// Tests of fabric files, which give the leaf switch of each NIC.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "facts.hpp"
#include "unit/captured_tree.hpp"
#include "unit/error_text.hpp"
#include "unit/topology/machines.hpp"

namespace {

using atoll::get_fact;
using atoll::Topology;
using machines::contains;
namespace fact = atoll::fact;

// Applies a fabric file with this text.
void apply(const std::string& text, Topology& topology) {
  const machines::CapturedTree folder;
  folder.write("fabric", text);
  atoll::apply_fabric(folder.path("fabric"), topology);
}

void add_port(Topology& topology, const std::string& host, const std::string& name,
              const std::string& guid = "") {
  auto& nic = topology.nics.emplace_back();
  nic.id = host + '/' + name;
  nic.host = host;
  nic.name = name.substr(0, name.find(':'));
  if (!guid.empty()) nic.facts.emplace(fact::node_guid, guid);
}

// Returns two hosts with ids "id0" and "id1" and names "node0.cluster" and "node1.cluster". Each
// host has the NICs mlx5_0, mlx5_2 and mlx5_10.
Topology two_hosts() {
  Topology topology;
  for (int i = 0; i < 2; ++i) {
    const std::string id = fmt::format("id{}", i);
    machines::add_host(topology, id);
    topology.hosts.back().name = fmt::format("node{}.cluster", i);
    for (const int nic : {0, 10, 2})
      add_port(topology, id, fmt::format("mlx5_{}", nic),
               fmt::format("0000:00aa:0000:{:04x}", 16 * i + nic));
  }
  return topology;
}

// Applies a fabric file and returns the leaf switch of each NIC, with "-" for none: "leaf-0 -
// leaf-1 - - -".
std::string leaves(const std::string& text, Topology topology = two_hosts()) {
  apply(text, topology);
  std::string all;
  for (const auto& nic : topology.nics) {
    const auto leaf = get_fact(nic.facts, fact::leaf);
    all += (all.empty() ? "" : " ") + std::string(leaf.empty() ? "-" : leaf);
  }
  return all;
}

// Applies a damaged fabric file, and returns the error message without the file name. The message
// has the byte offset of the damage.
std::string error_of(const std::string& text, Topology topology = two_hosts()) {
  try {
    apply(text, topology);
  } catch (const atoll::Error& error) {
    CHECK(error.code() == atoll::ErrorCode::bad_data);
    for (const auto& nic : topology.nics) CHECK_FALSE(nic.facts.contains(fact::leaf));
    const std::string what = error.what();
    const auto at = what.find("/fabric: byte ");
    return at == what.npos ? what : what.substr(at + 14);
  }
  return "no error";
}

std::string json(const std::string& ports) {
  return "{\"schema\": \"atoll-fabric-1\", \"ports\": [" + ports + "]}";
}

std::string port(const std::string& host, const std::string& nic, const std::string& leaf) {
  return fmt::format("{{\"host\": \"{}\", \"nic\": \"{}\", \"leaf\": \"{}\"}}", host, nic, leaf);
}

std::string switch_block(const std::string& guid, const std::string& name,
                         const std::string& ports) {
  return fmt::format(
      "vendid=0x2c9\ndevid=0xd2f0\nsysimgguid=0x{0}\nswitchguid=0x{0}({0})\n"
      "Switch\t41 \"S-{0}\"\t\t# \"{1}\" enhanced port 0 lid 13 lmc 0\n{2}\n",
      guid, name, ports);
}

std::string cable(int at, const std::string& guid, const std::string& name, int peer_port = 1) {
  return fmt::format("[{}]\t\"H-{}\"[{}]({}) \t\t# \"{}\" lid 9 4xNDR\n", at, guid, peer_port, guid,
                     name);
}

// Cables to adapters of unknown GUID, from port 1 on, each to a node with this description.
std::string cables(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += cable(static_cast<int>(i) + 1, "?", names[i]);
  return text;
}

const std::string uplink = "[40]\t\"S-00000000000000ff\"[3]\t\t# \"spine # 1\" lid 2 4xNDR\n";

}  // namespace

TEST_CASE("fabric: JSON names hosts and NICs") {
  CHECK(leaves(json(port("id0", "mlx5_0", "leaf-0") + "," + port("id1", "mlx5_2", "leaf-1"))) ==
        "leaf-0 - - - - leaf-1");
  CHECK(leaves(json(port("node0.cluster", "mlx5_0", "a") + "," + port("node1", "mlx5_10", "b"))) ==
        "a - - - b -");
  CHECK(leaves(json(port("NODE0", "mlx5_0", "a"))) == "a - - - - -");
  CHECK(contains(error_of(json(port("node0.elsewhere", "mlx5_0", "a"))), "none of the"));
  Topology with_leaf = two_hosts();
  with_leaf.nics[0].facts.emplace(fact::leaf, "old");
  CHECK(leaves(json(port("id0", "mlx5_0", "new")), with_leaf) == "new - - - - -");
  Topology without_domain = two_hosts();
  without_domain.hosts[0].name = "node0";
  CHECK(leaves(json(port("node0.cluster", "mlx5_0", "a")), without_domain) == "a - - - - -");
  CHECK(leaves(json(port("id0", "mlx5_0", "a") + "," + port("stranger", "mlx5_0", "b") + "," +
                    port("id0", "mlx5_77", "b") + "," + port("id0", "mlx5_0", "a"))) ==
        "a - - - - -");
}

TEST_CASE("fabric: a second port has its own leaf") {
  Topology topology;
  machines::add_host(topology, "n");
  add_port(topology, "n", "mlx4_0", "00aa");
  add_port(topology, "n", "mlx4_0:2", "00aa");
  CHECK(leaves(json(port("n", "mlx4_0:2", "b")), topology) == "- b");
  CHECK(leaves(json(port("n", "mlx4_0", "a")), topology) == "a -");
  CHECK(leaves(switch_block("1", "x", cable(1, "00000000000000aa", "?", 2)), topology) == "- x");
  CHECK(leaves(switch_block("1", "x", cable(1, "?", "n mlx4_0", 2)), topology) == "- x");
}

TEST_CASE("fabric: damaged JSON is named with its byte") {
  CHECK(error_of("{\"schema\": \"atoll-fabric-2\"}") == "27: schema is not \"atoll-fabric-1\"");
  CHECK(contains(error_of(json(port("id0", "mlx5_0", ""))), "ports[0].leaf is empty"));
  CHECK(contains(error_of(json("{\"host\": \"id0\"}")), "ports[0].nic is missing"));
  CHECK(contains(error_of(json(port("id0", "mlx5_0", "a") + "," + port("node0", "mlx5_0", "b"))),
                 "ports[1].leaf differs from \"a\" above"));
  CHECK(contains(error_of(json("1")), "ports[0] is not an object"));
  CHECK(contains(error_of(json("").substr(0, 30)), "not JSON"));
}

TEST_CASE("fabric: a name of several hosts names none") {
  Topology topology = two_hosts();
  topology.hosts[1].name = topology.hosts[0].name;
  CHECK(contains(error_of(json(port("node0", "mlx5_0", "a")), topology),
                 "ports[0].host is the name of several hosts"));
  CHECK(leaves(json(port("id1", "mlx5_0", "a")), topology) == "- - - a - -");
  CHECK(contains(error_of(switch_block("1", "x", cable(1, "?", "node0 mlx5_0")), topology),
                 "none of the 1 port in the file is a NIC"));
}

TEST_CASE("fabric: ibnetdiscover, ports by the GUID of their node") {
  const std::string text =
      "#\n# Topology file: generated on Mon Jan  1 00:00:00 2024\n#\n" +
      switch_block("b859", "leaf-0", cable(1, "000000aa00000000", "x") + uplink) +
      switch_block("b860", "leaf-1", cable(7, "0x000000aa00000010", "y") + cable(8, "dead", "z"));
  CHECK(leaves(text) == "leaf-0 - - leaf-1 - -");
}

TEST_CASE("fabric: ibnetdiscover, ports by the node's description") {
  const std::string text =
      switch_block("b859", "leaf-0",
                   cable(1, "<redacted>", "node0 mlx5_0") + cable(2, "1", "node1.cluster mlx5_10") +
                       cable(3, "2", "node7 mlx5_0") + cable(4, "3", "node1") +
                       cable(41, "4", "Mellanox Technologies Aggregation Node"));
  CHECK(leaves(text) == "leaf-0 - - - leaf-0 -");
  SUBCASE("the GUID goes before it") {
    // The adapter has moved to node1, but the switch still has the adapter's old description. The
    // GUID decides.
    CHECK(leaves(switch_block("1", "x", cable(1, "000000aa00000010", "node0 mlx5_0"))) ==
          "x - - x - -");
    CHECK(leaves(switch_block("1", "x", cable(1, "000000aa00000000", "?")) +
                 switch_block("2", "y", cable(1, "5", "node0 mlx5_0"))) == "x - - - - -");
  }
  SUBCASE("devices by their number in the host") {
    CHECK(leaves(switch_block("1", "x", cables({"node0 HCA-1", "node0 HCA-3", "node1 HCA-2"}))) ==
          "x x - - - x");
    CHECK(contains(
        error_of(switch_block("1", "x", cables({"node0 HCA-4", "node0 HCA-0", "node0 HCA-"}))),
        "none of the 3 ports"));
  }
  SUBCASE("one that two hosts of the fabric bear names neither") {
    CHECK(leaves(switch_block("1", "x", cable(1, "?", "node0 mlx5_0")) +
                 switch_block("2", "y", cables({"node0 mlx5_0", "node0 mlx5_2"}))) ==
          "- - y - - -");
  }
}

TEST_CASE("fabric: a GUID that several NICs share names none of them") {
  // GUIDs repeat if data was anonymised or if a machine is listed twice.
  Topology topology = two_hosts();
  for (auto& nic : topology.nics) nic.facts[std::string(fact::node_guid)] = "aa";
  CHECK(leaves(switch_block("1", "x", cable(1, "aa", "node1 mlx5_0")), topology) == "- - - x - -");
}

TEST_CASE("fabric: ibnetdiscover, the blocks of adapters alone") {
  const std::string text =
      "caguid=0xaa00000000\n"
      "Ca\t1 \"H-000000aa00000000\"\t\t# \"node0 mlx5_0\"\n"
      "[1](aa00000000) \t\"S-00000000000b859\"[1]\t\t# lid 9 lmc 0 \"leaf\" lid 13 4xNDR\n\n"
      "Ca\t1 \"H-?\"\t\t# \"node1 mlx5_2\"\n"
      "[1](?) \t\"S-00000000000b859\"[2]\t\t# lid 9 lmc 0 \"leaf\" lid 13 4xNDR\n"
      "Rt\t1 \"R-1\"\t\t# \"router\"\n"
      "[1](?) \t\"S-00000000000b859\"[3]\t\t# lid 9 lmc 0 \"leaf\" lid 13 4xNDR\n";
  CHECK(leaves(text) == "S-00000000000b859 - - - - S-00000000000b859");
  CHECK(leaves(text + switch_block("00000000000b859", "leaf-7", uplink)) ==
        "leaf-7 - - - - leaf-7");
}

TEST_CASE("fabric: switches of one name stay apart") {
  CHECK(leaves(switch_block("1", "Quantum", cable(1, "000000aa00000000", "?")) +
               switch_block("2", "Quantum", cable(1, "000000aa00000010", "?")) +
               switch_block("3", "", cable(1, "000000aa00000002", "?"))) ==
        "Quantum (S-1) - S-3 Quantum (S-2) - -");
}

TEST_CASE("fabric: damaged ibnetdiscover output is named with its byte") {
  CHECK(error_of("Switch 40\n") == "0: the line of a Switch has no GUID");
  CHECK(error_of("#\nCa 1 \"H\"\n") == "2: the line of a Ca has no GUID");
  CHECK(error_of("#\n[1] \"H-1\"[1](1) # \"a b\"\n") ==
        "2: a port precedes the first Switch or Ca");
  const std::string head = "Switch 2 \"S-1\" # \"x\" base port 0\n";
  for (const char* line : {"[1]", "[1] \"H-1", "[x] \"H-1\"[1]", "[99999999999] \"H-1\"[1]"}) {
    CAPTURE(line);
    CHECK(error_of(head + line + "\n")
              .starts_with(fmt::format("{}: the line is not a port as ibnetdiscover prints it",
                                       head.size())));
  }
  const std::string moved = switch_block("1", "x", cable(1, "000000aa00000000", "?")) +
                            switch_block("2", "y", cable(1, "000000aa00000000", "?"));
  CHECK(error_of(moved) ==
        fmt::format("{}: port 1 of H-000000aa00000000 is connected to both S-1 and S-2",
                    moved.rfind("[1]\t")));
  CHECK(error_of(head + std::string(70'000, 'x'))
            .starts_with(fmt::format("{}: the line is longer than", head.size())));
}

TEST_CASE("fabric: a file that says nothing of this machine is refused") {
  CHECK(error_of(json(port("stranger", "mlx5_0", "a"))) ==
        "0: none of the 1 port in the file is a NIC of this topology");
  CHECK(error_of(json("")) == "0: none of the 0 ports in the file is a NIC of this topology");
  CHECK(error_of("") ==
        "0: the file is neither JSON with the schema \"atoll-fabric-1\" nor the output of "
        "ibnetdiscover");
  CHECK(contains(error_of("\tGPU0\tGPU1\nGPU0\tX\n"), "neither"));
}

TEST_CASE("fabric: a file that is absent or none") {
  Topology topology = two_hosts();
  const std::string folder = std::filesystem::temp_directory_path().string();
  for (const auto& [path, code] :
       {std::pair(std::string("/nowhere/fabric"), atoll::ErrorCode::not_found),
        std::pair(folder, atoll::ErrorCode::io)})
    CHECK(atoll_test::error_of([&] {
            atoll::apply_fabric(path, topology);
          }).starts_with(fmt::format("{}: {}", name(code), path)));
}

TEST_CASE("fabric: ports of a known host that match no NIC are noted") {
  const auto note = [](const std::string& text) {
    Topology topology = two_hosts();
    apply(text, topology);
    CHECK(get_fact(topology.hosts[0].facts, "note.fabric file").empty());
    return std::string(get_fact(topology.hosts[1].facts, "note.fabric file"));
  };
  const std::string known = port("id0", "mlx5_0", "a") + "," + port("stranger", "mlx5_9", "a");
  CHECK(note(json(known)).empty());
  CHECK(note(json(known + "," + port("node1", "mlx5_9", "a"))) ==
        "1 port of this host matches no NIC: mlx5_9");
  CHECK(note(switch_block(
            "1", "x", cables({"node0 mlx5_0", "node1 mlx5_9", "node1 mlx5_8", "node7 mlx5_9"}))) ==
        "2 ports of this host match no NIC: node1 mlx5_8 and node1 mlx5_9");
  CHECK(note(switch_block("1", "x",
                          cable(1, "?", "node0 mlx5_0") + cable(2, "?", "node1 mlx5_9") +
                              cable(3, "?", "node1 mlx5_9", 2))) ==
        "2 ports of this host match no NIC: node1 mlx5_9 and node1 mlx5_9:2");
  // A note stays below 4,096 bytes, because atoll's own JSON reader refuses longer texts.
  std::string ports = known;
  for (char c = 'a'; c < 'i'; ++c) ports += "," + port("node1", std::string(600, c), "a");
  CHECK(note(json(ports)).size() < 4'096);
}

TEST_CASE("fabric: files that people take for a fabric file are named") {
  CHECK(contains(
      error_of("SW    13  1 0x00000000000000b8 4x EDR - CA    15  1 0x000000aa00000000 ( 'leaf' - "
               "'node0 mlx5_0' )\n"),
      "run ibnetdiscover without -p"));
  for (const char* slurm :
       {"# rack 1\nSwitchName=leaf1 Nodes=n[0-1]\n", "BlockName=b1 Nodes=n[0-1]\n",
        "---\n- topology: t\n  tree:\n    switches:\n      - switch: leaf1\n"})
    CHECK(contains(error_of(slurm), "Slurm's topology file, which atoll does not read"));
  const std::string direct =
      "Ca\t1 \"H-00000000000000aa\"\t# \"node0 mlx5_0\"\n"
      "[1](ab) \t\"H-00000000000000bb\"[1] (bc)\t# lid 1 lmc 0 \"node1 mlx5_0\" lid 2 4xHDR\n";
  CHECK(error_of(direct).starts_with(
      fmt::format("{}: this cable joins two adapters", direct.find("[1]"))));
  CHECK(contains(error_of("\xff\xfeS\0w\0"), "UTF-16"));
  CHECK(leaves("\xef\xbb\xbf" + json(port("id0", "mlx5_0", "a"))) == "a - - - - -");
}

TEST_CASE("fabric: many ports with a name of many hosts, or of many ports, take little time") {
  Topology topology;
  for (int i = 0; i < 5'000; ++i) {
    const std::string id = fmt::format("id{}", i);
    machines::add_host(topology, id);
    topology.hosts.back().name = fmt::format("node.cluster{}", i);
    add_port(topology, "id0", fmt::format("mlx5_0:{}", i + 2));
  }
  std::string ports;
  for (int i = 1; i <= 20'000; ++i)
    ports += cable(i, "?", "node mlx5_0") + cable(i, "?", "id0 mlx5_0");
  const auto start = std::chrono::steady_clock::now();
  CHECK(contains(error_of(switch_block("1", "x", ports), topology), "none of the 40000 ports"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
}
