// Tests the settings of the verbs backend, and the text that tells a rank how to reach another.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sdk/guard.hpp"
#include "verbs/contact.hpp"
#include "verbs/settings.hpp"

using namespace atoll_verbs_backend;

namespace {

// Returns the text of the error that `call` throws, which must have `status`, or "no error".
template <class Call>
std::string error_of(atoll_status status, const Call& call) {
  try {
    call();
    return "no error";
  } catch (const atoll_sdk::Error& error) {
    CHECK(error.status() == status);
    return error.what();
  }
}

std::string refusal(const std::string& text) {
  return error_of(ATOLL_INVALID_ARGUMENT, [&] { parse_settings(text); });
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
  Contact contact{0xabcdef, 0x7f12'3456'7890, 65536, {}};
  for (std::size_t i = 0; i < rails; ++i) {
    Contact::Rail rail;
    rail.port = "mlx5_" + std::to_string(i) + ":1";
    for (std::size_t byte = 0; byte < 16; ++byte) {
      rail.gid.raw[byte] = static_cast<std::uint8_t>(byte * 17 + i);
    }
    rail.lid = static_cast<std::uint16_t>(65535 - i);
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
  return error_of(ATOLL_BAD_DATA, [&] { decode(text); });
}

}  // namespace

TEST_CASE("no words leave all choices to the backend") {
  for (const char* text : {"", " ", "\t \n"}) {
    const auto settings = parse_settings(text);
    CHECK(settings.devices.empty());
    CHECK(settings.gid == -1);
    CHECK(settings.mtu == 0);
    CHECK(settings.service_level == 0);
    CHECK(settings.traffic_class == 0);
    CHECK(settings.queue_pairs == 1);
    CHECK(settings.timeout == 0);
  }
}

TEST_CASE("all words of ATOLL_RDMA are read") {
  const auto settings = parse_settings(
      "  devices=mlx5_0:2,rxe0,mlx5_3:255 gid=3 mtu=1024 sl=7 tc=106  queue_pairs=2 timeout=18 ");
  CHECK(names(settings.devices) == "mlx5_0:2 rxe0:1 mlx5_3:255 ");
  CHECK(settings.gid == 3);
  CHECK(settings.mtu == 1024);
  CHECK(settings.service_level == 7);
  CHECK(settings.traffic_class == 106);
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
        "gid=INDEX, mtu=BYTES, sl=0..15, tc=0..255, queue_pairs=1..4, timeout=1..31");
  for (const std::string word :
       {"gid", "=", "=3", "GID=3", "gid=", "gid==3", "gid=3,", "devices=", "devices=,",
        "devices=:1", "devices=a,,b", "devices=,a", "devices=a:1:2", "devices=a:", "tc=256"}) {
    CAPTURE(word);
    const std::string start = "ATOLL_RDMA: '" + word + "' is not a setting;";
    CHECK(refusal(word).substr(0, start.size()) == start);
  }
}

TEST_CASE("a group of an older core has no settings of RDMA") {
  auto group = group_with("gid=7 timeout=5", 1'000'000'000);
  CHECK(settings_of(group).gid == 7);
  CHECK(settings_of(group).timeout == 5);
  group.rdma = nullptr;
  CHECK(settings_of(group).gid == -1);
  group.rdma = "nonsense";  // must not be read in the cases below
  group.size = offsetof(atoll_group, rdma) + sizeof(group.rdma) - 1;
  CHECK(settings_of(group).gid == -1);
  CHECK(settings_of(group).timeout == timeout_of(1'000'000'000));
  group.size = offsetof(atoll_group, cut_ns) + sizeof(group.cut_ns) - 1;
  CHECK(settings_of(group).timeout == timeout_of(0));
}

TEST_CASE("the timeout of a packet follows from the time after which a network is cut") {
  CHECK(timeout_of(10'000'000'000) == 18);  // 8 * 4.096 us * 2^18 = 8.6 s
  CHECK(timeout_of(0) == 18);
  CHECK(timeout_of(-1) == 18);
  CHECK(timeout_of(1) == 1);
  CHECK(timeout_of(1'000'000) == 4);
  CHECK(timeout_of(60'000'000'000) == 20);
  CHECK(timeout_of(INT64_MAX) == 30);
  for (std::int64_t cut = 1; cut < INT64_MAX / 2; cut *= 2) {
    CHECK(timeout_of(cut) <= timeout_of(2 * cut));
  }
}

TEST_CASE("a contact survives the text") {
  for (const std::size_t rails : {1, 2, 8}) {
    for (const std::size_t queue_pairs : {1, 2, 4}) {
      const auto contact = contact_of(rails, queue_pairs);
      const auto found = decode(encode(contact));
      CHECK(encode(found) == encode(contact));
      CHECK(found.first_packet == contact.first_packet);
      CHECK(found.target().address == contact.mailbox);
      CHECK(found.target().ring_bytes == contact.ring_bytes);
      REQUIRE(found.rails.size() == rails);
      for (std::size_t i = 0; i < rails; ++i) {
        CHECK(std::equal(found.rails[i].gid.raw, found.rails[i].gid.raw + 16,
                         contact.rails[i].gid.raw));
        CHECK(found.rails[i].port == contact.rails[i].port);
        CHECK(found.rails[i].lid == contact.rails[i].lid);
        CHECK(found.rails[i].mtu == contact.rails[i].mtu);
        CHECK(found.target().keys[i] == contact.rails[i].key);
        CHECK(found.rails[i].queue_pairs == contact.rails[i].queue_pairs);
      }
    }
  }
  Contact least{0, 0, 1024, {{"a", {}, 0, 1, 0, {0}}}};
  CHECK(decode(encode(least)).ring_bytes == 1024);
  least.ring_bytes = 1 << 24;
  CHECK(decode(encode(least)).ring_bytes == 1 << 24);
}

TEST_CASE("every other text is refused as a contact") {
  const std::string gid = "000102030405060708090a0b0c0d0e0f";
  const std::string good = "2 abc 7f00 10000 1 mlx5_0:1 " + gid + " 1 3 ff 2 11 12";
  CHECK(refusal_of_contact(good) == "no error");
  for (std::size_t n = 0; n < good.size() - 1; ++n) {  // "1" is a number as good as "12"
    CAPTURE(n);
    CHECK((refusal_of_contact(good.substr(0, n)) != "no error"));
  }
  const std::string texts[] = {
      "1 abc 7f00 10000 1 mlx5_0:1 " + gid + " 1 3 ff 1 11",            // another version
      "2 abc 7f00 3ff 1 mlx5_0:1 " + gid + " 1 3 ff 1 11",              // ring too small
      "2 abc 7f00 1000001 1 mlx5_0:1 " + gid + " 1 3 ff 1 11",          // ring too large
      "2 abc 7f00 10000 0",                                             // no rail
      "2 abc 7f00 10000 9 mlx5_0:1 " + gid + " 1 3 ff 1 11",            // too many rails
      "2 abc 7f00 10000 2 mlx5_0:1 " + gid + " 1 3 ff 1 11",            // a rail is missing
      "2 abc 7f00 10000 1 mlx5_0:1 " + gid + "0 1 3 ff 1 11",           // a long GID
      "2 abc 7f00 10000 1 mlx5_0:1 " + gid.substr(1) + " 1 3 ff 1 11",  // a short GID
      "2 abc 7f00 10000 1 mlx5_0:1 g" + gid.substr(1) + " 1 3 ff 1 11",
      "2 abc 7f00 10000 1 mlx5_0:1 " + gid + " 10000 3 ff 1 11",     // LID
      "2 abc 7f00 10000 1 mlx5_0:1 " + gid + " 1 0 ff 1 11",         // MTU
      "2 abc 7f00 10000 1 mlx5_0:1 " + gid + " 1 6 ff 1 11",         // MTU
      "2 abc 7f00 10000 1 mlx5_0:1 " + gid + " 1 3 100000000 1 11",  // key
      "2 abc 7f00 10000 1 mlx5_0:1 " + gid + " 1 3 ff 0",            // no queue pair
      "2 abc 7f00 10000 1 mlx5_0:1 " + gid + " 1 3 ff 5 1 2 3 4 5",
      "2 100000000 7f00 10000 1 mlx5_0:1 " + gid + " 1 3 ff 1 11",
      "2 abc 10000000000000000 10000 1 mlx5_0:1 " + gid + " 1 3 ff 1 11",
      "2 -1 7f00 10000 1 mlx5_0:1 " + gid + " 1 3 ff 1 11",
      "2 abc -7f00 10000 1 mlx5_0:1 " + gid + " 1 3 ff 1 11",
      "2 0xabc 7f00 10000 1 mlx5_0:1 " + gid + " 1 3 ff 1 11",
      " " + good,
      good + " ",
      good + " 13",
      good + "\n",
      "2  abc 7f00 10000 1 mlx5_0:1 " + gid + " 1 3 ff 1 11",
      "2 abc 7f00 10000 1 " + std::string(69, 'm') + " " + gid + " 1 3 ff 1 11",  // a long name
      "hello",
  };
  for (const auto& text : texts) {
    CAPTURE(text);
    CHECK(refusal_of_contact(text) ==
          "it published an invalid RDMA address '" + text + "' in the store");
  }
  CHECK((refusal_of_contact(good + std::string(1, '\0')) != "no error"));
  const std::string endless(100'000, '1');
  CHECK(refusal_of_contact(endless) ==
        "it published an invalid RDMA address '" + endless.substr(0, 200) + "' in the store");
}

TEST_CASE("ports of one name are connected, and without a common name those of one index") {
  using Pairs = std::vector<std::optional<std::size_t>>;
  const auto pairs = [](const std::vector<std::string>& own, const std::vector<std::string>& peer) {
    std::vector<Contact::Rail> rails;
    for (const std::string& port : peer) rails.emplace_back().port = port;
    return pair_rails(own, rails);
  };
  const std::optional<std::size_t> none;
  CHECK((pairs({"a:1", "b:1"}, {"a:1", "b:1"}) == Pairs{0, 1}));
  CHECK((pairs({"a:1", "b:1"}, {"b:1", "a:1"}) == Pairs{1, 0}));
  CHECK((pairs({"a:1", "b:1"}, {"b:1", "c:1"}) == Pairs{none, 0}));
  CHECK((pairs({"b:1", "c:1"}, {"a:1", "b:1"}) == Pairs{1, none}));
  CHECK((pairs({"a:1", "a:2"}, {"a:2"}) == Pairs{none, 0}));
  CHECK((pairs({"a:1", "b:1", "c:1"}, {"d:1", "e:1"}) == Pairs{0, 1, none}));
  CHECK((pairs({"a:1", "a:1"}, {"a:1", "a:1"}) == Pairs{0, 1}));
}
