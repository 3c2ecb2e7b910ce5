// Tests the connections of the host backend between hosts: they are made on demand, strangers
// neither join nor keep ranks out, and checksums work with every algorithm.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "unit/plugin/host.hpp"

using namespace plugin_ranks;
using namespace std::chrono_literals;

namespace {

// Connects to a TCP port of this host and returns the file descriptor, or -1.
int connect_to(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return fd;
  ::close(fd);
  return -1;
}

int port_of(FakeCore& core, int rank) {
  const auto contact = core.get("group/host/" + std::to_string(rank));
  return std::stoi(contact.substr(contact.find(' ') + 1));
}

// Opens a group of two hosts whose ranks have different options. Their first operation must fail,
// and the error of rank 1, which connects, must contain `reason`.
void refuse_each_other(const std::function<GroupOptions(int)>& options, const std::string& reason) {
  FakeCore core;
  in_threads(2, [&](int r) {
    const Group group({0, 1}, r, options(r));
    atoll_comm* comm = nullptr;
    REQUIRE(backend().open(&core.services(), &group.get(), &comm) == ATOLL_OK);
    Rank rank(backend(), comm, {0, 1}, r);
    rank.timeout_ns = 3 * second;
    const auto result = barrier(rank);
    CHECK(result.status != ATOLL_OK);
    if (r == 1) CHECK_MESSAGE(contains(result.text, reason), result.text);
  });
}

// A child process that lives until the end of the scope. It writes the number of TCP connections
// that it shares with this process.
class Child {
 public:
  Child() {
    std::array<int, 2> channel{};
    REQUIRE(::pipe2(channel.data(), O_CLOEXEC) == 0);
    process_ = ::fork();
    REQUIRE(process_ >= 0);
    if (process_ == 0) {
      ::alarm(60);
      const int shared = ends(connections());
      const bool told = ::write(channel[1], &shared, sizeof(shared)) == sizeof(shared);
      while (told) ::pause();
      ::_exit(1);
    }
    REQUIRE(::read(channel[0], &shared_, sizeof(shared_)) == sizeof(shared_));
    for (const int end : channel) ::close(end);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  int shared_connections() const { return shared_; }

 private:
  pid_t process_ = -1;
  int shared_ = -1;
};

}  // namespace

TEST_CASE("connections are made only between ranks that exchange data") {
  FakeCore core;
  auto ranks = open_ranks(backend(), core, {0, 1, 2, 3});
  CHECK(ends(connections()) == 0);
  const Bytes data = input(ATOLL_U8, 0, 1000);
  Bytes got(data.size());
  in_threads(4, [&](int r) {
    Rank& rank = ranks[static_cast<std::size_t>(r)];
    if (r == 1) {
      auto send = rank.operation(ATOLL_SEND, ATOLL_U8, data.data(), nullptr, data.size());
      send.peer = 2;
      expect_ok(rank.submit(send));
    } else if (r == 2) {
      auto recv = rank.operation(ATOLL_RECV, ATOLL_U8, nullptr, got.data(), got.size());
      recv.peer = 1;
      expect_ok(rank.submit(recv));
    }
  });
  CHECK(got == data);
  CHECK(ends(settled(2 * 2)) == 2 * 2);  // both ends of two connections
  connect_ranks(ranks);
  CHECK(ends(settled(2 * 2 * 6)) == 2 * 2 * 6);
  close_ranks(ranks);
  CHECK(ends(settled(0)) == 0);
}

TEST_CASE("a rank sends to a rank of another host that is busy, in both directions") {
  for (const int from : {0, 1}) {
    FakeCore core;
    auto ranks = open_ranks(backend(), core, {0, 1});
    Rank& sender = ranks[static_cast<std::size_t>(from)];
    Rank& receiver = ranks[static_cast<std::size_t>(1 - from)];
    const Bytes data = input(ATOLL_U8, 3, 20'000);
    auto send = sender.operation(ATOLL_SEND, ATOLL_U8, data.data(), nullptr, data.size());
    send.peer = 1 - from;
    expect_ok(sender.submit(send));  // the receiver has not called anything yet
    Bytes got(data.size());
    auto recv = receiver.operation(ATOLL_RECV, ATOLL_U8, nullptr, got.data(), got.size());
    recv.peer = from;
    CHECK(receiver.submit(recv).status == ATOLL_OK);
    CHECK(got == data);
  }
}

TEST_CASE("the first operation names a rank of another host that has not opened") {
  FakeCore core;
  const Group group({0, 1}, 0);
  atoll_comm* comm = nullptr;
  REQUIRE(backend().open(&core.services(), &group.get(), &comm) == ATOLL_OK);
  Rank rank(backend(), comm, {0, 1}, 0);
  rank.timeout_ns = second / 2;
  const auto result = barrier(rank);
  CHECK(result.status == ATOLL_TIMEOUT);
  CHECK_MESSAGE(contains(result.text, "rank 1 (world rank 3)"), result.text);
  CHECK_MESSAGE(contains(result.text, "that rank did not connect to "), result.text);
}

TEST_CASE("a rank with another token cannot connect") {
  refuse_each_other(
      [](int r) {
        return GroupOptions{.token = r == 0 ? "secret" : "guess", .timeout_ns = second / 2};
      },
      "has another token");
}

TEST_CASE("strangers get no byte and keep no rank out, before and after the first operation") {
  FakeCore core;
  auto ranks = open_ranks(backend(), core, {0, 1});
  std::atomic<bool> over = false;
  std::atomic<int> connections = 0, bytes = 0;
  const auto flood = [&](int port) {
    std::vector<int> held(500, -1);  // most of these send nothing until they are closed
    const auto close = [&](int fd) {
      char buffer[256];
      if (fd >= 0 && ::recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT) > 0) ++bytes;
      if (fd >= 0) ::close(fd);
    };
    for (std::size_t i = 0; !over; i = (i + 1) % held.size()) {
      close(held[i]);
      held[i] = connect_to(port);
      if (held[i] >= 0) ++connections;
      if (i % 7 == 0 && held[i] >= 0) ::send(held[i], "GET /", 5, MSG_NOSIGNAL);
    }
    std::ranges::for_each(held, close);
  };
  {
    const std::jthread one(flood, port_of(core, 0)), other(flood, port_of(core, 1));
    while (connections < 3000) std::this_thread::sleep_for(1ms);
    on_ranks(ranks, [&](Rank& rank) {
      for (int i = 0; i < 50; ++i) {
        expect_ok(all_gather(rank, 5000));
      }
    });
    close_ranks(ranks);
    over = true;
  }
  CHECK(bytes == 0);
}

TEST_CASE("with checksums all algorithms give the same results") {
  for (const char* tuning : {"", "all_reduce 0 flat\n", "all_reduce 0 ring\nconnections 3\n",
                             "all_reduce 0 doubling\n", "all_reduce 0 two_level\n"}) {
    CAPTURE(tuning);
    GroupOptions options;
    options.tuning = tuning;
    options.checksum = ATOLL_CHECKSUM_CRC32C;
    run_ranks(
        backend(), {0, 0, 1, 1},
        [](Rank& rank) {
          for (const std::uint64_t count : {1U, 1031U, 16'384U, 100'003U}) {
            check_all_reduce(rank, ATOLL_I32, ATOLL_SUM, count);
          }
        },
        options);
  }
}

TEST_CASE("if only one rank uses checksums, the error names the setting") {
  refuse_each_other([](int r) { return GroupOptions{.timeout_ns = second / 2, .checksum = r}; },
                    "ATOLL_TCP_CHECKSUM");
}

TEST_CASE("a communicator between hosts raises the soft limit of descriptors") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  if (before.rlim_max < 512) return;
  rlimit low = before;
  low.rlim_cur = 256;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  {
    FakeCore core;
    auto ranks = open_ranks(backend(), core, {0, 1});
    rlimit now{};
    CHECK(::getrlimit(RLIMIT_NOFILE, &now) == 0);
    CHECK(now.rlim_cur == before.rlim_max);
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("a forked child that closes a copy of a communicator ends, and disturbs no rank") {
  FakeCore core;
  auto ranks = open_ranks(backend(), core, {0, 1});
  on_ranks(ranks, [&](Rank& rank) { CHECK(barrier(rank).status == ATOLL_OK); });
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(10);
    ranks.clear();
    ::_exit(0);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  on_ranks(ranks, [&](Rank& rank) { CHECK(barrier(rank).status == ATOLL_OK); });
}

// An aborted communicator stands for a dead rank: both close descriptors without a message.
TEST_CASE("the end of a rank is noticed at once although a child that it forked lives on") {
  FakeCore core;
  auto ranks = open_ranks(backend(), core, {0, 1});
  connect_ranks(ranks);
  const int port = port_of(core, 1);
  const Child child;
  CHECK(child.shared_connections() == 0);
  ranks[1].abort();
  ranks[1].close();
  const auto begin = std::chrono::steady_clock::now();
  const auto result = all_gather(ranks[0], 1000);
  CHECK_MESSAGE(result.status == ATOLL_PEER_LOST, result.text);
  CHECK_MESSAGE(contains(result.text, "rank 1 (world rank 3)"), result.text);
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
  CHECK(connect_to(port) == -1);  // the child does not listen either
}

TEST_CASE("a rank that cannot be called is lost, although it is the rank that would connect") {
  FakeCore core;
  auto ranks = open_ranks(backend(), core, {0, 1}, {.cut_ns = second});
  // Nobody listens at the port that rank 1 now publishes.
  const std::string nowhere = "1";
  core.services().put(core.services().ctx, "group/host/1", nowhere.data(), nowhere.size());
  const auto result = all_gather(ranks[0], 1000);
  CHECK_MESSAGE(result.status == ATOLL_PEER_LOST, result.text);
  CHECK_MESSAGE(contains(result.text, "no connection with 127.0.0.1 port 1 "), result.text);
}
