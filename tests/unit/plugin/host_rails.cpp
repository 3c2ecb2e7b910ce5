// Tests the host backend with several rails per rank: the connections, the order of bytes, and the
// error for a rail that cannot be reached. Loopback addresses stand for rails.
#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "unit/plugin/host.hpp"

using namespace plugin_ranks;

namespace {

// Returns options in which rank `r` has the addresses 127.0.R.1, 127.0.R.2, ... with R = r + 1.
GroupOptions with_rails(const std::vector<int>& counts) {
  GroupOptions options;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    std::string& list = options.rails.emplace_back();
    for (int rail = 1; rail <= counts[r]; ++rail) {
      list += (list.empty() ? "127.0." : " 127.0.") + std::to_string(r + 1) + "." +
              std::to_string(rail);
    }
  }
  return options;
}

void gather_and_reduce(Rank& rank, std::uint64_t count) {
  check_all_gather(rank, ATOLL_I32, count);
  check_all_reduce(rank, ATOLL_I32, ATOLL_SUM, count);
}

}  // namespace

TEST_CASE("a pair of ranks connects over every rail that both have, from its own address there") {
  FakeCore core;
  auto ranks = open_ranks(backend(), core, {0, 1}, with_rails({2, 3}));
  connect_ranks(ranks);
  // Hosts with one rank have two connections per rail. Both ends of each connection are in this
  // process, so each is counted twice.
  const Connections expected = {{{"127.0.1.1", "127.0.2.1"}, 2},
                                {{"127.0.2.1", "127.0.1.1"}, 2},
                                {{"127.0.1.2", "127.0.2.2"}, 2},
                                {{"127.0.2.2", "127.0.1.2"}, 2}};
  CHECK(settled(2 * 4) == expected);
}

TEST_CASE(
    "hosts of two ranks have one connection per pair and rail, or as many as the tuning says") {
  for (const int wanted : {1, 3}) {
    CAPTURE(wanted);
    auto options = with_rails({2, 2, 2, 2});
    if (wanted > 1) options.tuning = "all_reduce 0 two_level\nconnections 3\n";
    FakeCore core;
    auto ranks = open_ranks(backend(), core, {0, 0, 1, 1}, options);
    connect_ranks(ranks);
    // Both ends of 4 pairs of ranks on 2 rails.
    const auto found = settled(2 * 4 * 2 * wanted);
    CHECK(found.size() == 2 * 4 * 2);
    for (const auto& [addresses, count] : found) CHECK(count == wanted);
    on_ranks(ranks, [](Rank& rank) { gather_and_reduce(rank, 300'007); });
  }
}

TEST_CASE("if either rank has only one rail, the kernel chooses the source address") {
  FakeCore core;
  auto ranks = open_ranks(backend(), core, {0, 1}, with_rails({1, 3}));
  connect_ranks(ranks);
  int to_listener = 0;
  for (const auto& [addresses, count] : settled(2 * 2)) {
    if (addresses.second == "127.0.1.1") to_listener += count;
  }
  CHECK(to_listener == 2);
}

TEST_CASE("bytes stay in order over several rails") {
  const std::vector<std::pair<Layout, std::vector<int>>> cases = {{{0, 1}, {2, 2}},
                                                                  {{0, 0, 1, 1}, {2, 2, 2, 2}},
                                                                  {{0, 1, 2}, {3, 1, 2}},
                                                                  {{0, 0, 1}, {4, 4, 4}}};
  for (const auto& [layout, rails] : cases) {
    run_ranks(
        backend(), layout,
        [](Rank& rank) {
          // Message sizes slightly below and above the stripe size. Signatures travel in the same
          // byte stream, so they shift the positions at which stripes end.
          for (const std::uint64_t count :
               {1U, 1031U, 16'384U - 20U, 16'384U, 16'384U + 1U, 100'003U, 700'001U}) {
            gather_and_reduce(rank, count);
          }
        },
        with_rails(rails));
  }
}

TEST_CASE("an unreachable rail is an error that names it, even if other rails work") {
  GroupOptions options = with_rails({2, 2});
  options.rails[0] = "127.0.1.1 192.0.2.7";  // TEST-NET-1: an address that no host has
  options.cut_ns = 1'000'000'000;
  FakeCore core;
  auto ranks = open_ranks(backend(), core, {0, 1}, options);
  const auto results = until_one_fails(ranks, [](Rank& rank) {
    return rank.submit(rank.operation(ATOLL_BARRIER, 0, nullptr, nullptr, 0));
  });
  CHECK(results[1].status == ATOLL_PEER_LOST);
  for (const char* part :
       {"rank 0 (world rank 1)", "no connection with 192.0.2.7 port ", " at 127.0.2.2 ("}) {
    CHECK_MESSAGE(results[1].text.find(part) != std::string::npos, results[1].text);
  }
  CHECK_MESSAGE(results[0].text.find("that rank did not connect to 127.0.1.1") != std::string::npos,
                results[0].text);
}

TEST_CASE("a rank with too many rails is refused") {
  GroupOptions options = with_rails({65, 1});
  FakeCore core;
  const Group group({0, 1}, 0, options);
  atoll_comm* comm = nullptr;
  CHECK(backend().open(&core.services(), &group.get(), &comm) == ATOLL_INVALID_ARGUMENT);
  const std::string text = backend().last_error(nullptr);
  CHECK_MESSAGE(text.find("world rank 1 has 65 rails; the host backend supports at most 64") !=
                    std::string::npos,
                text);
}
