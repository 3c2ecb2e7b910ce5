// Tests how a rank of the verbs backend closes a communicator: what it has sent arrives, or both
// ranks learn that it does not.
#include <atomic>
#include <chrono>
#include <thread>

#include "unit/plugin/verbs_ranks.hpp"

using namespace verbs_test;
using atoll_test::sdk_error;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

// Two connected ranks. The adapter of rank 1 then accepts no writes, as if the rank never polled.
struct BusyPeer : Ranks {
  BusyPeer(Adapters& adapters, std::chrono::milliseconds limit) : Ranks(2) {
    timeout = limit;
    open(0, "left");
    open(1, "right");
    connect(0, 1);
    adapters.right.is_busy = true;
  }

  // Sends messages until the queues are full.
  std::size_t send() {
    const Bytes data(100, std::byte{9});
    std::size_t count = 0;
    while (at(0).send(1, data) == data.size()) ++count;
    return count;
  }
  // Lets rank 1 receive messages until there is none, or until it fails.
  void receive() {
    Bytes memory(100);
    while (at(1).recv(0, memory) == memory.size() && memory == Bytes(100, std::byte{9})) ++received;
  }
  std::size_t received = 0;
};

template <class Call>
std::chrono::duration<double> time_of(const Call& call) {
  const auto start = Clock::now();
  call();
  return Clock::now() - start;
}

}  // namespace

TEST_CASE("a rank that closes waits until a busy peer has taken everything") {
  Adapters adapters;
  BusyPeer ranks(adapters, 60s);
  const auto sent = ranks.send();
  CHECK(sent > 50);
  const auto time = time_of([&] {
    std::jthread peer([&] {
      std::this_thread::sleep_for(2500ms);
      adapters.right.is_busy = false;
    });
    ranks.at(0).finish();
  });
  CHECK(time > 2.4s);
  CHECK(ranks.warnings.empty());
  ranks.close(0);
  CHECK(sdk_error([&] { ranks.receive(); }) == "it has closed the communicator");
  CHECK(ranks.received == sent);
}

TEST_CASE("at the timeout of the communicator a rank says that data is lost, and its peer fails") {
  Adapters adapters;
  BusyPeer ranks(adapters, 300ms);
  CHECK(ranks.send() > 50);
  CHECK(time_of([&] { ranks.at(0).finish(); }) > 0.3s);
  REQUIRE(ranks.warnings.size() == 1);
  CHECK(ranks.warnings[0] ==
        "0 about 1: its adapter has not taken all data within 0.3 s after the last operation; that "
        "rank will report that this rank is gone");
  ranks.close(0);
  adapters.right.is_busy = false;
  ranks.receive();
  CHECK(ranks.received == 0);
  std::string text;
  for (const auto end = Clock::now() + 10s; text.empty() && Clock::now() < end;) {
    text = ranks.error_of(1, 0);
  }
  CHECK(text.starts_with("right port 1: transport retry counter exceeded (vendor code 0x77): "));
}

TEST_CASE("a rank that closes does not wait for a job that has failed") {
  Adapters adapters;
  BusyPeer ranks(adapters, 60s);
  CHECK(ranks.send() > 50);
  ranks.on_look_up = [] { throw atoll_sdk::Error(ATOLL_ABORTED, "the job has failed"); };
  CHECK(time_of([&] { ranks.at(0).finish(); }) < 10s);
}

TEST_CASE("a rank that closes does not wait for a peer that has closed and is gone") {
  Adapters adapters;
  Ranks ranks(2);
  ranks.timeout = 60s;
  ranks.open(0, "left");
  ranks.open(1, "right");
  ranks.connect(0, 1);
  ranks.at(1).finish();
  ranks.close(1);
  adapters.left.is_cut = true;
  CHECK(time_of([&] { ranks.at(0).finish(); }) < 5s);
  CHECK(ranks.warnings.empty());
}

TEST_CASE("a rank that closes does not wait for ranks that it never talked to") {
  Adapters adapters;
  Ranks ranks(3);
  ranks.timeout = 60s;
  ranks.open(0, "left");
  Bytes memory(1);
  ranks.at(0).recv(2, memory);  // only looks up the address
  CHECK(time_of([&] { ranks.at(0).finish(); }) < 1s);
}
