// bench_rendezvous [--ranks N,N,...] [--per-host N] [--clients N] [--json FILE]
//
// Measures how long a job of many ranks takes to find each other through the store. One process
// serves the store; a few others play the ranks: each rank is one connection over loopback, which
// sends what a rank sends and reads what a rank reads. Exits with 1 if a target is missed. Columns:
//
//   placed  every rank has joined and knows host and pid of every other rank
//   opened  every rank has also exchanged the settings of a communicator of all ranks, and has
//           read 32 keys that other ranks put
//   ended   every rank has left the job
//   store   peak memory of the process that serves the store, from /proc/PID/status
//   retries connections that the store closed before their ranks joined; they try again
//   read    bytes that one rank reads until it is placed, divided by the number of other ranks. The
//           target is at most 16, for eight ranks per host
//   limit   the same connections to a process that only accepts them and sends one byte each
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/socket.hpp"
#include "rendezvous_ranks/rank.hpp"
#include "store/server.hpp"

namespace {

using namespace std::chrono_literals;
namespace net = atoll::net;
namespace store = atoll::store;
using net::Clock;
using rendezvous_bench::Phase;
using rendezvous_bench::Rank;
using rendezvous_bench::token;

constexpr auto limit = 120s;
// Target for `read`. A rank reads 8 bytes for each other rank, and about 50 bytes for each host,
// which are 14 bytes for each other rank with eight ranks per host.
constexpr double most_read = 16;

struct Options {
  std::vector<int> ranks{1024, 4096, 16384};
  int per_host = 8;
  int clients = 2;
  std::string json;  // file for the figures; "" writes none
};

struct Row {
  int ranks = 0;
  double placed = 0, opened = 0, ended = 0;  // seconds
  double store_mib = 0;
  double read = 0;   // bytes that a rank reads, per other rank
  double limit = 0;  // seconds
  double retries = 0;
};

// Times at which the last rank of a process reached a phase, in seconds since the start.
struct Times {
  double placed = 0, opened = 0, ended = 0;
  double bytes = 0;    // bytes that one rank read until it was placed
  double retries = 0;  // connections that the store closed before their ranks joined
};

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void watch(int epoll, Rank& rank) {
  epoll_event wanted{};
  // A socket becomes writable when its connection is made.
  wanted.events = rank.phase() == Phase::connecting ? EPOLLOUT : EPOLLIN;
  wanted.data.ptr = &rank;
  if (::epoll_ctl(epoll, EPOLL_CTL_MOD, rank.socket(), &wanted) != 0) {
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, rank.socket(), &wanted);
  }
}

// Plays all ranks whose number is `client` modulo the number of clients.
Times play(const Options& options, int size, int client, const net::Address& to, bool is_plain,
           Clock::time_point start) {
  net::descriptor_limit(true);
  const net::Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  std::vector<Rank> ranks;
  for (int rank = client; rank < size; rank += options.clients) {
    ranks.emplace_back(rank, size, options.per_host);
  }
  std::vector<epoll_event> events(512);
  std::size_t connected = 0, placed = 0, opened = 0, ended = 0;
  Times times;
  while (ended < ranks.size()) {
    if (since(start) > std::chrono::duration<double>(limit).count()) {
      throw std::runtime_error("the ranks did not end in time");
    }
    for (int i = 0; i < 256 && connected < ranks.size(); ++i, ++connected) {
      ranks[connected].connect(to, client);
      watch(epoll.get(), ranks[connected]);
    }
    const int wait_ms = connected < ranks.size() ? 0 : 100;
    const int ready =
        ::epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), wait_ms);
    for (int i = 0; i < ready; ++i) {
      Rank& rank = *static_cast<Rank*>(events[static_cast<std::size_t>(i)].data.ptr);
      const Phase before = rank.phase();
      rank.advance(is_plain);
      if (rank.phase() == Phase::lost) {
        ++times.retries;
        rank.connect(to, client);
      }
      if (before == Phase::connecting || rank.phase() == Phase::connecting) {
        watch(epoll.get(), rank);
      }
      const auto reached = [&](Phase phase) { return before < phase && rank.phase() >= phase; };
      placed += reached(Phase::putting);
      opened += reached(Phase::leaving);
      if (reached(Phase::putting) && placed == ranks.size()) times.placed = since(start);
      if (reached(Phase::leaving) && opened == ranks.size()) times.opened = since(start);
      if (!reached(Phase::done)) continue;
      ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, rank.socket(), nullptr);
      if (++ended == ranks.size()) times.ended = since(start);
    }
  }
  times.bytes = static_cast<double>(ranks.front().bytes());
  return times;
}

double peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

// Serves the store until all ranks have left.
void serve(net::Fd listener, int size) {
  store::ServerOptions options;
  options.listeners.push_back(std::move(listener));
  options.token = token;
  options.size = size;
  options.rendezvous_timeout = limit;
  store::Server server(std::move(options));
  server.finish(limit);
}

// Accepts `size` connections and sends one byte to each.
void accept_only(const net::Fd& listener, int size) {
  net::descriptor_limit(true);
  std::vector<net::Fd> sockets;
  while (sockets.size() < static_cast<std::size_t>(size)) {
    net::wait_for(listener.get(), POLLIN, Clock::now() + limit);
    while (net::Fd socket = net::accept_from(listener.get())) {
      net::send_all(socket.get(), "x");
      sockets.push_back(std::move(socket));
    }
  }
  std::this_thread::sleep_for(1s);
}

struct Child {
  pid_t pid = 0;
  net::Fd result;
};

// Runs `body` in a process, which sends its result through a pipe.
template <class Body>
Child start(const Body& body) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork");
  if (pid > 0) {
    ::close(ends[1]);
    return {pid, net::Fd(ends[0])};
  }
  try {
    const auto result = body();
    if (::write(ends[1], &result, sizeof result) == sizeof result) ::_exit(0);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_rendezvous: {}\n", error.what());
  }
  ::_exit(1);
}

template <class Result>
Result finish(const Child& child) {
  Result result{};
  const bool is_whole = ::read(child.result.get(), &result, sizeof result) == sizeof result;
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  if (!is_whole || status != 0) throw std::runtime_error("a process of the bench failed");
  return result;
}

Times run(const Options& options, int size, bool is_plain, double& mib) {
  net::Fd listener = net::listen_on(net::resolve("127.0.0.1", 0).front());
  listener.share_with_children();
  const net::Address address = net::local_address(listener.get());
  const Child server = start([&] {
    if (is_plain) accept_only(listener, size);
    if (!is_plain) serve(std::move(listener), size);
    return peak_mib();
  });
  const Clock::time_point begin = Clock::now();
  std::vector<Child> clients;
  for (int client = 0; client < options.clients; ++client) {
    clients.push_back(
        start([&, client] { return play(options, size, client, address, is_plain, begin); }));
  }
  Times all;
  for (const Child& client : clients) {
    const Times times = finish<Times>(client);
    all.placed = std::max(all.placed, times.placed);
    all.opened = std::max(all.opened, times.opened);
    all.ended = std::max(all.ended, times.ended);
    all.bytes = std::max(all.bytes, times.bytes);
    all.retries += times.retries;
  }
  mib = finish<double>(server);
  return all;
}

Row measure(const Options& options, int size) {
  Row row;
  row.ranks = size;
  double ignored = 0;
  row.limit = run(options, size, true, ignored).ended;
  const Times times = run(options, size, false, row.store_mib);
  row.placed = times.placed;
  row.opened = times.opened;
  row.ended = times.ended;
  row.read = times.bytes / size;
  row.retries = times.retries;
  return row;
}

// The times and the memory to reach on a machine with two cores. One process plays all ranks, and
// shares the cores with the process of the store.
struct Target {
  int ranks;
  double placed;     // seconds
  double store_mib;  // 0: no target
};
constexpr Target targets[] = {{4096, 3, 64}, {16384, 30, 0}};

bool meets_target(const Row& row) {
  for (const Target& target : targets) {
    if (row.ranks != target.ranks) continue;
    if (row.placed > target.placed) return false;
    if (target.store_mib > 0 && row.store_mib > target.store_mib) return false;
  }
  return row.read <= most_read;
}

void print(const std::vector<Row>& rows) {
  fmt::print("{:>7} {:>10} {:>10} {:>10} {:>11} {:>8} {:>10} {:>10}\n", "ranks", "placed (s)",
             "opened (s)", "ended (s)", "store (MiB)", "retries", "read (B)", "limit (s)");
  for (const Row& row : rows) {
    fmt::print("{:>7} {:>10.2f} {:>10.2f} {:>10.2f} {:>11.1f} {:>8} {:>10.1f} {:>10.2f}{}\n",
               row.ranks, row.placed, row.opened, row.ended, row.store_mib, row.retries, row.read,
               row.limit, meets_target(row) ? "" : "  misses its target");
  }
  fmt::print("targets: 4096 ranks placed in 3 s with a store of 64 MiB, 16384 in 30 s; {} B\n",
             most_read);
}

void write(const Options& options, const std::vector<Row>& rows) {
  auto all = nlohmann::json::array();
  for (const Row& row : rows) {
    all.push_back({{"ranks", row.ranks},
                   {"per_host", options.per_host},
                   {"placed_s", row.placed},
                   {"opened_s", row.opened},
                   {"ended_s", row.ended},
                   {"store_mib", row.store_mib},
                   {"read_bytes_per_rank", row.read},
                   {"retries", row.retries},
                   {"limit_s", row.limit}});
  }
  std::ofstream file(options.json);
  file << all.dump(2) << '\n';
  if (!file.flush()) throw std::runtime_error("cannot write " + options.json);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Measures how long a job of many ranks takes to find each other through the store");
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", options.ranks, "ranks; several with commas")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  app.add_option("--per-host", options.per_host, "ranks on each host")->check(CLI::PositiveNumber);
  app.add_option("--clients", options.clients, "processes that play ranks")
      ->check(CLI::PositiveNumber);
  app.add_option("--json", options.json, "file for the figures");
  CLI11_PARSE(app, argc, argv);
  try {
    std::vector<Row> rows;
    for (const int size : options.ranks) rows.push_back(measure(options, size));
    print(rows);
    if (!options.json.empty()) write(options, rows);
    return std::ranges::all_of(rows, meets_target) ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_rendezvous: {}\n", error.what());
    return 1;
  }
}
