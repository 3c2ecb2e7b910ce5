// Tests what a stream of the verbs backend does with a peer that breaks the protocol.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "unit/plugin/sdk_error.hpp"
#include "unit/plugin/verbs_wire.hpp"

using namespace verbs_test;

namespace {

constexpr std::size_t ring = 16384;
constexpr std::size_t largest_chunk = 256 * 1024;

std::uint32_t word(Wire::Kind kind, std::uint32_t number = 0, std::size_t bytes = 0) {
  return static_cast<std::uint32_t>(kind) << 30 | number << 20 | static_cast<std::uint32_t>(bytes);
}

// A rank whose peer is the test: it writes the mailbox and sends immediate words.
struct Victim {
  Victim() { pair.attach(); }
  MailboxHead& head() { return *reinterpret_cast<MailboxHead*>(pair.a.mailbox.data()); }
  Stream& stream() { return pair.a.stream; }

  void arrive(Wire::Kind kind, std::uint32_t number = 0, std::size_t bytes = 0) {
    stream().arrived(word(kind, number, bytes));
  }
  void grant(std::uint64_t begin, std::uint64_t end) {
    head().grants[grants++ % grant_slots] = {begin, end, 4096, 0, {}};
    arrive(Wire::Kind::grant);
  }
  // Lets the rank announce `memory`, which it registers first, to the peer by a grant.
  void expect(std::span<std::byte> memory) {
    pair.a.memory.add(memory);
    stream().expect(memory);
  }

  Pair pair{{}, ring};
  std::size_t grants = 0;
};

std::string bad_data(const std::function<void()>& call) {
  return atoll_test::sdk_error(call, ATOLL_BAD_DATA);
}

using Kind = Wire::Kind;

}  // namespace

TEST_CASE("a write of no bytes or too many, or with a number in use, is refused") {
  Victim victim;
  CHECK(bad_data([&] { victim.arrive(Kind::ring, 0, 0); }) ==
        "it sent an impossible write (0x40000000)");
  CHECK(bad_data([&] { victim.arrive(Kind::ring, 1, largest_chunk + 1); }) ==
        "it sent an impossible write (0x40140001)");
  CHECK(bad_data([&] { victim.arrive(Kind::ring, 5, 10); }) == "no error");
  CHECK(bad_data([&] { victim.arrive(Kind::ring, 5, 10); }) ==
        "it sent an impossible write (0x4050000a)");
}

TEST_CASE("ring data beyond the ring is refused and never read") {
  Bytes got(2 * largest_chunk);
  SUBCASE("one write is larger than the ring") {
    Victim victim;
    CHECK(bad_data([&] { victim.arrive(Kind::ring, 0, ring + 1); }) ==
          "it sent 16385 bytes that this rank did not allow");
    CHECK(victim.stream().recv(got) == 0);
    CHECK(bad_data([&] { victim.arrive(Kind::ring, 1, 1); }) != "no error");
    CHECK(victim.stream().recv(got) == 0);
  }
  SUBCASE("a write continues at the ring's begin") {
    Victim victim;
    victim.arrive(Kind::ring, 0, ring - 10);
    CHECK(victim.stream().recv(got) == ring - 10);
    CHECK(bad_data([&] { victim.arrive(Kind::ring, 1, 11); }) ==
          "it sent 11 bytes that this rank did not allow");
  }
  SUBCASE("all writes together are larger than what was read") {
    Victim victim;
    victim.arrive(Kind::ring, 0, ring);
    CHECK(victim.stream().recv(std::span(got).first(100)) == 100);
    victim.arrive(Kind::ring, 1, 100);
    CHECK(bad_data([&] { victim.arrive(Kind::ring, 2, 1); }) ==
          "it sent 1 bytes that this rank did not allow");
    CHECK(victim.stream().recv(got) == ring);
  }
}

TEST_CASE("placed data that belongs elsewhere is refused") {
  Victim victim;
  Bytes first(20'000), second(20'000), small(100);
  SUBCASE("more than was granted") {
    victim.expect(first);
    victim.arrive(Kind::placed, 0, 20'000);
    CHECK(bad_data([&] { victim.arrive(Kind::placed, 1, 1); }) ==
          "it sent 1 bytes that this rank did not allow");
    CHECK(victim.stream().recv(first) == 20'000);
  }
  SUBCASE("bytes before the grant") {
    victim.expect(small);
    victim.expect(first);
    victim.arrive(Kind::placed, 0, 100);
    CHECK(bad_data([&] { victim.stream().recv(small); }) ==
          "it wrote data to memory that was not granted for it");
  }
  SUBCASE("a write across two grants") {
    victim.expect(first);
    victim.expect(second);
    victim.arrive(Kind::placed, 0, 20'001);
    CHECK(victim.stream().recv(first) == 20'000);
    victim.arrive(Kind::placed, 1, 100);  // byte 0 of `second` was written elsewhere
    CHECK(bad_data([&] { victim.stream().recv(std::span(first).first(1)); }) ==
          "it wrote data to memory that was not granted for it");
  }
  SUBCASE("a grant that only asks for the ring") {
    victim.stream().expect(first);  // not registered
    victim.head().counters.requested = 20'000;
    victim.arrive(Kind::control);
    victim.arrive(Kind::placed, 0, 20'000);
    CHECK(bad_data([&] { victim.stream().recv(first); }) ==
          "it wrote data to memory that was not granted for it");
  }
}

TEST_CASE("a grant that is empty, reversed or overlaps another is refused") {
  Victim victim;
  CHECK(bad_data([&] { victim.grant(5, 5); }) == "it granted an impossible range (5 to 5)");
  CHECK(bad_data([&] { victim.grant(6, 5); }) == "it granted an impossible range (6 to 5)");
  CHECK(bad_data([&] { victim.grant(0, 100); }) == "no error");
  CHECK(bad_data([&] { victim.grant(99, 200); }) == "it granted an impossible range (99 to 200)");
  CHECK(bad_data([&] { victim.grant(100, UINT64_MAX); }) == "no error");
}

TEST_CASE("a peer cannot give more grants than it has slots") {
  Victim victim;
  std::string text;
  std::uint64_t given = 0;
  for (; text != "it granted an impossible range (32 to 33)"; ++given) {
    REQUIRE(given <= grant_slots + 1);
    text = bad_data([&] { victim.grant(given, given + 1); });
  }
  CHECK(given == grant_slots + 1);
}

TEST_CASE("a grant of any address makes this rank write there, but read only its own data") {
  Victim victim;
  Bytes data(50'000);
  victim.pair.a.memory.add(data);
  victim.grant(0, UINT64_MAX);
  CHECK(victim.stream().send(data) == 0);  // MemoryWire checks what is read
  CHECK(victim.pair.a.wire.placed_bytes == 50'000);
}

TEST_CASE("counters that go backwards or beyond what was sent are refused") {
  Victim victim;
  auto& counters = victim.head().counters;
  const auto news = [&] { return bad_data([&] { victim.arrive(Kind::control); }); };
  const Bytes data(1000);
  CHECK(victim.stream().send(data) == 1000);

  counters.consumed = 1001;
  CHECK(news() == "it says that it has read 1001 of 1000 after 0");
  counters.consumed = 600;
  CHECK(news() == "no error");
  counters.consumed = 599;
  CHECK(news() == "it says that it has read 599 of 1000 after 600");
  counters.consumed = 1000;
  counters.sorted = 2;
  CHECK(news() == "it says that it has read 2 of 1 after 0");
  counters.sorted = 1;
  CHECK(news() == "no error");
  counters.sorted = 0;
  CHECK(news() == "it says that it has read 0 of 1 after 1");
  counters.sorted = 1;
  counters.granted = UINT64_MAX;
  CHECK(news() == "it says that it has read 18446744073709551615 of 0 after 0");
}

TEST_CASE("a peer that is full of requests, or closes twice, does no harm") {
  Victim victim;
  auto& counters = victim.head().counters;
  counters.requested = UINT64_MAX;
  counters.received = UINT64_MAX;
  victim.arrive(Kind::control);
  Bytes memory(100);
  victim.stream().expect(memory);
  counters.requested = 0;
  counters.closed = UINT64_MAX;
  victim.arrive(Kind::control);
  CHECK(victim.stream().has_closed());
  CHECK(!victim.stream().is_over());
  counters.closed = 1;
  victim.arrive(Kind::control);
  CHECK(victim.stream().is_over());
  CHECK(victim.stream().send(memory) == 0);
}
