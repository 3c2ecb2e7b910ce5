// Tests of all_gather and reduce_scatter in two levels: when core uses them, and of ordered sums.
// tests/conformance has their results.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "atoll/communicator.hpp"
#include "comm/two_level.hpp"
#include "flight/flight.hpp"
#include "thread_ranks.hpp"

namespace {

// Returns all operations of a rank so far, each with its communicator, such as "shard.intra
// all_gather".
std::vector<std::string> done(atoll::World& world) {
  const auto log = atoll::Flight::of(world)->recorder().snapshot();
  std::vector<std::string> lines;
  for (const auto& operation : log.operations) {
    lines.push_back(log.communicators[operation.communicator].name + " " + operation.kind);
  }
  return lines;
}

// Returns the sorted names of the communicators that a rank opened so far.
std::vector<std::string> names_of_communicators(atoll::World& world) {
  std::vector<std::string> names;
  for (const auto& communicator : atoll::Flight::of(world)->recorder().snapshot().communicators) {
    names.push_back(communicator.name);
  }
  std::ranges::sort(names);
  return names;
}

// A job of `count` hosts with `per_host` ranks each. Ranks are threads that set different host ids.
// The backend does not implement levels itself.
struct Hosts {
  int count;
  int per_host;
  std::string algorithm;
  int ranks() const { return count * per_host; }
};
void run(const Hosts& hosts, const std::function<void(atoll::World&)>& body) {
  atoll_test::run_thread_ranks(hosts.ranks(), body, [&](atoll::Config& config) {
    config.host_id = std::to_string(config.rank / hosts.per_host);
    config.plugin_path = ATOLL_TEST_PLUGINS;
    config.backend = "levelless";
    config.algorithm = hosts.algorithm;
  });
}

constexpr std::uint64_t count = 1031;
const std::string two_levels = "all_gather:two_level,reduce_scatter:two_level";

}  // namespace

TEST_CASE("ordered sums exchange inside a host by the group of the host, if it is open") {
  const auto sums_and_kinds = [](const std::string& algorithm, bool even) {
    std::vector<std::vector<float>> sums(6);
    std::vector<std::string> kinds;
    run({2, 3, algorithm}, [&](atoll::World& world) {
      const auto mesh = atoll::Mesh::make(world, {1, 6});
      atoll::Axis axis = mesh.axis("shard");
      axis.block = 3;  // an order that no backend supports
      auto comm = atoll::Communicator::open(axis, {.deterministic = true});
      auto stream = comm.device().stream();
      const auto mine = static_cast<std::size_t>(comm.rank());
      std::vector<float> src(6 * count);
      for (std::size_t i = 0; i < src.size(); ++i) {
        src[i] = 1.0f / static_cast<float>(i % 1009 + 7 * mine + 1);
      }
      std::vector<std::uint64_t> counts(6, count);
      if (!even) counts = {count, 0, 2 * count, count, count, count};
      std::vector<float>& dst = sums[mine];
      dst.resize(counts[mine]);
      if (even) {
        comm.reduce_scatter(src, dst, atoll::ReduceOp::sum, stream).synchronize();
      } else {
        comm.reduce_scatter_v(src, dst, counts, atoll::ReduceOp::sum, stream).synchronize();
      }
      if (mine == 0) kinds = done(world);
    });
    const auto of_group = [&](const std::string& line) { return std::ranges::count(kinds, line); };
    return std::tuple(sums, of_group("shard.intra all_to_all"), of_group("shard send"));
  };
  for (const bool even : {true, false}) {
    CAPTURE(even);
    const auto [by_messages, no_exchanges, messages] = sums_and_kinds("", even);
    const auto [sums, exchanges, messages_inter] = sums_and_kinds(two_levels, even);
    CHECK(sums == by_messages);  // bit for bit
    CHECK(no_exchanges == 0);
    CHECK(exchanges == (even ? 1 : 0));
    // With or without the group, blocks of different sizes are exchanged by messages.
    CHECK(messages - messages_inter == (even ? 2 : 0));
  }
}

TEST_CASE("one level is used without known rates, on request, and for averages") {
  const auto kinds = [](const Hosts& hosts, atoll::ReduceOp op) {
    std::vector<std::string> seen;
    std::mutex mutex;
    run(hosts, [&](atoll::World& world) {
      const auto mesh = atoll::Mesh::make(world, {1, hosts.ranks()});
      auto comm = atoll::Communicator::open(mesh.axis("shard"));
      auto stream = comm.device().stream();
      std::vector<float> block(count), whole(block.size() * static_cast<std::size_t>(comm.size()));
      comm.reduce_scatter(whole, block, op, stream).synchronize();
      const std::lock_guard lock(mutex);
      seen = done(world);
    });
    return seen;
  };
  const std::vector<std::string> one = {"shard reduce_scatter"};
  CHECK(kinds({2, 2, ""}, atoll::ReduceOp::sum) == one);
  CHECK(kinds({2, 2, "reduce_scatter:flat"}, atoll::ReduceOp::sum) == one);
  CHECK(kinds({2, 2, two_levels}, atoll::ReduceOp::avg) == one);
  // A single host with 4 ranks needs no second level.
  CHECK(kinds({1, 4, two_levels}, atoll::ReduceOp::sum) == one);
  // 4 hosts with one rank each need no second level.
  CHECK(kinds({4, 1, two_levels}, atoll::ReduceOp::sum) == one);
  CHECK(kinds({2, 2, two_levels}, atoll::ReduceOp::sum).size() == 3);
}

TEST_CASE("with levels = false a communicator opens no groups inside and across hosts") {
  run({2, 2, two_levels}, [](atoll::World& world) {
    const auto mesh = atoll::Mesh::make(world, {1, 4});
    auto comm = atoll::Communicator::open(mesh.axis("shard"), {.levels = false});
    CHECK(comm.scratch_bytes(atoll::Communicator::Sum::reduce_scatter, count, atoll::DType::f32) ==
          0);
    CHECK(names_of_communicators(world) == std::vector<std::string>{"shard"});
    const auto part = comm.split(0, 0, "part");
    CHECK(names_of_communicators(world) == std::vector<std::string>{"part", "shard"});
  });
}

TEST_CASE("two levels are modelled as faster if NICs are slower than links inside a host") {
  // Two hosts of 8 GPUs with 450 GB/s inside each host and one NIC of 50 GB/s per host.
  const atoll::GroupRate flat{.gbyte_s = 50, .latency_us = 70};
  const atoll::LevelRates levels{{.gbyte_s = 450, .latency_us = 30},
                                 {.gbyte_s = 6.25, .latency_us = 20}};
  constexpr double large = 1 << 30;
  CHECK(levels.seconds(large, 16, 8) < flat.seconds(large, 16));
  // With one NIC per GPU, the network is nearly as fast as NVLink, so one level is faster.
  const atoll::LevelRates rails{{.gbyte_s = 450, .latency_us = 30},
                                {.gbyte_s = 50, .latency_us = 20}};
  const atoll::GroupRate fast{.gbyte_s = 400, .latency_us = 70};
  CHECK(rails.seconds(large, 16, 8) > fast.seconds(large, 16));
}
