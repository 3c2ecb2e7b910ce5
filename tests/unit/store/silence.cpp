// Tests of stores that do not read what a rank sends, or do not answer, and of ranks that do not
// read what the store sends.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <future>

#include "unit/store/place.hpp"

using namespace atoll_test;

namespace {

std::array<int, 2> socket_pair() {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
  return ends;
}

// The connection of rank 1 to a store that the test plays.
struct Connection {
  explicit Connection(const std::array<int, 2>& ends = socket_pair())
      : played(ends[0]), client(net::Fd(ends[1]), 1, 2, failure) {}
  std::shared_ptr<atoll::Failure> failure = std::make_shared<atoll::Failure>();
  net::Fd played;
  store::Client client;
};

}  // namespace

TEST_CASE("a put waits for a store that stands still for a while") {
  Connection to;
  const std::jthread slow([&] {
    const store::Message put = store::receive_message(to.played.get(), 1000, Clock::now() + 10s);
    CHECK(put.kind == store::Kind::put);
    std::this_thread::sleep_for(5500ms);
    const std::string nothing = store::Packer().number(0).text("").take();
    net::send_all(to.played.get(), store::encode_frame(store::Kind::answer, 1, nothing));
  });
  to.client.put("key", "value", 30s);
  CHECK(!to.failure->get());
}

TEST_CASE("a silent store is waited for once; later requests end soon, until it speaks again") {
  Connection to;
  const auto seconds_of_get = [&] {
    const auto begin = Clock::now();
    CHECK_THROWS_WITH_AS(to.client.get("key", 1ms), "rank 1: the store on rank 0 does not answer",
                         atoll::Error);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  CHECK(seconds_of_get() > 4.9);
  CHECK(seconds_of_get() < 3);  // waits 1 s; more on a busy machine
  const std::string late = store::Packer().number(0).text("").text("").take();
  net::send_all(to.played.get(), store::encode_frame(store::Kind::answer, 1, late));
  std::this_thread::sleep_for(200ms);  // the reader takes the late answer
  CHECK(seconds_of_get() > 4.9);
}

TEST_CASE("a store that reads nothing ends each call at its time limit, and then fail()") {
  Connection to;
  const auto put = std::async(std::launch::async, [&] {
    const std::string large(store::max_value_bytes, 'x');
    return thrown(atoll::ErrorCode::aborted, [&] { to.client.put("key", large, 60s); });
  });
  std::this_thread::sleep_for(200ms);
  const auto rest = std::async(std::launch::async, [&] {
    thrown(atoll::ErrorCode::timeout, [&] { to.client.ask("who?", "", 0ms); });
    CHECK_FALSE(to.failure->get());  // the first thread may still be sending
    to.client.fail("enough");
  });
  CHECK(rest.wait_for(10s) == std::future_status::ready);
  CHECK(put.wait_for(1s) == std::future_status::ready);
  to.played.reset();  // ends the test even if the calls still wait
}

TEST_CASE("a partly read message closes the connection with a timeout error") {
  Connection to;
  const std::string large(8 << 20, 'x');
  const auto asked = std::async(std::launch::async, [&] {
    thrown(atoll::ErrorCode::timeout, [&] { to.client.ask("who?", large, 0ms); });
  });
  CHECK(asked.wait_for(10s) == std::future_status::ready);
  CHECK(has(thrown(atoll::ErrorCode::timeout, [&] { to.client.get("key", 1s); }),
            "the store on rank 0 did not read the whole of a message in time"));
  to.played.reset();
}

TEST_CASE("losing the store during a send gives peer_lost, not timeout") {
  Connection to;
  thrown(atoll::ErrorCode::timeout, [&] { to.client.ask("who?", "", 0ms); });  // store is silent
  const std::jthread lost([&] {
    std::this_thread::sleep_for(1500ms);
    to.played.reset();
  });
  // The put waits 1 s for an answer, but the rest of its message may take the whole 20 s.
  const std::string large(store::max_value_bytes, 'x');
  CHECK_THROWS_AS(to.client.put("key", large, 20s), atoll::Error);
  thrown(atoll::ErrorCode::peer_lost, [&] { to.client.get("key", 1s); });
}

TEST_CASE("a rank that says farewell is not lost, although it never read what the store sent") {
  // The store is a process, so that it can be stopped until the farewell and the end have arrived.
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    const Place place(2);
    const int port = place.port();
    if (::write(ends[1], &port, sizeof port) != sizeof port) ::_exit(1);
    std::this_thread::sleep_for(20s);
    ::_exit(0);
  }
  int port = 0;
  REQUIRE(::read(ends[0], &port, sizeof port) == sizeof port);
  const auto join = [&](int rank) {
    const store::Application application{"right", {rank, 2, "here", 100 + rank}};
    return store::connect(net::resolve("127.0.0.1", port), application, Clock::now() + 10s).socket;
  };
  const auto failure = std::make_shared<atoll::Failure>();
  store::Client zero(join(0), 0, 2, failure);
  net::Fd one = join(1);
  zero.ask("who?", std::string(8 << 20, 'x'), 20ms);  // the store cannot send all of it to rank 1
  ::kill(pid, SIGSTOP);
  net::send_all(one.get(), store::encode_frame(store::Kind::farewell, 1, std::string(4, '\0')));
  one.reset();  // resets the connection, since rank 1 has not read the question
  ::kill(pid, SIGCONT);
  CHECK(has(thrown(atoll::ErrorCode::peer_lost, [&] { zero.exchange("", "", 10s); }),
            "rank 1 (host here, pid 101) has left the job"));
  CHECK_FALSE(failure->get());
  zero.farewell();
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  for (const int end : ends) ::close(end);
}
