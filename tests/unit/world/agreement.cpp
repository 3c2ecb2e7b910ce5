// agree(): all ranks get the same error, whichever rank differs or fails.
#include "world/agreement.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "unit/error_text.hpp"
#include "unit/rank_reports.hpp"

using atoll::Declaration;
using atoll_test::has;

namespace {

// Returns the result of each of three ranks when rank `odd` declares `other` and the rest `usual`.
std::vector<std::string> reports(int odd, const std::vector<Declaration>& usual,
                                 const std::vector<Declaration>& other) {
  return atoll_test::on_threads(3, [&](atoll::World& world) {
    atoll::agree(world, "seal", [&] { return world.rank() == odd ? other : usual; });
    return std::string("agreed");
  });
}

void check_all(const std::vector<std::string>& reports, const std::string& part) {
  REQUIRE(reports.size() == 3);
  for (const std::string& report : reports) CHECK(has(report, part));
}

}  // namespace

TEST_CASE("agreement: equal declarations pass, also several in turn and empty ones") {
  const auto results = atoll_test::on_threads(3, [](atoll::World& world) {
    for (int i = 0; i < 3; ++i)
      atoll::agree(world, "call", [] { return std::vector<Declaration>{{"a", "1"}}; });
    atoll::agree(world, "call", [] { return std::vector<Declaration>{}; });
    return std::string("agreed");
  });
  check_all(results, "agreed");
  atoll::World alone = atoll::World::single();
  CHECK_NOTHROW(atoll::agree(alone, "call", [] { return std::vector<Declaration>{{"a", "1"}}; }));
}

TEST_CASE("agreement: the first difference is named with two ranks and their values") {
  check_all(reports(2, {{"the number", "1"}, {"the shape of w", "4 x 8"}, {"later", "x"}},
                    {{"the number", "1"}, {"the shape of w", "8 x 4"}, {"later", "y"}}),
            "mismatch: seal: ranks disagree about the shape of w: 4 x 8 on rank 0, 8 x 4 on rank "
            "2; all ranks must pass the same");
  check_all(reports(0, {{"n", "1"}}, {{"n", "2"}}), "n: 2 on rank 0, 1 on rank 1");
  check_all(reports(1, {{"n", "1"}, {"m", "1"}}, {{"n", "1"}}),
            "the next value to compare: m on rank 0, nothing on rank 1");
}

TEST_CASE("agreement: the first difference of lists that are larger than a value of the store") {
  std::vector<Declaration> usual;
  for (int i = 0; i < 300'000; ++i)
    usual.push_back({"the shape of parameter layers." + std::to_string(i) +
                         ".attention.weight of a unit with a long name",
                     "4096 x 4096"});
  for (const std::size_t at : {std::size_t{0}, std::size_t{123'456}, usual.size() - 1}) {
    auto other = usual;
    other[at].value = "1";
    other.back().value = "2";
    check_all(reports(1, usual, other),
              usual[at].subject + ": 4096 x 4096 on rank 0, " + other[at].value + " on rank 1");
  }
  auto shorter = usual;
  shorter.pop_back();
  check_all(reports(2, usual, shorter), usual.back().subject + " on rank 0, nothing on rank 2");
}

TEST_CASE("agreement: a text that is larger than a value of the store is cut") {
  const std::string huge((std::size_t{16} << 20) + 1, 'a');
  const auto texts = reports(1, {{"n", huge + "b"}}, {{"n", huge + "c"}});
  const std::string cut = "... (16777218 bytes, digest ";
  CHECK(texts[0].find(cut) != texts[0].rfind(cut));
  CHECK(texts == std::vector<std::string>(3, texts[0]));
}

TEST_CASE("agreement: the call and the rank that does not make it are named") {
  const auto results = atoll_test::on_threads(3, [](atoll::World& world) {
    if (world.rank() == 2) return std::string("left");
    try {
      atoll::agree(world, "seal", [] { return std::vector<Declaration>{{"a", "1"}}; });
    } catch (const atoll::Error& error) {
      // No rank ends its World before the other has its error.
      world.put(std::to_string(world.rank()) + " gave up", "");
      (void)world.get(std::to_string(1 - world.rank()) + " gave up", std::chrono::seconds(20));
      return std::string(name(error.code())) + ": " + error.what();
    }
    return std::string("agreed");
  });
  for (const std::size_t rank : {0, 1}) {
    CAPTURE(results[rank]);
    CHECK(results[rank].starts_with("peer lost: seal: all ranks must make this call: rank " +
                                    std::to_string(rank) + ": rank 2 (host "));
    CHECK(results[rank].ends_with(") has left the job"));
  }
  CHECK(results[2] == "left");
}

TEST_CASE("agreement: the error of one rank reaches every rank, which names it") {
  const auto results = atoll_test::on_threads(3, [](atoll::World& world) {
    atoll::agree(world, "seal", [&]() -> std::vector<Declaration> {
      if (world.rank() == 1) throw atoll::Error(atoll::ErrorCode::not_found, "no unit \"x\"");
      return {};
    });
    return std::string("agreed");
  });
  CHECK(results[0] == "not found: rank 1: no unit \"x\"");
  CHECK(results[1] == "not found: no unit \"x\"");
  CHECK(results[2] == "not found: rank 1: no unit \"x\"");
}
