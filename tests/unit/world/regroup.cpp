// Tests Worlds that are rebuilt: the living ranks of an epoch form the next one, without ranks that
// are lost or belong to an incomplete replica, and with new processes.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/tooling/store.hpp"
#include "reserved_port.hpp"
#include "store/regroup.hpp"
#include "thread_ranks.hpp"
#include "unit/child_process.hpp"
#include "unit/error_text.hpp"

namespace {

using namespace std::chrono_literals;
using atoll::World;
using atoll_test::ChildProcess;
using atoll_test::error_of;
using atoll_test::has;
namespace store = atoll::store;

void survive(atoll::Config& config) {
  config.failure_scope = "communicator";
  config.timeout = 20s;
}

// Runs `body` on ranks whose job survives the loss of a rank.
void run(int ranks, const std::function<void(World&)>& body) {
  atoll_test::run_thread_ranks(ranks, body, survive);
}

// Opens a communicator of all ranks and returns the sum of a one of each.
float sum_of_ones(World& world) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  auto all = atoll::Communicator::open(world, ranks, "all", {.backend = "host"});
  auto stream = atoll::Device::cpu().stream();
  std::vector<float> values(1000, 1.0f);
  all.all_reduce(values, values, atoll::ReduceOp::sum, stream).synchronize();
  return values.back();
}

store::Candidacy candidate(int rank, std::string tag = "", std::uint32_t needed = 1) {
  store::Candidacy result;
  result.rank = rank;
  result.tag = std::move(tag);
  result.needed = needed;
  return result;
}

// Runs one rank of a job in a child process.
class RankProcess {
 public:
  RankProcess(const atoll_test::ReservedPort& port, int rank, int size,
              const std::function<void(World&, int out)>& body,
              std::chrono::seconds heartbeat = 10s, bool has_local_rank = false)
      : child_([&](int out) {
          atoll::Config config = config_of(port);
          config.heartbeat = heartbeat;
          config.rank = rank;
          config.size = size;
          if (has_local_rank) config.local_rank = rank;
          auto world = World::from_env(config);
          body(world, out);
        }) {}
  static atoll::Config config_of(const atoll_test::ReservedPort& port) {
    atoll::Config config;
    config.addr = port.address();
    config.token = "processes of one test";
    config.log = "off";
    survive(config);
    return config;
  }
  ChildProcess& child() { return child_; }

 private:
  ChildProcess child_;
};

}  // namespace

TEST_CASE(
    "whole replicas and ranks without a tag form the next epoch, in the order of their ranks") {
  using Indices = std::vector<std::size_t>;
  CHECK(store::choose({}).empty());
  const store::Candidacy alone[] = {candidate(2), candidate(-1), candidate(0)};
  CHECK(store::choose(alone) == Indices{2, 0, 1});
  const store::Candidacy replicas[] = {candidate(3, "b", 2), candidate(0, "a", 2),
                                       candidate(1, "a", 2)};
  CHECK(store::choose(replicas) == Indices{1, 2});
  const store::Candidacy healed[] = {candidate(3, "b", 2), candidate(-1, "b", 2),
                                     candidate(-1, "b", 2), candidate(1, "a", 1)};
  CHECK(store::choose(healed) == Indices{3, 0, 1});
}

TEST_CASE("messages about epochs survive encoding, and wrong ones are refused") {
  store::Candidacy wish = candidate(3, "left", 2);
  wish.epoch = 7;
  wish.former = 5;
  wish.host = "here";
  wish.grace = 5s;
  const store::Candidacy same = store::decode_candidacy(store::encode(wish));
  CHECK(store::named(same) == "rank 3 of epoch 7 (host here, pid 0)");
  CHECK(same.former == 5);
  CHECK(same.tag == "left");
  CHECK(same.needed == 2);
  CHECK(same.grace == 5s);
  CHECK(store::decode_candidacy(store::encode(candidate(-1))).is_new());
  const store::Seat seat =
      store::decode_seat(store::encode(store::Seat{2, 1, {0, -1, 4}, "s", "n"}));
  CHECK(seat.nonce == "n");
  CHECK(seat.former_ranks == std::vector{0, -1, 4});
  CHECK(seat.rank == 1);
  const std::string bad = store::encode(store::Seat{2, 3, {0, -1, 4}, "s", "n"});
  CHECK(has(error_of([&] { store::decode_seat(bad); }), "rank 3 of an epoch of 3 ranks"));
  const std::string good = store::encode(wish);
  for (std::size_t length = 0; length < good.size(); ++length) {
    CHECK(has(error_of([&] { store::decode_candidacy(good.substr(0, length)); }), "bad data"));
  }
}

TEST_CASE("ranks rebuild their World again and again on request") {
  run(3, [](World& first) {
    CHECK(first.epoch() == 0);
    CHECK(first.former_ranks().empty());
    first.put("key", "of epoch 0");
    auto world = std::make_unique<World>(World::regroup(first));
    for (int epoch = 1; epoch < 4; ++epoch) {
      CAPTURE(epoch);
      CHECK(world->epoch() == epoch);
      CHECK(world->rank() == first.rank());
      CHECK(world->former_ranks() == std::vector{0, 1, 2});
      CHECK(sum_of_ones(*world) == 3.0f);
      CHECK(has(error_of([&] { world->get("key", 50ms); }), "timeout"));
      world = std::make_unique<World>(World::regroup(*world));
    }
    world->barrier();
  });
}

TEST_CASE("a request for a new epoch ends the collectives of the last one on all ranks") {
  std::latch opened(2);  // the request would end open() as well
  run(2, [&](World& first) {
    auto all = atoll::Communicator::open(first, {0, 1}, "all", {.backend = "host"});
    opened.arrive_and_wait();
    auto stream = atoll::Device::cpu().stream();
    if (first.rank() == 1) {
      auto next = World::regroup(first);
      CHECK(sum_of_ones(next) == 2.0f);
      return;
    }
    std::vector<float> one(1, 1.0f);
    const std::string error =
        error_of([&] { all.all_reduce(one, one, atoll::ReduceOp::sum, stream).synchronize(); });
    CHECK(has(error, {"peer lost", "rank 1", "rebuilds its World"}));
    auto next = World::regroup(first);
    CHECK(has(error_of([&] {
                static_cast<void>(all.all_reduce(one, one, atoll::ReduceOp::sum, stream));
              }),
              "aborted"));
    CHECK(sum_of_ones(next) == 2.0f);
  });
}

TEST_CASE("a rank that does not call regroup() within the grace time is left behind") {
  run(3, [](World& first) {
    if (first.rank() == 2) {
      CHECK(has(error_of([&] { first.get("never", 15s); }),
                {"timeout", "epoch 1 began without rank 2"}));
      CHECK(has(error_of([&] { World::regroup(first); }),
                {"mismatch", "rank 2 of epoch 0", "World::enter()"}));
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    auto next = World::regroup(first, {.grace = 700ms});
    const auto time = std::chrono::steady_clock::now() - begin;
    CHECK(time > 300ms);
    CHECK(time < 5s);
    CHECK(next.former_ranks() == std::vector{0, 1});
    CHECK(sum_of_ones(next) == 2.0f);
  });
}

TEST_CASE("a replica that is not whole is left out, although its rank serves the store") {
  run(3, [](World& first) {
    if (first.rank() == 0) {
      CHECK(has(error_of([&] { World::regroup(first, {.tag = "a", .needed = 2}); }),
                {"mismatch", "its replica is not whole"}));
      return;
    }
    auto next = World::regroup(first, {.tag = "b", .needed = 2});
    CHECK(next.rank() == first.rank() - 1);
    CHECK(next.size() == 2);
    CHECK(sum_of_ones(next) == 2.0f);
  });
}

TEST_CASE("fewer ranks than min_ranks begin no epoch") {
  run(2, [](World& first) {
    const World::Regroup wish{.min_ranks = 3};
    CHECK(has(error_of([&] { World::regroup(first, wish); }),
              {"aborted", "2 of 2 ranks are left", "min_ranks is 3"}));
  });
}

TEST_CASE("ranks can rebuild a World that has failed") {
  run(2, [](World& first) {
    first.barrier();
    if (first.rank() == 1) first.fail("a rank gives up");
    CHECK(has(error_of([&] { first.get("never", 10s); }), "a rank gives up"));
    auto next = World::regroup(first);
    CHECK(sum_of_ones(next) == 2.0f);
  });
}

TEST_CASE("two jobs in one process at once: one fails, the other goes on, and no thread is left") {
  const auto threads = [] {
    const std::filesystem::directory_iterator all("/proc/self/task");
    return std::distance(begin(all), end(all));
  };
  const auto before = threads();
  std::thread failing([] {
    atoll_test::run_thread_ranks(2, [](World& world) {
      CHECK(sum_of_ones(world) == 2.0f);
      if (world.rank() == 1) world.fail("the disk of rank 1 is full");
      while (!world.failure()) std::this_thread::sleep_for(1ms);
    });
  });
  run(3, [](World& world) {
    for (int round = 0; round < 20; ++round) CHECK(sum_of_ones(world) == 3.0f);
  });
  failing.join();
  for (int tries = 0; threads() != before && tries < 500; ++tries)
    std::this_thread::sleep_for(10ms);
  CHECK(threads() == before);
}

TEST_CASE("wrong calls of regroup() and enter()") {
  auto alone = atoll_test::single_rank();
  CHECK(has(error_of([&] { World::regroup(alone); }), "a job of one process has no store"));
  CHECK(has(error_of([] { World::enter({}, atoll::Config()); }), "ATOLL_FAILURE_SCOPE"));
  CHECK(has(error_of([] {
              atoll::Config config;
              survive(config);
              World::enter({}, config);
            }),
            {"ATOLL_ADDR", "ATOLL_TOKEN"}));
  atoll_test::run_thread_ranks(2, [](World& world) {
    CHECK(has(error_of([&] { World::regroup(world); }), "ATOLL_FAILURE_SCOPE"));
  });
  run(2, [](World& world) {
    CHECK(has(error_of([&] { World::regroup(world, {.needed = 2}); }), "needs a tag"));
    CHECK(has(error_of([&] { World::regroup(world, {.min_ranks = 0}); }), "min_ranks 0"));
    CHECK(sum_of_ones(world) == 2.0f);  // the World remains usable
  });
}

TEST_CASE("with a store of its own, rank 0 may leave, and the others go on") {
  atoll::StoreServer server({.address = "127.0.0.1:0", .token = "store", .ranks = 3});
  atoll_test::run_thread_ranks(
      3,
      [](World& world) {
        CHECK(sum_of_ones(world) == 3.0f);
        world.barrier();
        if (world.rank() == 0) return world.leave();
        while (world.departed().empty()) std::this_thread::sleep_for(1ms);
        CHECK(world.departed().front() == 0);  // the other rank may ask for the next epoch already
        auto next = World::regroup(world);
        CHECK(next.former_ranks() == std::vector{1, 2});
        CHECK(sum_of_ones(next) == 2.0f);
      },
      [&](atoll::Config& config) {
        survive(config);
        config.store = "external";
        config.addr = server.address();
        config.token = "store";
      });
  server.wait();
}

TEST_CASE("the token of an epoch cannot be guessed from that of the job") {
  std::vector<std::string> tokens;
  std::mutex mutex;
  for (int job = 0; job < 2; ++job) {
    run(2, [&](World& first) {
      auto next = World::regroup(first);
      const std::lock_guard lock(mutex);
      tokens.push_back(next.config().token);
      CHECK(next.config().token != first.config().token);
    });
  }
  REQUIRE(tokens.size() == 4);
  CHECK(tokens[0] == tokens[1]);
  CHECK(tokens[2] == tokens[3]);
  CHECK(tokens[0] != tokens[2]);
}

TEST_CASE("processes: killed ranks are left out, and a new process takes the free place") {
  const atoll_test::ReservedPort port;
  const auto body = [&](World& first, int out) {
    if (sum_of_ones(first) != 3.0f) return;
    if (first.rank() == 1) ::kill(::getpid(), SIGKILL);
    error_of([&] { first.barrier(); });
    auto second = World::regroup(first);
    ::dprintf(out, "%d of %d: %g\n", second.rank(), second.size(), sum_of_ones(second));
    std::this_thread::sleep_for(1s);  // until the new process waits
    auto third = World::regroup(second);
    ::dprintf(out, "%d of %d: %g\n", third.rank(), third.size(), sum_of_ones(third));
  };
  RankProcess zero(port, 0, 3, body), one(port, 1, 3, body), two(port, 2, 3, body);
  CHECK(zero.child().line() == "0 of 2: 2");
  CHECK(two.child().line() == "1 of 2: 2");
  ChildProcess entering([&](int out) {
    auto world = World::enter({}, RankProcess::config_of(port));
    ::dprintf(out, "%d of %d, epoch %d, %d %d %d: %g\n", world.rank(), world.size(), world.epoch(),
              world.former_ranks()[0], world.former_ranks()[1], world.former_ranks()[2],
              sum_of_ones(world));
  });
  CHECK(zero.child().line() == "0 of 3: 3");
  CHECK(two.child().line() == "1 of 3: 3");
  CHECK(entering.line() == "2 of 3, epoch 2, 0 1 -1: 3");
}

TEST_CASE("processes: a rank that is killed while it waits for the next epoch is left out") {
  const atoll_test::ReservedPort port;
  const auto body = [&](World& first, int out) {
    first.barrier();
    ::dprintf(out, "ready\n");
    if (first.rank() == 0) std::this_thread::sleep_for(1s);
    auto next = World::regroup(first);
    ::dprintf(out, "%d of %d: %g\n", next.rank(), next.size(), sum_of_ones(next));
  };
  RankProcess zero(port, 0, 3, body), one(port, 1, 3, body), two(port, 2, 3, body);
  for (RankProcess* rank : {&zero, &one, &two}) CHECK(rank->child().line() == "ready");
  std::this_thread::sleep_for(300ms);
  ::kill(one.child().pid(), SIGKILL);
  CHECK(zero.child().line() == "0 of 2: 2");
  CHECK(two.child().line() == "1 of 2: 2");
}

TEST_CASE("processes: a new process that does not fit is refused, and the ranks go on") {
  const atoll_test::ReservedPort port;
  const auto body = [&](World& first, int out) {
    first.barrier();
    ::dprintf(out, "ready\n");
    std::this_thread::sleep_for(1s);
    auto next = World::regroup(first);
    ::dprintf(out, "%d of %d: %g\n", next.rank(), next.size(), sum_of_ones(next));
  };
  RankProcess zero(port, 0, 2, body, 10s, true), one(port, 1, 2, body, 10s, true);
  for (RankProcess* rank : {&zero, &one}) CHECK(rank->child().line() == "ready");
  const auto enters = [&](const std::function<void(atoll::Config&)>& change) {
    return [&port, change](int out) {
      atoll::Config config = RankProcess::config_of(port);
      config.local_rank = 2;
      change(config);
      ::dprintf(out, "%s\n", error_of([&] { World::enter({}, config); }).c_str());
    };
  };
  ChildProcess slow(enters([](atoll::Config& config) { config.timeout = 7s; }));
  ChildProcess second(enters([](atoll::Config& config) { config.local_rank = 1; }));
  ChildProcess apart(enters([](atoll::Config& config) { config.interface = "nosuch0"; }));
  CHECK(has(apart.line(), "nosuch0"));
  CHECK(has(slow.line(), {"mismatch", "ATOLL_TIMEOUT=7", "ATOLL_TIMEOUT=20"}));
  CHECK(has(second.line(), {"mismatch", "local rank 1", "ATOLL_LOCAL_RANK"}));
  CHECK(zero.child().line() == "0 of 2: 2");
  CHECK(one.child().line() == "1 of 2: 2");
}

TEST_CASE("processes: a rank that is stopped for less than the heartbeat is not lost") {
  const atoll_test::ReservedPort port;
  const auto body = [&](World& first, int out) {
    first.barrier();
    ::dprintf(out, "ready\n");
    if (first.rank() == 1) ::raise(SIGSTOP);
    first.barrier();
    ::dprintf(out, "%zu lost\n", first.departed().size());
  };
  RankProcess zero(port, 0, 2, body, 4s), one(port, 1, 2, body, 4s);
  for (RankProcess* rank : {&zero, &one}) CHECK(rank->child().line() == "ready");
  std::this_thread::sleep_for(2s);
  ::kill(one.child().pid(), SIGCONT);
  for (RankProcess* rank : {&zero, &one}) CHECK(rank->child().line() == "0 lost");
}

TEST_CASE("processes: a stopped rank counts as lost after the heartbeat, and learns it") {
  const atoll_test::ReservedPort port;
  const auto body = [&](World& first, int out) {
    first.barrier();
    ::dprintf(out, "ready\n");
    if (first.rank() == 1) ::raise(SIGSTOP);
    const std::string error = error_of([&] { first.exchange("key", ""); });
    ::dprintf(out, "%s\n", error.c_str());
    if (first.rank() == 0) ::dprintf(out, "%d\n", World::regroup(first).size());
  };
  RankProcess zero(port, 0, 2, body, 1s), one(port, 1, 2, body, 1s);
  for (RankProcess* rank : {&zero, &one}) CHECK(rank->child().line() == "ready");
  CHECK(has(zero.child().line(), {"peer lost", "rank 1", "was lost"}));
  CHECK(zero.child().line() == "1");
  ::kill(one.child().pid(), SIGCONT);
  CHECK(has(one.child().line(), {"peer lost", "rank 1", "no sign of life for 1 s"}));
}

TEST_CASE(
    "processes: a rank that was cut off from the store gets its place if it returns in time") {
  const atoll_test::ReservedPort port;
  const auto body = [&](World& first, int out) {
    first.barrier();
    ::dprintf(out, "ready\n");
    if (first.rank() == 1) ::raise(SIGSTOP);
    if (first.rank() == 2) std::this_thread::sleep_for(4s);  // the list stays open
    error_of([&] { first.barrier(); });
    auto next = World::regroup(first);
    ::dprintf(out, "%d of %d: %g\n", next.rank(), next.size(), sum_of_ones(next));
  };
  RankProcess zero(port, 0, 3, body, 1s), one(port, 1, 3, body, 1s), two(port, 2, 3, body, 1s);
  for (RankProcess* rank : {&zero, &one, &two}) CHECK(rank->child().line() == "ready");
  std::this_thread::sleep_for(2s);
  ::kill(one.child().pid(), SIGCONT);
  CHECK(zero.child().line() == "0 of 3: 3");
  CHECK(one.child().line() == "1 of 3: 3");
  CHECK(two.child().line() == "2 of 3: 3");
}
