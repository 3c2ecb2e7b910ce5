// Tests parts of plugins/sdk and plugins/collectives that do not need a backend.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/auth.hpp"
#include "collectives/communicator/processors.hpp"
#include "collectives/signature.hpp"
#include "sdk/backend.hpp"

namespace {

std::string hex(const atoll_collectives::Digest& digest) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned octet : digest) {
    text += digits[octet >> 4U];
    text += digits[octet & 15U];
  }
  return text;
}

std::vector<std::uint8_t> octets(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

// The expected digests are test vectors of FIPS 180-4 and RFC 4231.
TEST_CASE("SHA-256 and HMAC give the published results") {
  CHECK(hex(atoll_collectives::sha256("abc")) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(atoll_collectives::hmac("Jefe", octets("what do ya want for nothing?"))) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hex(atoll_collectives::hmac(
            std::string(131, '\xaa'),
            octets("Test Using Larger Than Block-Size Key - Hash Key First"))) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("guard turns whatever is thrown into a status and a text") {
  using atoll_sdk::guard;
  CHECK(guard([] {}) == ATOLL_OK);
  CHECK(guard([] { throw atoll_sdk::Error(ATOLL_PEER_LOST, "rank 3"); }) == ATOLL_PEER_LOST);
  CHECK(std::string(atoll_sdk::last_error()) == "rank 3");
  CHECK(guard([] { throw std::bad_alloc(); }) == ATOLL_OUT_OF_MEMORY);
  CHECK(guard([] { throw std::runtime_error("odd"); }) == ATOLL_INTERNAL);
  CHECK(std::string(atoll_sdk::last_error()) == "odd");
  CHECK(guard([] { throw 7; }) == ATOLL_INTERNAL);
  CHECK(guard([] { throw std::runtime_error(std::string(10'000, 'x')); }) == ATOLL_INTERNAL);
  CHECK(std::string(atoll_sdk::last_error()).size() == 2047);
}

TEST_CASE("operations are checked before they start") {
  float data[4] = {};
  const auto status = [&](void (*change)(atoll_operation&)) {
    atoll_operation o{};
    o.factor = 1.0;
    o.size = sizeof(o);
    o.kind = ATOLL_ALL_REDUCE;
    o.src = o.dst = data;
    o.count = 4;
    change(o);
    return atoll_sdk::guard([&] { atoll_sdk::check_operation(o, 0, 3); });
  };
  CHECK(status([](auto&) {}) == ATOLL_OK);
  CHECK(status([](auto& o) { o.dst = nullptr, o.count = 0; }) == ATOLL_OK);
  CHECK(status([](auto& o) { o.count = UINT64_MAX / 4; }) == ATOLL_INVALID_ARGUMENT);
  CHECK(status([](auto& o) { o.op = 9; }) == ATOLL_INVALID_ARGUMENT);
  CHECK(status([](auto& o) { o.dtype = 19; }) == ATOLL_INVALID_ARGUMENT);
  CHECK(status([](auto& o) { o.memory = ATOLL_MEMORY_CUDA; }) == ATOLL_UNSUPPORTED);
  CHECK(status([](auto& o) { o.dst = nullptr; }) == ATOLL_INVALID_ARGUMENT);
  CHECK(status([](auto& o) { o.kind = ATOLL_SEND, o.peer = 3; }) == ATOLL_INVALID_ARGUMENT);
}

TEST_CASE("the counts of all_to_all_v are checked, and the types of reductions") {
  float data[4] = {};
  const std::array<std::uint64_t, 3> sent{1, 2, 1}, received{0, 2, 5}, different{0, 3, 1};
  atoll_operation o{};
  o.factor = 1.0;
  o.size = sizeof(o);
  o.kind = ATOLL_ALL_TO_ALL_V;
  o.src = o.dst = data;
  o.count = 4;
  o.counts = sent.data();
  // Returns the error of the operation, or "".
  const auto error = [&]() -> std::string {
    const auto status = atoll_sdk::guard([&] { atoll_sdk::check_operation(o, 1, 3); });
    CHECK((status == ATOLL_OK || status == ATOLL_INVALID_ARGUMENT));
    return status == ATOLL_OK ? "" : atoll_sdk::last_error();
  };
  CHECK(error() == "all_to_all_v 0: the recv_counts are NULL");
  o.recv_counts = received.data();
  CHECK(error().empty());
  o.recv_counts = different.data();
  CHECK(error().ends_with("count for itself differs between counts and recv_counts"));
  o.recv_counts = received.data();
  o.dst = nullptr;
  CHECK_FALSE(error().empty());
  o.kind = ATOLL_ALL_REDUCE;
  o.dst = data;
  o.dtype = ATOLL_F8E5M2;
  CHECK(error().ends_with("elements cannot be reduced: reduce bf16 or f32"));
}

TEST_CASE("signatures that agree have equal digests, and others have different digests") {
  std::vector<atoll_collectives::Signature> calls;
  const std::array<std::uint64_t, 3> counts{7, 8, 1UL << 33};
  const auto call = [&](std::int32_t kind, std::int32_t dtype, std::int32_t op, std::int32_t root,
                        std::uint64_t ordinal) {
    atoll_operation operation{};
    operation.size = sizeof operation;
    operation.kind = kind;
    operation.dtype = dtype;
    operation.op = op;
    operation.peer = root;
    operation.counts = counts.data();
    operation.count = counts[ordinal];
    for (const char* const label : {"", "bias", "scale"}) {
      operation.label = label;
      calls.push_back(atoll_collectives::make_signature(operation, 3, ordinal));
    }
  };
  for (std::int32_t kind = ATOLL_BARRIER; kind <= ATOLL_REDUCE_SCATTER_V; ++kind)
    for (const std::int32_t dtype : {ATOLL_F32, ATOLL_BF16, ATOLL_U8})
      for (const std::int32_t op : {ATOLL_SUM, ATOLL_MAX})
        for (const std::int32_t root : {0, 1, 5})
          for (const std::uint64_t ordinal : {1U, 2U}) call(kind, dtype, op, root, ordinal);
  int wrong = 0;
  for (const auto& a : calls) {
    for (const auto& b : calls) wrong += agree(a, b) != (digest(a) == digest(b)) ? 1 : 0;
  }
  CHECK(calls.size() == 1404);
  CHECK(wrong == 0);
  auto longer = calls.front();
  // The factor is not part of the digest, because ranks may use different factors.
  longer.factor = 0.5;
  CHECK(digest(longer) == digest(calls.front()));
  atoll_operation labelled{};
  labelled.size = sizeof labelled;
  labelled.kind = ATOLL_ALL_REDUCE;
  labelled.op = ATOLL_SUM;
  labelled.label = "0123456789012345678901234567890\xc3\xa4";  // 31 letters and "ä"
  const auto shown = [&] { return describe(atoll_collectives::make_signature(labelled, 3, 1)); };
  CHECK(shown().ends_with(", \"0123456789012345678901234567890\")"));
  labelled.label = "012345678901234567890123456789\xc3\xa4";  // a character is not cut in two
  CHECK(shown().ends_with(", \"012345678901234567890123456789\")"));
  labelled.label = nullptr;
  CHECK(shown().find('"') == std::string::npos);
}

TEST_CASE("ranks spin only if each has a processor of those on which they may run") {
  using atoll_collectives::Waiting;
  const auto spin = [](const std::vector<std::string>& masks, int host_ranks, int online) {
    return atoll_collectives::waiting_of(masks, host_ranks, online) == Waiting::spin_then_sleep;
  };
  // Each hexadecimal digit of a mask stands for four processors; the first digit has the lowest.
  CHECK(spin({"f", "f", "f", "f"}, 4, 4));
  CHECK_FALSE(spin({"3", "3", "3", "3"}, 4, 64));  // a container with 2 processors of 64
  CHECK(spin({"3", "c", "03", "0c"}, 4, 8));       // bound by pairs
  CHECK_FALSE(spin({"1", "1"}, 2, 8));             // both bound to processor 0
  // The group has two of four ranks; the masks show whether the others can have own processors.
  CHECK(spin({"1", "2"}, 4, 4));
  CHECK_FALSE(spin({"3", "3"}, 4, 64));
  CHECK(spin({"000000000000000f"}, 2, 64));
  CHECK_FALSE(spin({"3"}, 4, 4));
  CHECK(spin({"3"}, 4, 8));
  CHECK(spin({"3"}, 0, 2));
  CHECK_FALSE(spin({"", ""}, 2, 1));  // unknown masks: all processors of the host
  CHECK(spin({"", ""}, 2, 2));
  const std::vector<std::string> overlapping{"3", "6", "03"};
  CHECK(atoll_collectives::count_processors(overlapping) == 5);
  const std::string own = atoll_collectives::own_processors();
  CHECK(!own.empty());
  CHECK(own.find_first_not_of("0123456789abcdef") == own.npos);
  CHECK(own.back() != '0');
}
