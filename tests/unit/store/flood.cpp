// Tests of a job beside a flood: other processes open connections to its store without pause. The
// job must find together, work and name a killed rank as it does without the flood.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <string>
#include <vector>

#include "atoll/world.hpp"
#include "core/socket.hpp"
#include "reserved_port.hpp"
#include "unit/child_process.hpp"
#include "unit/error_text.hpp"

using namespace std::chrono_literals;
using atoll_test::ChildProcess;
using atoll_test::has;
using atoll_test::ReservedPort;
using Clock = std::chrono::steady_clock;
namespace net = atoll::net;

namespace {

constexpr int ranks = 3;

// Opens connections until it is killed. A part stays open and silent, a part sends bytes, and a
// part is closed at once.
void flood(int port) {
  const net::Address address = net::resolve("127.0.0.1", port).front();
  std::deque<net::Fd> open;
  for (unsigned i = 0;; ++i) {
    try {
      net::Fd socket = net::connect_to(address, Clock::now() + 200ms);
      // Closing with a reset frees the port at once; else the flood would use up all ports.
      const linger none{1, 0};
      ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
      if (i % 4 == 1) net::send_all(socket.get(), std::string(64, 'x'));
      if (i % 4 != 0) open.push_back(std::move(socket));
    } catch (const atoll::Error&) {
    }
    if (open.size() > 500) open.pop_front();
  }
}

// Joins the job, works until `steps` barriers are done, and writes one line.
void run_rank(int rank, int port, int steps, int out) {
  ::setenv("ATOLL_LOG", "error", 1);
  atoll::Config config = atoll::Config::from_env();
  config.rank = rank;
  config.size = ranks;
  config.addr = "127.0.0.1:" + std::to_string(port);
  config.token = "secret";
  config.rendezvous_timeout = 30s;
  config.timeout = 30s;
  try {
    atoll::World world = atoll::World::from_env(config);
    ::dprintf(out, "joined\n");
    for (int step = 0; step < steps; ++step) {
      world.exchange("step", std::to_string(step + rank));
      if (step == 5) ::dprintf(out, "working\n");
    }
    ::dprintf(out, "done\n");
  } catch (const atoll::Error& error) {
    ::dprintf(out, "%s\n", error.what());
  }
}

struct Job {
  std::vector<ChildProcess> flooders, joined;
  ReservedPort port;

  void start_flood() {
    for (int i = 0; i < 2; ++i) flooders.emplace_back([this](int) { flood(port.number()); });
  }
  void start_ranks(int steps) {
    for (int rank = 0; rank < ranks; ++rank) {
      joined.emplace_back([&](int out) { run_rank(rank, port.number(), steps, out); });
    }
  }
};

}  // namespace

TEST_CASE("processes: beside a flood, a job finds together, works and ends") {
  Job job;
  job.start_flood();
  job.start_ranks(200);
  for (ChildProcess& rank : job.joined) {
    CHECK(rank.rest() == "joined\nworking\ndone\n");
    CHECK(rank.status() == 0);
  }
}

TEST_CASE("processes: beside a flood that begins during steps, a killed rank is named alone") {
  Job job;
  job.start_ranks(1'000'000);
  for (const ChildProcess& rank : job.joined) {
    REQUIRE(rank.line() == "joined");
    REQUIRE(rank.line() == "working");
  }
  job.start_flood();
  ::usleep(500'000);
  const auto start = Clock::now();
  ::kill(job.joined[2].pid(), SIGKILL);
  for (const std::size_t rank : {0U, 1U}) {
    const std::string report = job.joined[rank].line();
    CHECK(has(report, {"rank 2 (host ", ") was lost"}));
    CHECK(report.starts_with("rank 2"));
  }
  CHECK(Clock::now() - start < 2s);
}

TEST_CASE("beside a flood, the store still reports the ranks that did not join") {
  Job job;
  job.start_flood();
  atoll::Config config;
  config.rank = 0;
  config.size = 2;
  config.addr = job.port.address();
  config.token = "secret";
  config.rendezvous_timeout = 1s;
  config.log = "error";
  const auto start = Clock::now();
  CHECK(atoll_test::error_of([&] { atoll::World::from_env(config); }) ==
        "timeout: rank 1 did not join the job within 1 s");
  CHECK(Clock::now() - start < 10s);
}
