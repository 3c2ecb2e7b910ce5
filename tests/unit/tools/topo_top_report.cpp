// Tests of the output of atoll-topo --top for large jobs: ranks in the same state share a row, slow
// ranks come first, and the table fits the terminal.
#include "top_report.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

constexpr std::size_t size = 4096;
constexpr std::size_t slow = 77;
const std::string address = "node7:29500";

atoll::ObservedRank rank_in(std::uint64_t sequence, atoll::FlightState state) {
  const bool runs = state == atoll::FlightState::started;
  atoll::ObservedRank rank;
  rank.state = atoll::ObservedRank::State::answers;
  rank.host = "node7";
  rank.step = 5;
  rank.bytes = 1'000'000'000;
  rank.monotonic_ns = 2'000'000'000;
  rank.operation = atoll::ObservedOperation{.communicator = "shard",
                                            .kind = "all_gather",
                                            .text = "all_gather " + std::to_string(sequence),
                                            .sequence = sequence,
                                            .bytes = 1024,
                                            .state = state,
                                            .seconds = 2.5};
  rank.communicators.push_back(
      {"id", "shard", sequence + 1, runs ? static_cast<std::int64_t>(sequence) : -1, 2.5});
  return rank;
}

std::vector<atoll::ObservedRank> job() {
  std::vector<atoll::ObservedRank> ranks(size, rank_in(9, atoll::FlightState::started));
  ranks[slow] = rank_in(8, atoll::FlightState::completed);
  return ranks;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines{""};
  for (const char c : text) {
    if (c == '\n') lines.emplace_back();
    if (c != '\n') lines.back() += c;
  }
  lines.pop_back();
  return lines;
}

}  // namespace

TEST_CASE("ranks that do the same share a row, and the slow rank comes first") {
  const auto ranks = job();
  auto before = ranks;
  for (atoll::ObservedRank& rank : before) {
    rank.bytes -= 500'000'000;
    rank.monotonic_ns -= 1'000'000'000;
  }
  const auto lines = lines_of(topo::table_of({address, ranks, before}, {}));
  REQUIRE(lines.size() == 5);
  CHECK(lines[0] == "job at node7:29500: 4096 ranks, 4096 answer");
  CHECK(lines[1].starts_with("rank 77 (host node7, pid 0) has not called collective 9"));
  CHECK(lines[1].ends_with("; 4095 wait for 2.500 s"));
  CHECK(lines[3].starts_with("*77 "));
  CHECK(lines[4].starts_with(" 0-76, 78-4095 "));
  CHECK(lines[4].find(" 0.500  shard: all_gather 9") != std::string::npos);
}

TEST_CASE("a table of ranks that all differ fits the terminal") {
  std::vector<atoll::ObservedRank> ranks;
  for (std::size_t i = 0; i < size; ++i) {
    ranks.push_back(rank_in(i, atoll::FlightState::started));
  }
  const auto lines = lines_of(topo::table_of({address, ranks, {}}, {24, 60}));
  CHECK(lines.size() < 24);
  CHECK(std::ranges::all_of(lines, [](const std::string& line) { return line.size() < 60; }));
  CHECK(lines.back().starts_with("and 40"));
  CHECK(lines_of(topo::table_of({address, ranks, {}}, {})).size() < 60);
  // Even a terminal of one line gets a table.
  CHECK_FALSE(topo::table_of({address, ranks, {}}, {1, 20}).empty());
}

TEST_CASE("a line of JSON has every rank") {
  const auto ranks = job();
  const std::string text = topo::json_of({address, ranks, {}});
  CHECK(std::ranges::count(text, '\n') == 1);
  const auto json = nlohmann::json::parse(text);
  CHECK(json["ranks"].size() == size);
  CHECK(json["waited_for"][0]["rank"] == slow);
  CHECK(json["ranks"][0]["bytes_per_second"].is_null());
  CHECK(json["ranks"][0]["operation"]["state"] == "started");
}
