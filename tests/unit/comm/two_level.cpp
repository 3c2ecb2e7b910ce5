// Tests of all_gather and reduce_scatter in two levels: when core uses them, and their results.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/plugin.h"
#include "atoll/schedule.hpp"
#include "comm/tuning.hpp"
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

// Checks all_gather, out of place and then in place, with blocks that contain the number of their
// rank.
void check_all_gather(atoll::Communicator& comm, atoll::Stream& stream) {
  const auto n = static_cast<std::uint64_t>(comm.size()),
             mine = static_cast<std::uint64_t>(comm.rank());
  std::vector<float> expected;
  for (std::uint64_t r = 0; r < n; ++r)
    expected.insert(expected.end(), count, static_cast<float>(r));
  const std::vector<float> src(count, static_cast<float>(mine));
  std::vector<float> dst(n * count, -1);
  comm.all_gather(src, dst, stream).synchronize();
  CHECK(dst == expected);
  std::fill(dst.begin(), dst.end(), -1.0f);
  const std::span own = std::span(dst).subspan(mine * count, count);
  std::ranges::copy(src, own.begin());
  comm.all_gather(std::span<const float>(own), dst, stream).synchronize();
  CHECK(dst == expected);
}

void check_reduce_scatter(atoll::Communicator& comm, atoll::Stream& stream) {
  const auto n = static_cast<std::uint64_t>(comm.size()),
             mine = static_cast<std::uint64_t>(comm.rank());
  std::vector<float> src(n * count);
  for (std::uint64_t i = 0; i < src.size(); ++i) {
    src[i] = static_cast<float>((i / count + 1) * (mine + 1));
  }
  const auto kept = src;
  // All ranks use the factor 2. Block `mine` of every rank r holds (r + 1) * (mine + 1), so the sum
  // is 2 * (1 + ... + n) * (mine + 1).
  const auto sum = static_cast<float>(n * (n + 1) * (mine + 1));
  std::vector<float> dst(count);
  comm.reduce_scatter(src, dst, {atoll::ReduceOp::sum, 2.0}, stream).synchronize();
  CHECK(dst == std::vector<float>(count, sum));
  CHECK(src == kept);
  const std::span own = std::span(src).subspan(mine * count, count);
  comm.reduce_scatter(std::span<const float>(src), own, atoll::ReduceOp::max, stream).synchronize();
  CHECK(std::ranges::all_of(own, [&](float v) { return v == static_cast<float>(n * (mine + 1)); }));
}

}  // namespace

TEST_CASE("all_gather and reduce_scatter are correct with several shapes of hosts") {
  for (const auto& [hosts, per_host] : {std::pair{2, 2}, std::pair{2, 3}, std::pair{3, 2}}) {
    CAPTURE(hosts);
    CAPTURE(per_host);
    run({hosts, per_host, two_levels}, [](atoll::World& world) {
      const auto mesh = atoll::Mesh::make(world, {1, world.size()});
      auto comm = atoll::Communicator::open(mesh.axis("shard"));
      auto stream = comm.device().stream();
      check_all_gather(comm, stream);
      check_reduce_scatter(comm, stream);
    });
  }
}

TEST_CASE("the operations of both levels, and the planned scratch memory") {
  run({2, 2, two_levels}, [](atoll::World& world) {
    const auto mesh = atoll::Mesh::make(world, {1, 4});
    auto comm = atoll::Communicator::open(mesh.axis("shard"));
    auto stream = comm.device().stream();
    std::vector<float> block(count), whole(4 * count);
    comm.all_gather(block, whole, stream).synchronize();
    CHECK(done(world) == std::vector<std::string>{"shard.inter send", "shard.inter recv",
                                                  "shard.intra all_gather",
                                                  "shard.intra all_gather"});
    using Sum = atoll::Communicator::Sum;
    const std::uint64_t planned = comm.scratch_bytes(Sum::reduce_scatter, count, atoll::DType::f32);
    CHECK(planned == 2 * count * sizeof(float));
    const std::size_t before = comm.device().allocated_bytes();
    comm.reduce_scatter(whole, block, atoll::ReduceOp::sum, stream).synchronize();
    CHECK(comm.device().allocated_bytes() - before == planned);
    const auto all = done(world);
    CHECK(std::vector(all.begin() + 4, all.end()) ==
          std::vector<std::string>{"shard.intra reduce_scatter", "shard.intra reduce_scatter",
                                   "shard.inter reduce_scatter"});
  });
}

TEST_CASE("ordered sums exchange inside a host by the group of the host, if it is open") {
  const auto sums_and_kinds = [](const std::string& algorithm, bool even) {
    std::vector<std::vector<float>> sums(6);
    std::vector<std::string> kinds;
    run({2, 3, algorithm}, [&](atoll::World& world) {
      const auto mesh = atoll::Mesh::make(world, {1, 6});
      atoll::Axis axis = mesh.axis("shard");
      axis.block = 3;  // an order that no backend knows
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
    CHECK(sums == by_messages);  // to the bit
    CHECK(no_exchanges == 0);
    CHECK(exchanges == (even ? 1 : 0));
    // Blocks of different sizes take messages, as they do without the group.
    CHECK(messages - messages_inter == (even ? 2 : 0));
  }
}

TEST_CASE("abort() ends the operations of both levels, and the World goes on") {
  run({2, 2, two_levels}, [](atoll::World& world) {
    const auto mesh = atoll::Mesh::make(world, {1, 4});
    std::vector<float> block(count), whole(4 * count);
    auto comm = atoll::Communicator::open(mesh.axis("shard"));
    auto stream = comm.device().stream();
    std::string error;
    try {
      if (world.rank() == 3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        comm.abort("stop");
      }
      comm.all_gather(block, whole, stream).synchronize();
    } catch (const atoll::Error& problem) {
      error = problem.what();
    }
    world.barrier();
    CHECK(!world.failure().has_value());
    // Ranks 0 and 2 wait inside their host for a rank that waits for rank 3 across hosts.
    CHECK(error.find(" was aborted by rank 3: stop") != std::string::npos);
  });
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
    auto stream = comm.device().stream();
    check_all_gather(comm, stream);
    check_reduce_scatter(comm, stream);
    CHECK(comm.scratch_bytes(atoll::Communicator::Sum::reduce_scatter, count, atoll::DType::f32) ==
          0);
    CHECK(names_of_communicators(world) == std::vector<std::string>{"shard"});
    const auto part = comm.split(0, 0, "part");
    CHECK(names_of_communicators(world) == std::vector<std::string>{"part", "shard"});
  });
}

TEST_CASE("a scheduler opens levels only for the lanes that gather and reduce_scatter") {
  run({2, 2, two_levels}, [](atoll::World& world) {
    const auto mesh = atoll::Mesh::make(world, {1, 4});
    const atoll::Scheduler sharded(mesh.axis("shard"), {});
    CHECK(names_of_communicators(world) ==
          std::vector<std::string>{"shard.gather", "shard.gather.inter", "shard.gather.intra",
                                   "shard.reduce", "shard.reduce.inter", "shard.reduce.intra"});
  });
  run({2, 2, two_levels}, [](atoll::World& world) {
    const auto mesh = atoll::Mesh::make(world, {4, 1});
    const atoll::Scheduler replicated({}, mesh.axis("replicate"));
    CHECK(names_of_communicators(world) == std::vector<std::string>{"replicate.replicate"});
  });
}

TEST_CASE("memory of atoll::allocate is on the fast path of both levels") {
  run({2, 2, two_levels}, [](atoll::World& world) {
    const auto mesh = atoll::Mesh::make(world, {1, 4});
    auto comm = atoll::Communicator::open(mesh.axis("shard"));
    auto stream = comm.device().stream();
    atoll::Buffer memory = atoll::allocate(comm.device(), 4 * count * sizeof(float), {comm});
    const atoll::View whole = memory.view(atoll::DType::f32);
    const atoll::View own = whole.part(static_cast<std::uint64_t>(comm.rank()) * count, count);
    std::fill_n(own.as<float>(), count, static_cast<float>(comm.rank()));
    comm.all_gather(own, whole, stream).synchronize();
    for (std::uint64_t i = 0; i < 4 * count; i += 97) {
      CHECK(whole.as<float>()[i] == static_cast<float>(i / count));
    }
  });
}

TEST_CASE("LevelChoice removes only the lines that choose between one and two levels") {
  std::string tuning =
      "all_gather 0 two_level\nall_gather 4096 flat\nall_reduce 0 two_level\nconnections 4\n"
      "reduce_scatter 64 ring\n";
  const auto choice = atoll::LevelChoice::take_from(tuning);
  CHECK(tuning == "all_reduce 0 two_level\nconnections 4\nreduce_scatter 64 ring\n");
  CHECK(choice.two_level(ATOLL_ALL_GATHER, 4095) == std::optional(true));
  CHECK(choice.two_level(ATOLL_ALL_GATHER, 4096) == std::optional(false));
  CHECK_FALSE(choice.two_level(ATOLL_REDUCE_SCATTER, 1 << 20));
}

TEST_CASE("two levels are modelled as faster if NICs are slower than links inside a host") {
  // Two hosts of 8 GPUs with 450 GB/s inside each host and one NIC of 50 GB/s per host.
  const atoll::GroupRate flat{.gbyte_s = 50, .latency_us = 70};
  const atoll::LevelRates levels{{.gbyte_s = 450, .latency_us = 30},
                                 {.gbyte_s = 6.25, .latency_us = 20}};
  constexpr double large = 1 << 30;
  CHECK(flat.seconds(large, 16) == doctest::Approx(70e-6 + 15.0 / 16 * large / 50e9));
  CHECK(levels.seconds(large, 16, 8) ==
        doctest::Approx(50e-6 + 0.5 * large / 50e9 + 7.0 / 8 * large / 450e9));
  CHECK(levels.seconds(large, 16, 8) < flat.seconds(large, 16));
  // With one NIC per GPU the network is nearly as fast as the island, so two levels take longer
  // than one level.
  const atoll::LevelRates rails{{.gbyte_s = 450, .latency_us = 30},
                                {.gbyte_s = 50, .latency_us = 20}};
  const atoll::GroupRate fast{.gbyte_s = 400, .latency_us = 70};
  CHECK(rails.seconds(large, 16, 8) > fast.seconds(large, 16));
}
