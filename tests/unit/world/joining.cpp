// Tests of jobs whose ranks do not fit together: every rank that waits or is refused reports which
// process is wrong, why, and what to do.
#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/world.hpp"
#include "core/host.hpp"
#include "core/socket.hpp"
#include "unit/collected_log.hpp"
#include "unit/error_text.hpp"
#include "unit/rank_reports.hpp"
#include "unit/store/place.hpp"
#include "world/introduction.hpp"
#include "world/world_internals.hpp"

using namespace std::chrono_literals;
using atoll_test::CollectedLog;
using atoll_test::error_of;
using atoll_test::has;
using atoll_test::ReservedPort;
using atoll_test::thread_rank_config;

namespace {

// The host and pid of this process, as errors name ranks.
std::string here() {
  return "(host " + atoll::net::host_name() + ", pid " + std::to_string(::getpid()) + ")";
}

// Starts one thread for each rank of `size`, which joins with the settings that `change` makes, and
// returns the errors.
std::vector<std::string> join_all(int size,
                                  const std::function<void(atoll::Config&, int rank)>& change) {
  const ReservedPort port;
  std::vector<std::string> results(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      atoll::Config config = thread_rank_config(rank, size, port);
      change(config, rank);
      results[static_cast<std::size_t>(rank)] =
          error_of([&] { atoll::World::from_env(config).barrier(); });
    });
  }
  threads.clear();
  return results;
}

// Waits until a process listens on the port and has had time to join its own store.
void wait_for_store(const ReservedPort& port) {
  const auto address = atoll::net::resolve("127.0.0.1", port.number()).front();
  for (int attempt = 0; attempt < 1000; ++attempt) {
    try {
      atoll::net::connect_to(address, atoll::net::Clock::now() + 5s);
      break;
    } catch (const atoll::Error&) {
      std::this_thread::sleep_for(10ms);
    }
  }
  std::this_thread::sleep_for(200ms);
}

const std::string remedy_of_2 = ": rank 0 started a job of 2 ranks; start this process with size 2";

}  // namespace

TEST_CASE("while rank 0 waits for ranks, it says which, less often the longer it waits") {
  using namespace atoll_test;
  const CollectedLog log;
  Place place(3, 1s, store::max_strangers, 100ms);
  Rank zero(place, 0), two(place, 2);
  CHECK_THROWS_AS(two.client.exchange("", "", 60s), atoll::Error);
  const auto lines = log.count("rank 0 has waited 0.");
  CHECK(lines >= 2);  // after 0.1, 0.2, 0.4 and 0.8 s, or somewhat later
  CHECK(lines <= 4);
  CHECK(log.count("s of 1 s for rank 1 to join the job") >= lines);
}

TEST_CASE("a rank with another size is refused, and rank 0 says which and why") {
  const auto results = join_all(2, [](atoll::Config& config, int rank) {
    config.rendezvous_timeout = 1s;
    config.size = rank == 1 ? 3 : 2;
  });
  const std::string refused = "rank 1 of 3 " + here() + remedy_of_2;
  CHECK(has(results[1], "mismatch: " + refused));
  CHECK(has(results[0], "rank 1 did not join the job within 1 s; the store refused " + refused));
}

TEST_CASE("a rank outside of the job reports itself to rank 0") {
  const auto results = join_all(2, [](atoll::Config& config, int rank) {
    config.rendezvous_timeout = 3s;
    if (rank == 1) config.rank = 5;
  });
  const std::string mistake = "ATOLL_RANK=5 and ATOLL_SIZE=2: expected 0 <= rank < size";
  CHECK(results[1] == "invalid argument: " + mistake);
  CHECK(has(results[0], {"timeout: rank 1 did not join the job within 3 s",
                         "the store refused rank 5 of 2 " + here() + remedy_of_2}));
  // Without a usable address, a rank reports its first mistake.
  atoll::Config config;
  config.rank = 5;
  config.size = 2;
  config.addr = "nowhere";
  config.token = "secret";
  CHECK(error_of([&] { atoll::World::from_env(config); }) == "invalid argument: " + mistake);
}

TEST_CASE("rank 0 says that a process has another token, but not what it claims to be") {
  const auto results = join_all(2, [](atoll::Config& config, int rank) {
    config.rendezvous_timeout = 1s;
    if (rank == 1) config.token = "other";
  });
  CHECK(has(results[0], {"timeout: rank 1 did not join the job within 1 s; a process at 127.0.0.1 ",
                         " has another token: is ATOLL_TOKEN equal on all ranks?"}));
  CHECK(has(results[1], "does not accept this token; is ATOLL_TOKEN equal on all ranks?"));
}

TEST_CASE("two processes with rank 0: both say so") {
  const ReservedPort port;
  std::string first;
  atoll::Config config = thread_rank_config(0, 2, port);
  config.rendezvous_timeout = 2s;
  std::jthread thread([&] { first = error_of([&] { atoll::World::from_env(config); }); });
  wait_for_store(port);
  const std::string second = error_of([&] { atoll::World::from_env(config); });
  thread.join();
  const std::string refused =
      "rank 0 " + here() + ": rank 0 " + here() + " has already joined the job; give every process";
  CHECK(has(second, "mismatch: rank 0 cannot serve the store: " + refused));
  CHECK(has(first, "rank 1 did not join the job within 2 s; the store refused " + refused));
}

TEST_CASE("another program has the port of the store") {
  const ReservedPort port;
  const auto squatter =
      atoll::net::listen_on(atoll::net::resolve("127.0.0.1", port.number()).front());
  const std::string place = "127.0.0.1 port " + std::to_string(port.number());
  atoll::Config config = thread_rank_config(0, 2, port);
  config.rendezvous_timeout = 1s;
  CHECK(has(error_of([&] { atoll::World::from_env(config); }),
            {"rank 0 cannot serve the store: cannot listen on " + place + ": Address already in",
             "(ATOLL_ADDR, or MASTER_ADDR and ATOLL_PORT)"}));
  config.rank = 1;
  CHECK(has(error_of([&] { atoll::World::from_env(config); }),
            {"timeout: rank 1 " + here() + " cannot reach the store of the job: " + place,
             "does another program use this port"}));
}

TEST_CASE("rank 0 on another host than the address of the store says so") {
  const ReservedPort port;
  atoll::Config config = thread_rank_config(0, 2, port);
  config.addr = "192.0.2.1:29511";  // TEST-NET-1, which no host has
  CHECK(has(error_of([&] { atoll::World::from_env(config); }),
            {"it runs on host " + atoll::net::host_name() + ", but 192.0.2.1 is not an address of",
             "set ATOLL_ADDR=", "--node-rank"}));
}

TEST_CASE("a broadcast of the program that returns another text is named as the reason") {
  const auto joined = [](int rank) {
    return error_of(
        [&] { atoll::World::from_ranks(rank, 2, [](const std::string&) { return "hello"; }, {}); });
  };
  CHECK(has(joined(1), "on rank 1, `broadcast` returned 5 bytes that are not the text of rank 0"));
  CHECK(has(joined(0), "on rank 0, `broadcast` returned another text than it was given"));
}

TEST_CASE("settings that must be equal are compared when the job starts") {
  const auto check_all = [](const std::vector<std::string>& results, const std::string& what) {
    for (const std::string& result : results)
      CHECK(has(result, "mismatch: ranks disagree about " + what));
  };
  check_all(join_all(3,
                     [](atoll::Config& config, int rank) {
                       if (rank == 2) config.timeout = 5s;
                     }),
            "ATOLL_TIMEOUT: 20 s on rank 0, 5 s on rank 2; all ranks must set the same");
  check_all(join_all(2,
                     [](atoll::Config& config, int rank) {
                       if (rank == 0) config.check = "lifetimes";
                     }),
            "ATOLL_CHECK: \"lifetimes\" on rank 0, \"\" on rank 1; all ranks must set the same");
}

TEST_CASE("introductions are short, since every rank reads those of all hosts, and complete") {
  const atoll::Introduction usual{"node0042", "node0042/0123456789abcdef", {"10.1.2.3"}, 1800s, "",
                                  ""};
  CHECK(encode(usual).size() <= 48);
  const atoll::Introduction other{"n", "elsewhere", {"10.0.0.1", "fd00::2"},
                                  5s,  "lifetimes", "communicator"};
  for (const auto& one : {usual, other}) {
    const auto layout = atoll::lay_out({encode(one)}, {encode(atoll::Process{7, -1})});
    REQUIRE(layout.hosts.size() == 1);
    CHECK(layout.hosts[0].name == one.host);
    CHECK(layout.hosts[0].id == one.host_id);
    CHECK(layout.placements[0].address == one.addresses[0]);
    CHECK(layout.placements[0].rail_addresses == one.addresses);
  }
  CHECK(has(error_of([&] {
              atoll::lay_out({"n\nn\n\n5\n\n"}, {encode(atoll::Process{7, -1})});
            }),
            "bad data: a rank has published no address"));
}

TEST_CASE("two ranks of a host cannot have the same local rank") {
  const auto collide = [](const std::vector<int>& local_ranks, const std::string& host_of_1) {
    return join_all(2, [&](atoll::Config& config, int rank) {
      config.local_rank = local_ranks[static_cast<std::size_t>(rank)];
      if (rank == 1) config.host_id = host_of_1;
    });
  };
  const std::string reason = "mismatch: rank 0 and rank 1 on host " + atoll::net::host_name() +
                             " both have local rank 0: set ATOLL_LOCAL_RANK to a different number";
  // Without a setting, rank 0 has local rank 0.
  for (const auto& local_ranks : {std::vector{0, 0}, std::vector{-1, 0}}) {
    for (const std::string& result : collide(local_ranks, "")) CHECK(has(result, reason));
  }
  for (const std::string& result : collide({1, 0}, "")) CHECK(result == "no error");
  for (const std::string& result : collide({0, 0}, "other")) CHECK(result == "no error");
}

TEST_CASE("folders of settings that cannot be used are warned about once for each host") {
  const auto warnings_of = [](const std::string& plugin_path, const std::string& flight) {
    const CollectedLog log;
    const auto results = join_all(3, [&](atoll::Config& config, int) {
      config.log = "warn";
      config.plugin_path = plugin_path;
      config.flight = flight;
    });
    for (const std::string& result : results) CHECK(result == "no error");
    CHECK(log.count("ATOLL_") == log.count(": No such file or directory"));
    return std::pair{
        log.count("ATOLL_PLUGIN_PATH: no backend is loaded from /none/plugins: No such file"),
        log.count(
            "ATOLL_FLIGHT=/none/log: no flight file can be written into /none: No such file")};
  };
  CHECK(warnings_of("/none/plugins", "/none/log") ==
        std::pair<std::ptrdiff_t, std::ptrdiff_t>{1, 1});
  CHECK(warnings_of("/tmp::/none/plugins", "/tmp/log") ==
        std::pair<std::ptrdiff_t, std::ptrdiff_t>{1, 0});
  CHECK(warnings_of("/tmp", "log") == std::pair<std::ptrdiff_t, std::ptrdiff_t>{0, 0});
}

TEST_CASE("members of Config that Config::set() would refuse are refused") {
  const std::pair<const char*, void (*)(atoll::Config&)> wrong[] = {
      {"Config::timeout: ATOLL_TIMEOUT=\"0\": expected a whole number of seconds from 1 to ",
       [](atoll::Config& c) { c.timeout = 0s; }},
      {"Config::file_timeout: ", [](atoll::Config& c) { c.file_timeout = -1s; }},
      {"Config::cut_timeout: ",
       [](atoll::Config& c) { c.cut_timeout = std::chrono::seconds::max(); }},
      {"Config::threads: ", [](atoll::Config& c) { c.threads = -2; }},
      {"Config::deterministic: ", [](atoll::Config& c) { c.deterministic = 7; }},
      {"Config::parent: ", [](atoll::Config& c) { c.parent = "die"; }},
      {"no error", [](atoll::Config&) {}}};
  for (const auto& [text, change] : wrong) {
    atoll::Config config;
    change(config);
    const std::string single = error_of([&] { atoll::World::single(config); });
    CHECK(has(single, text));
    CHECK(error_of([&] { atoll::World::from_env(config); }) == single);
    CHECK(error_of([&] { atoll::World::from_ranks(0, 1, {}, config); }) == single);
    CHECK(error_of([&] { atoll::World::simulated({}, config); }) == single);
  }
}

TEST_CASE("an interface that one rank does not have is the error of all ranks") {
  for (const int wrong : {0, 1}) {
    const auto results = join_all(2, [&](atoll::Config& config, int rank) {
      if (rank == wrong) config.interface = "nope0";
    });
    for (const std::string& result : results) {
      CHECK(has(result, "invalid argument: rank " + std::to_string(wrong) +
                            ": ATOLL_INTERFACE=\"nope0\": there is no interface nope0; "));
    }
  }
  CHECK(has(error_of([] {
              atoll::lay_out({"!99\nx"}, {encode(atoll::Process{7, -1})});
            }),
            "bad data: a rank has published an error without a code"));
}

TEST_CASE("the reason of a failure is one line, and never empty") {
  const auto reason = [](std::string_view text) {
    atoll::World world = atoll::World::single();
    world.fail(text);
    return std::string(world.failure().value().what());
  };
  CHECK(reason("") == "rank 0: World::fail() was called without a reason");
  CHECK(reason(" \n") == "rank 0: World::fail() was called without a reason");
  CHECK(reason("first\n  second\r\n\tthird\n") == "rank 0: first second third");
  CHECK(reason("red \x1b[31m \xff") == "rank 0: red \\x1b[31m \\xff");
  atoll::World world = atoll::World::single();
  const atoll::Error silent(atoll::ErrorCode::io, "");
  CHECK_THROWS(world.run([&] { throw silent; }));
  CHECK(world.failure().value().what() == std::string("rank 0: an exception without a text"));
}

TEST_CASE(
    "a callback of on_failure() that destroys its World gets an error, and the rank goes on") {
  const CollectedLog log;
  auto alone = std::make_unique<atoll::World>(atoll::World::single());
  const auto subscription = alone->on_failure([&](const atoll::Error&) { alone.reset(); });
  alone->fail("enough");
  CHECK(alone == nullptr);
  const ReservedPort port;
  std::latch failed{2};
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto world =
          std::make_unique<atoll::World>(atoll::World::from_env(thread_rank_config(rank, 2, port)));
      const auto ended = world->on_failure([&](const atoll::Error&) {
        if (rank == 1) world.reset();
        failed.count_down();
      });
      if (rank == 0) world->fail("enough");
      failed.wait();
    });
  }
  threads.clear();
  CHECK(log.count("a callback of on_failure() destroyed its World") == 2);
}

TEST_CASE("a World that has been moved names itself in every call") {
  atoll::World moved = atoll::World::single();
  const atoll::World world = std::move(moved);
  const std::vector<std::function<void()>> calls = {
      [&] { static_cast<void>(moved.rank()); },
      [&] { static_cast<void>(moved.size()); },
      [&] { static_cast<void>(moved.config()); },
      [&] { static_cast<void>(moved.hosts()); },
      [&] { static_cast<void>(moved.placements()); },
      [&] { moved.put("k", "v"); },
      [&] { static_cast<void>(moved.get("k", 1ms)); },
      [&] { static_cast<void>(moved.exchange("k", "v")); },
      [&] { moved.barrier(); },
      [&] { static_cast<void>(moved.ticket("k")); },
      [&] { moved.at_exit([](bool) {}); },
      [&] { static_cast<void>(moved.failure()); },
      [&] { moved.check(); },
      [&] { static_cast<void>(moved.on_failure([](const atoll::Error&) {})); },
      [&] {
        atoll::WorldInternals::companion(moved, "test", [] { return std::shared_ptr<void>(); });
      },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    CAPTURE(i);
    CHECK(has(error_of(calls[i]), "this World has been moved: use the World that it was moved to"));
  }
  const CollectedLog log;
  moved.fail("too late");
  CHECK(log.count("World::fail(\"too late\") has no effect, because this World has been moved") ==
        1);
  CHECK(world.size() == 1);
}
