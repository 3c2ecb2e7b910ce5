// Tests agree() with declarations that exceed the maximum size of a value in the store.
// unit/fsdp/misuse.cpp, unit/fsdp/misuse_calls.cpp and unit/checkpoint/misuse.cpp test the errors
// of ranks that differ, fail or do not call agree().
#include "atoll/rank_set.hpp"

#include <doctest/doctest.h>

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
