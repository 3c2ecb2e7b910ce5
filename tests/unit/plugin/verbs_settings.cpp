// Tests the settings of the verbs backend, and the text that tells a rank how to reach another.
#include <arpa/inet.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unit/plugin/sdk_error.hpp"
#include "verbs/contact.hpp"
#include "verbs/settings.hpp"

using namespace atoll_verbs_backend;
using atoll_test::sdk_error;

namespace {

std::string refusal(const std::string& text) {
  return sdk_error([&] { parse_settings(text); }, ATOLL_INVALID_ARGUMENT);
}

std::string names(const std::vector<PortName>& ports) {
  std::string text;
  for (const auto& port : ports) text += port.device + ":" + std::to_string(port.port) + " ";
  return text;
}

atoll_group group_with(const char* rdma, std::int64_t cut_ns) {
  atoll_group group{};
  group.size = sizeof(group);
  group.rdma = rdma;
  group.cut_ns = cut_ns;
  return group;
}

int timeout_of(std::int64_t cut_ns) { return settings_of(group_with("", cut_ns)).timeout; }

Contact contact_of(std::size_t rails, std::size_t queue_pairs) {
  Contact contact{0xabcdef, 0x7f12'3456'7890, 65536, 77, {}};
  for (std::size_t i = 0; i < rails; ++i) {
    Contact::Rail rail;
    rail.port = "mlx5_" + std::to_string(i) + ":1";
    for (std::size_t byte = 0; byte < 16; ++byte) {
      rail.address.gid.raw[byte] = static_cast<std::uint8_t>(byte * 17 + i);
    }
    rail.address.fabric = static_cast<Fabric>(i % 3);
    rail.address.subnet_bits = static_cast<int>(128 - 16 * i);
    rail.lid = static_cast<std::uint16_t>(65535 - i);
    rail.partition = static_cast<std::uint16_t>(0x8000 + i);
    rail.mtu = static_cast<int>(1 + i % 5);
    rail.key = static_cast<std::uint32_t>(0xFFFFFFFF - i);
    for (std::size_t pair = 0; pair < queue_pairs; ++pair) {
      rail.queue_pairs.push_back(static_cast<std::uint32_t>(0xFFFFFF - i * 10 - pair));
    }
    contact.rails.push_back(rail);
  }
  return contact;
}

std::string refusal_of_contact(const std::string& text) {
  return sdk_error([&] { decode(text); }, ATOLL_BAD_DATA);
}

}  // namespace

TEST_CASE("all words of ATOLL_RDMA are read") {
  const auto settings = parse_settings(
      "  devices=mlx5_0:2,rxe0,mlx5_3:255 gid=3 mtu=1024 sl=7 tc=106 pkey=0x8fA1  queue_pairs=2 "
      "timeout=18 ");
  CHECK(names(settings.devices) == "mlx5_0:2 rxe0:1 mlx5_3:255 ");
  CHECK(settings.gid == 3);
  CHECK(settings.mtu == 1024);
  CHECK(settings.service_level == 7);
  CHECK(settings.traffic_class == 106);
  CHECK(settings.partition == 0x8FA1);
  CHECK(settings.queue_pairs == 2);
  CHECK(settings.timeout == 18);
  CHECK(parse_settings("gid=1 gid=2").gid == 2);
}

TEST_CASE("each number has limits") {
  struct {
    const char* name;
    int least, most;
  } const limits[] = {{"gid", 0, 255},       {"mtu", 256, 4096},    {"sl", 0, 15},
                      {"tc", 0, 255},        {"queue_pairs", 1, 4}, {"timeout", 1, 31},
                      {"devices=a:", 1, 255}};
  for (const auto& limit : limits) {
    CAPTURE(limit.name);
    const std::string name = limit.name;
    const std::string start = name.back() == ':' ? name : name + "=";
    CHECK(refusal(start + std::to_string(limit.least)) == "no error");
    CHECK(refusal(start + std::to_string(limit.most)) == "no error");
    CHECK(refusal(start + std::to_string(limit.least - 1)) != "no error");
    CHECK(refusal(start + std::to_string(limit.most + 1)) != "no error");
    for (const char* wrong : {"", "x", "1x", "0x1", "+1", "1.0", "99999999999999999999"}) {
      CAPTURE(wrong);
      CHECK(refusal(start + wrong) != "no error");
    }
  }
}

TEST_CASE("the error names the wrong word and the known ones") {
  CHECK(refusal("gid=3 speed=9 mtu=1024") ==
        "ATOLL_RDMA: 'speed=9' is not a setting; the settings are: devices=NAME[:PORT],..., "
        "gid=INDEX, mtu=BYTES, sl=0..15, tc=0..255, pkey=0xKEY, queue_pairs=1..4, timeout=1..31");
  for (const std::string word : {"gid", "=3", "GID=3", "gid=3,", "devices=,", "devices=a:1:2",
                                 "tc=256", "pkey=8001", "pkey=0x8000", "pkey=0x1g"}) {
    CAPTURE(word);
    const std::string start = "ATOLL_RDMA: '" + word + "' is not a setting;";
    CHECK(refusal(word).substr(0, start.size()) == start);
  }
}

TEST_CASE("a group without settings of RDMA has the defaults") {
  auto group = group_with("gid=7 timeout=5", 1'000'000'000);
  CHECK(settings_of(group).gid == 7);
  CHECK(settings_of(group).timeout == 5);
  group.rdma = nullptr;
  CHECK(settings_of(group).gid == -1);
  CHECK(settings_of(group).queue_pairs == 1);
  CHECK(settings_of(group).devices.empty());
  CHECK(settings_of(group).timeout == timeout_of(1'000'000'000));
}

TEST_CASE("the timeout of a packet follows from the time after which a network is cut") {
  CHECK(timeout_of(10'000'000'000) == 18);  // 7 * 4.096 us * 2^18 = 7.5 s
  CHECK(timeout_of(0) == 18);
  CHECK(timeout_of(-1) == 18);
  CHECK(timeout_of(1) == 1);
  CHECK(timeout_of(1'000'000) == 5);
  CHECK(timeout_of(60'000'000'000) == 20);
  CHECK(timeout_of(INT64_MAX) == 30);
  for (std::int64_t cut = 1; cut < INT64_MAX / 2; cut *= 2) {
    CHECK(timeout_of(cut) <= timeout_of(2 * cut));
  }
}

// encode() writes every member, so equal texts are equal contacts.
TEST_CASE("a contact survives the text") {
  for (const std::size_t rails : {1u, 2u, 8u}) {
    for (const std::size_t queue_pairs : {1u, 2u, 4u}) {
      const auto contact = contact_of(rails, queue_pairs);
      const auto found = decode(encode(contact));
      CHECK(encode(found) == encode(contact));
      CHECK(found.target().address == contact.mailbox);
      CHECK(found.target().credits == contact.credits);
      REQUIRE(found.rails.size() == rails);
      CHECK(found.rails.back().port == contact.rails.back().port);
      CHECK(found.target().keys[rails - 1] == contact.rails.back().key);
      CHECK(found.rails.back().queue_pairs == contact.rails.back().queue_pairs);
    }
  }
}

// The fuzzer verbs_contact shows that a text that is not exactly what encode() writes is refused.
TEST_CASE("a contact with numbers out of range is refused") {
  const std::string gid = "000102030405060708090a0b0c0d0e0f";
  // The fields are version, first packet, mailbox address, bytes of the ring, credits and number of
  // rails; then for each rail port, fabric, GID, prefix length of the subnet, LID, partition, MTU,
  // memory key, number of queue pairs, and the number of each queue pair.
  const std::vector<std::string> fields{"4",        "abc", "7f00", "10000", "400", "1",
                                        "mlx5_0:1", "2",   gid,    "64",    "1",   "ffff",
                                        "3",        "ff",  "2",    "11",    "12"};
  // Returns the text with field `at` replaced.
  const auto with = [&](std::size_t at, const std::string& field) {
    std::string text;
    for (std::size_t i = 0; i < fields.size(); ++i)
      text += (i == 0 ? "" : " ") + (i == at ? field : fields[i]);
    return text;
  };
  CHECK(refusal_of_contact(with(fields.size(), "")) == "no error");
  const std::vector<std::vector<std::string>> wrong{{"3"},
                                                    {"100000000"},
                                                    {"10000000000000000"},
                                                    {"3ff", "1000001"},
                                                    {"0", "401"},
                                                    {"0", "9"},
                                                    {std::string(69, 'm')},
                                                    {"3"},
                                                    {gid + "0"},
                                                    {"129"},
                                                    {"10000"},
                                                    {"10000"},
                                                    {"0", "6"},
                                                    {"100000000"},
                                                    {"0", "5"}};
  for (std::size_t at = 0; at < wrong.size(); ++at) {
    for (const std::string& field : wrong[at]) {
      const std::string text = with(at, field);
      CAPTURE(text);
      CHECK(refusal_of_contact(text) ==
            "it published an invalid RDMA address '" + text + "' in the store");
    }
  }
  const std::string endless(100'000, '1');
  CHECK(refusal_of_contact(endless) ==
        "it published an invalid RDMA address '" + endless.substr(0, 200) + "' in the store");
}

namespace {

// A port with the IPv6 or IPv4 address `gid`, in a subnet with a prefix of `bits` bits.
Contact::Rail port(const std::string& name, Fabric fabric, const std::string& gid, int bits) {
  Contact::Rail rail;
  rail.port = name;
  rail.address.fabric = fabric;
  const bool is_ipv4 = gid.find(':') == std::string::npos;
  rail.address.subnet_bits = is_ipv4 ? 96 + bits : bits;
  const std::string full = is_ipv4 ? "::ffff:" + gid : gid;
  REQUIRE(::inet_pton(AF_INET6, full.c_str(), rail.address.gid.raw) == 1);
  return rail;
}
Contact::Rail v2(const std::string& name, const std::string& gid, int bits = 24) {
  return port(name, Fabric::roce_v2, gid, bits);
}
Contact::Rail infiniband(const std::string& name, const std::string& subnet) {
  return port(name, Fabric::infiniband, subnet + "::" + std::to_string(name.size()), 64);
}

using Rails = std::vector<Contact::Rail>;
using Pairs = std::vector<std::optional<std::size_t>>;
const std::optional<std::size_t> none;

// Returns pair_rails(own, peer), and checks that the peer computes the same pairs.
Pairs pairs(const Rails& own, const Rails& peer) {
  const auto result = pair_rails(own, peer);
  const auto back = pair_rails(peer, own);
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (result[i]) CHECK(back[*result[i]] == i);
  }
  CHECK(std::ranges::count(result, none) + std::ssize(peer) ==
        std::ranges::count(back, none) + std::ssize(own));
  return result;
}

std::string obstacle(const Rails& own, const Rails& peer) {
  return sdk_error([&] { pair_rails(own, peer); }, ATOLL_MISMATCH);
}

}  // namespace

TEST_CASE("ports of one name are connected") {
  const auto named = [](const std::vector<std::string>& names) {
    Rails rails;
    for (const auto& name : names) rails.push_back(v2(name, "10.0.0.1"));
    return rails;
  };
  CHECK((pairs(named({"a:1", "b:1"}), named({"a:1", "b:1"})) == Pairs{0, 1}));
  CHECK((pairs(named({"a:1", "b:1"}), named({"b:1", "a:1"})) == Pairs{1, 0}));
  CHECK((pairs(named({"a:1", "b:1"}), named({"b:1", "c:1"})) == Pairs{none, 0}));
  CHECK((pairs(named({"a:1", "a:2"}), named({"a:2"})) == Pairs{none, 0}));
  CHECK((pairs(named({"a:1", "a:1"}), named({"a:1", "a:1"})) == Pairs{0, 1}));
  // Ports of one name are connected although their subnets differ, because routers forward RoCE v2.
  CHECK((pairs({v2("a:1", "10.1.0.1"), v2("b:1", "10.2.0.1")},
               {v2("b:1", "10.1.0.2"), v2("a:1", "10.2.0.2")}) == Pairs{1, 0}));
}

TEST_CASE("without a common name, ports of one subnet are connected") {
  // All ports are in one subnet, so any port reaches any other, and they pair in order.
  CHECK((pairs({v2("a:1", "10.0.0.1"), v2("b:1", "10.0.0.2"), v2("c:1", "10.0.0.3")},
               {v2("d:1", "10.0.0.4"), v2("e:1", "10.0.0.5")}) == Pairs{0, 1, none}));
  // The rails are in different subnets, which the ranks list in a different order.
  CHECK((pairs({v2("a:1", "10.1.0.1"), v2("b:1", "10.2.0.1"), v2("c:1", "10.3.0.1")},
               {v2("d:1", "10.3.0.2"), v2("e:1", "10.1.0.2")}) == Pairs{1, none, 0}));
  // With a prefix of 16 bits, 10.1.9.2 is in the subnet of 10.1.0.1.
  CHECK((pairs({v2("a:1", "10.1.0.1", 16), v2("b:1", "10.2.0.1", 16)},
               {v2("c:1", "10.2.9.2", 16), v2("d:1", "10.1.9.2", 16)}) == Pairs{1, 0}));
  CHECK((pairs({infiniband("a:1", "fec0:0:0:1"), infiniband("b:1", "fec0:0:0:2")},
               {infiniband("c:1", "fec0:0:0:2"), infiniband("d:1", "fec0:0:0:1")}) == Pairs{1, 0}));
  CHECK((pairs({infiniband("a:1", "fe80:0:0:0"), infiniband("b:1", "fe80:0:0:0")},
               {infiniband("c:1", "fe80:0:0:0")}) == Pairs{0, none}));
  // Both ranks name their ports a:1 and b:1, but in opposite subnets, so the subnets decide.
  CHECK((pairs({infiniband("a:1", "fec0:0:0:1"), infiniband("b:1", "fec0:0:0:2")},
               {infiniband("a:1", "fec0:0:0:2"), infiniband("b:1", "fec0:0:0:1")}) == Pairs{1, 0}));
}

TEST_CASE("without a common subnet, ports are connected between which routers forward") {
  CHECK((pairs({v2("a:1", "10.1.0.1"), v2("b:1", "fd00::1", 64)},
               {v2("c:1", "fd01::1", 64), v2("d:1", "10.2.0.1")}) == Pairs{1, 0}));
  CHECK((pairs({v2("a:1", "10.1.0.1", 32)}, {v2("c:1", "10.1.0.2", 32)}) == Pairs{0}));
}

TEST_CASE("ports that cannot reach each other are an error that names them") {
  CHECK(
      obstacle({v2("a:1", "10.1.0.1"), v2("b:1", "fe80::1", 64)},
               {port("a:1", Fabric::roce_v1, "10.1.0.2", 24)}) ==
      "no port of this rank can reach a port of that rank. This rank uses a:1 (RoCE v2 "
      "10.1.0.1/24), b:1 (RoCE v2 fe80::1/64); that rank uses a:1 (RoCE v1 10.1.0.2/24): choose "
      "ports of one network for both with devices= in ATOLL_RDMA, and GIDs of one kind with gid=");
  const Rails others[] = {{v2("a:1", "fe80::1", 64)},
                          {v2("a:1", "fd00::1", 64)},
                          {infiniband("a:1", "fe80:0:0:0")},
                          {port("a:1", Fabric::roce_v1, "fe80::1", 64)},
                          {port("a:1", Fabric::roce_v1, "10.1.0.2", 24)}};
  for (const auto& rails : others) {
    CAPTURE(text_of(rails[0].address));
    CHECK(obstacle({v2("a:1", "10.1.0.1")}, rails) != "no error");
    CHECK(obstacle(rails, {v2("a:1", "10.1.0.1")}) != "no error");
    CHECK((pairs(rails, rails) == Pairs{0}));
  }
  CHECK(obstacle({infiniband("a:1", "fec0:0:0:1")}, {infiniband("a:1", "fec0:0:0:2")}) !=
        "no error");
  CHECK(obstacle({port("a:1", Fabric::roce_v1, "10.1.0.1", 24)},
                 {port("a:1", Fabric::roce_v1, "10.2.0.1", 24)}) != "no error");
}

TEST_CASE("the subnet of an address has its first bits") {
  CHECK(subnet_of(v2("a", "10.1.2.3", 24).address) == "RoCE v2 10.1.2.0/24");
  CHECK(subnet_of(v2("a", "10.1.2.255", 27).address) == "RoCE v2 10.1.2.224/27");
  CHECK(subnet_of(v2("a", "10.1.2.3", 0).address) == "RoCE v2 0.0.0.0/0");
  CHECK(subnet_of(v2("a", "fd00::ab:1", 112).address) == "RoCE v2 fd00::ab:0/112");
  CHECK(subnet_of(infiniband("a", "fe80:0:0:0").address) == "InfiniBand fe80::/64");
  CHECK(subnet_of(v2("a", "::ffff:10.0.0.1", 128).address) == "RoCE v2 10.0.0.1/32");
  CHECK(subnet_of(v2("a", "::ffff:10.0.0.1", 80).address) == "RoCE v2 ::/80");
}
