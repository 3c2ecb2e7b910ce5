// Tests of levels_of(), which requires that each host's ranks form a subtree of the sum's tree.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "comm/group_shape.hpp"

namespace {

// Formats the levels as "intra/intra_block/inter_block", or "one" for a single level.
std::string levels(const std::vector<int>& hosts, int block = 0) {
  const auto found = atoll::levels_of(hosts, block);
  if (!found) return "one";
  return std::to_string(found->intra()) + "/" + std::to_string(found->intra_block) + "/" +
         std::to_string(found->inter_block);
}

std::vector<int> in_a_row(int hosts, int ranks) {
  std::vector<int> result;
  for (int i = 0; i < hosts * ranks; ++i) result.push_back(i / ranks);
  return result;
}

}  // namespace

TEST_CASE("two levels need hosts with equal powers of two of neighbouring ranks") {
  CHECK(levels(in_a_row(2, 2)) == "2/0/0");
  CHECK(levels(in_a_row(3, 8)) == "8/0/0");
  CHECK(levels({3, 3, 1, 1}) == "2/0/0");
  for (const std::vector<int>& hosts : std::vector<std::vector<int>>{{},
                                                                     {0},
                                                                     {0, 0, 0, 0},
                                                                     {0, 1, 2},
                                                                     in_a_row(2, 3),
                                                                     in_a_row(2, 6),
                                                                     {0, 1, 0, 1},
                                                                     {0, 0, 1, 1, 1},
                                                                     {0, 0, 1, 1, 2},
                                                                     {0, 0, 1, 2},
                                                                     {0, 0, 0, 0, 1, 1}}) {
    CAPTURE(hosts.size());
    CHECK(levels(hosts) == "one");
  }
}

TEST_CASE("with blocks, a host must be a block, part of a block, or several blocks") {
  CHECK(levels(in_a_row(2, 3), 3) == "3/0/0");
  CHECK(levels(in_a_row(3, 2), 6) == "2/0/3");
  CHECK(levels(in_a_row(6, 2), 6) == "2/0/3");
  CHECK(levels(in_a_row(2, 6), 3) == "6/3/0");
  CHECK(levels(in_a_row(3, 2), 3) == "one");
  CHECK(levels(in_a_row(4, 3), 6) == "one");
  CHECK(levels(in_a_row(2, 9), 3) == "one");
}
