// Tests of sums in two levels: levels_of(), which requires that the ranks of each host are a
// subtree of the sum, and the scratch memory.
#include <doctest/doctest.h>

#include <vector>

#include "atoll/plugin.h"
#include "comm/fallback.hpp"
#include "comm/group_shape.hpp"

namespace {

// Formats the levels as "inner/inner_block/outer_block", or "one" for a single level.
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

TEST_CASE("a single host, or one rank per host, gives one level") {
  CHECK(levels({}) == "one");
  CHECK(levels({0}) == "one");
  CHECK(levels({0, 0, 0, 0}) == "one");
  CHECK(levels({0, 1, 2}) == "one");
}

TEST_CASE("hosts with a power of two of ranks are subtrees, for any number of hosts") {
  CHECK(levels(in_a_row(2, 2)) == "2/0/0");
  CHECK(levels(in_a_row(3, 8)) == "8/0/0");
  CHECK(levels(in_a_row(2, 3)) == "one");
  CHECK(levels(in_a_row(2, 6)) == "one");
}

TEST_CASE("two levels need hosts with equal numbers of neighbouring ranks") {
  CHECK(levels({0, 1, 0, 1}) == "one");
  CHECK(levels({0, 0, 1, 1, 1}) == "one");
  CHECK(levels({0, 0, 1, 1, 2}) == "one");
  CHECK(levels({0, 0, 1, 2}) == "one");
  CHECK(levels({0, 0, 0, 0, 1, 1}) == "one");
  CHECK(levels({3, 3, 1, 1}) == "2/0/0");
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

TEST_CASE("ranks need the same scratch memory for slices of different lengths") {
  const std::vector<std::uint64_t> counts = {5, 9000, 0, 100};
  const atoll::Operation sum{ATOLL_REDUCE_SCATTER_V, {}, {}, 9105, atoll::DType::f32};
  std::vector<std::uint64_t> bytes;
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    const atoll::GroupShape shape{rank, 4, atoll::DeviceKind::cpu, 0,
                                  atoll::levels_of(std::vector{0, 0, 1, 1}, 0)};
    bytes.push_back(atoll::scratch_of_levels(shape, sum, counts));
  }
  // All slices, the highest column twice and once more for its sum, two of the longest slice.
  CHECK(bytes == std::vector<std::uint64_t>(4, (9105 + 3 * 9100 + 2 * 9000) * sizeof(float)));
}
