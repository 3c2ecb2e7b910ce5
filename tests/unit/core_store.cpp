#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "atoll/error.hpp"
#include "core/failure.hpp"
#include "core/socket.hpp"
#include "core/store_client.hpp"
#include "core/store_protocol.hpp"
#include "core/store_server.hpp"

using namespace std::chrono_literals;
namespace net = atoll::net;
namespace store = atoll::store;
using net::Clock;

namespace {

// A rendezvous store on the loopback interface, with functions that connect to the store.
class Place {
 public:
  explicit Place(int size, std::chrono::milliseconds rendezvous = 20s) : size_(size) {
    store::ServerOptions options;
    options.listeners.push_back(net::listen_on(net::resolve("127.0.0.1", 0).front()));
    port_ = net::port_of(net::local_address(options.listeners.front().get()));
    options.token = "right";
    options.size = size;
    options.rendezvous_timeout = rendezvous;
    server_ = std::make_unique<store::Server>(std::move(options));
  }

  net::Fd hello(int rank, const std::string& token = "right", int size = 0,
                std::chrono::milliseconds patience = 10s) const {
    return store::connect(net::resolve("127.0.0.1", port_),
                          {token, rank, size == 0 ? size_ : size, "here", 100 + rank},
                          Clock::now() + patience);
  }
  net::Fd stranger() const {
    return net::connect_to(net::resolve("127.0.0.1", port_).front(), Clock::now() + 5s);
  }
  store::Server& server() { return *server_; }
  int size() const { return size_; }

 private:
  int size_;
  int port_ = 0;
  std::unique_ptr<store::Server> server_;
};

struct Rank {
  Rank(const Place& place, int rank) : number(rank), client(place.hello(rank), rank, failure) {}
  std::shared_ptr<atoll::Failure> failure = std::make_shared<atoll::Failure>();
  int number;
  store::Client client;
};

// Runs `body` on one thread per rank. Every rank leaves the job afterwards. Rethrows the first
// exception of a rank.
void run_ranks(const Place& place, const std::function<void(Rank&)>& body) {
  std::vector<std::exception_ptr> problems(static_cast<std::size_t>(place.size()));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < place.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          Rank self(place, rank);
          body(self);
          self.client.farewell();
        } catch (...) {
          problems[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& problem : problems) {
    if (problem) std::rethrow_exception(problem);
  }
}

// Checks that `action` throws an Error with this code, and returns the error's message.
template <class Action>
std::string thrown(atoll::ErrorCode code, Action action) {
  try {
    action();
  } catch (const atoll::Error& error) {
    CHECK(atoll::name(error.code()) == atoll::name(code));
    return error.what();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("\"" << text << "\" lacks \"" << part << "\"");
  return found;
}

// Sends bytes to the store and returns everything that the store sends until it closes the
// connection. Appends "open" if the connection is still open after `patience`.
std::string answer_to(const Place& place, const std::string& bytes, Clock::duration patience = 3s) {
  const net::Fd socket = place.stranger();
  net::send_all(socket.get(), bytes);
  std::string received;
  std::array<char, 1> one{};
  try {
    for (;;) {
      net::receive_all(socket.get(), one, Clock::now() + patience);
      received += one.front();
    }
  } catch (const atoll::Error& error) {
    return error.code() == atoll::ErrorCode::timeout ? received + "open" : received;
  }
}

}  // namespace

TEST_CASE("a value reaches every rank, even one that already waits, and can be overwritten") {
  Place place(3);
  run_ranks(place, [](Rank& self) {
    if (self.number == 0) {
      std::this_thread::sleep_for(50ms);
      self.client.put("late", "came");
    }
    REQUIRE(self.client.get("late", std::chrono::milliseconds::max()) == "came");
    self.client.exchange("", "", 10s);
    if (self.number == 1) self.client.put("late", "changed");
    self.client.exchange("", "", 10s);
    REQUIRE(self.client.get("late", 10s) == "changed");
  });
  place.server().finish(10s);
}

TEST_CASE("many exchanges and barriers in sequence, with reused keys") {
  Place place(4);
  run_ranks(place, [](Rank& self) {
    for (int round = 0; round < 50; ++round) {
      const std::string mine(static_cast<std::size_t>(self.number * 100 + round), 'x');
      const auto all = self.client.exchange("key", mine, 10s);
      REQUIRE(all.size() == 4);
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        REQUIRE(all[rank].size() == rank * 100 + static_cast<std::size_t>(round));
      }
      REQUIRE(self.client.exchange("", "", 10s) == std::vector<std::string>(4));
    }
  });
}

TEST_CASE("calls of several threads of a rank do not mix") {
  Place place(1);
  run_ranks(place, [](Rank& self) {
    std::vector<std::jthread> threads;
    std::atomic<int> wrong{0};
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < 50; ++i) {
          const std::string text = std::to_string(thread) + "/" + std::to_string(i);
          self.client.put(text, text);
          wrong += self.client.get(text, 10s) != text;
        }
      });
    }
    threads.clear();
    REQUIRE(wrong == 0);
  });
}

TEST_CASE("the largest value travels both ways") {
  Place place(2);
  run_ranks(place, [](Rank& self) {
    const std::string large(store::max_value_bytes, static_cast<char>('a' + self.number));
    const auto all = self.client.exchange("large", large, 60s);
    REQUIRE(all[0] == std::string(store::max_value_bytes, 'a'));
    REQUIRE(all[1] == std::string(store::max_value_bytes, 'b'));
  });
}

TEST_CASE("timeouts name the key, the rank and who is absent") {
  Place place(3);
  Rank zero(place, 0), one(place, 1), two(place, 2);
  CHECK(thrown(atoll::ErrorCode::timeout, [&] { one.client.get("nothing", 50ms); }) ==
        "rank 1: no rank put key \"nothing\" within 0.05 s");
  // Rank 0 times out first, and the message for rank 1 must not report rank 0 as absent. The
  // timeouts are long enough that both ranks wait at the same time even on a busy machine.
  std::jthread other(
      [&] { thrown(atoll::ErrorCode::timeout, [&] { zero.client.exchange("", "", 2s); }); });
  const std::string absent =
      thrown(atoll::ErrorCode::timeout, [&] { one.client.exchange("", "", 6s); });
  CHECK(absent == "rank 1: barrier: rank 2 (host here, pid 102) did not arrive within 6 s");
  other.join();
  CHECK_FALSE(zero.failure->get());

  // A rank that timed out no longer takes part in the barrier, so it can enter the next exchange.
  std::vector<std::jthread> all;
  for (Rank* rank : {&zero, &one, &two}) {
    all.emplace_back([rank] { rank->client.exchange("", "", 10s); });
  }
  all.clear();

  // If all missing ranks have timed out, the message reports that they timed out.
  std::jthread last(
      [&] { thrown(atoll::ErrorCode::timeout, [&] { two.client.exchange("late", "", 6s); }); });
  thrown(atoll::ErrorCode::timeout, [&] { zero.client.exchange("late", "", 1s); });
  const std::string gave_up =
      thrown(atoll::ErrorCode::timeout, [&] { one.client.exchange("late", "", 1s); });
  CHECK(gave_up ==
        "rank 1: exchange \"late\": rank 0 (host here, pid 100) had already timed out, so not all "
        "ranks joined "
        "within 1 s");
  last.join();
  for (Rank* rank : {&zero, &one, &two}) rank->client.farewell();
}

TEST_CASE("no rank waits for a rank that has left the job") {
  Place place(2);
  Rank zero(place, 0), one(place, 1);
  std::jthread leaver([&] {
    std::this_thread::sleep_for(50ms);
    one.client.farewell();
  });
  const std::string waiting =
      thrown(atoll::ErrorCode::peer_lost, [&] { zero.client.exchange("", "", 10s); });
  CHECK(contains(waiting, "barrier: rank 1 (host here, pid 101) has left the job"));
  const std::string later =
      thrown(atoll::ErrorCode::peer_lost, [&] { zero.client.exchange("k", "", 10s); });
  CHECK(contains(later, "exchange \"k\": rank 1"));
  CHECK_FALSE(zero.failure->get());
  zero.client.farewell();
}

TEST_CASE("a connection that closes without a farewell fails the job on every rank at once") {
  Place place(3);
  Rank zero(place, 0), one(place, 1);
  std::atomic<int> called{0};
  one.failure->subscribe([&](const atoll::Error& error) {
    CHECK(contains(error.what(), "rank 2 (host here, pid 102) was lost"));
    ++called;
  });
  net::Fd two = place.hello(2);
  std::jthread waiter([&] {
    CHECK(contains(thrown(atoll::ErrorCode::peer_lost, [&] { zero.client.get("never", 60s); }),
                   "rank 2 (host here, pid 102) was lost"));
  });
  const auto start = Clock::now();
  two.reset();
  CHECK(contains(thrown(atoll::ErrorCode::peer_lost, [&] { one.client.exchange("", "", 60s); }),
                 "rank 2 (host here, pid 102) was lost"));
  waiter.join();
  CHECK(Clock::now() - start < 2s);
  CHECK(contains(one.failure->get()->what(), "rank 2"));
  thrown(atoll::ErrorCode::peer_lost, [&] { one.client.put("more", ""); });
  for (int i = 0; i < 200 && called == 0; ++i) std::this_thread::sleep_for(10ms);
  CHECK(called == 1);
}

TEST_CASE("a question reaches every rank, whatever it is doing") {
  using How = store::Answered::How;
  Place place(4);
  Rank zero(place, 0), one(place, 1);
  // Rank 2 joins but never reads from its connection, like a process that is stopped.
  const net::Fd stopped = place.hello(2);
  Rank three(place, 3);
  one.client.answer_with([](std::string_view question) { return std::string(question) + " one"; });
  three.client.farewell();
  std::jthread waiter([&] { CHECK_THROWS_AS(one.client.get("never", 60s), atoll::Error); });
  const auto start = Clock::now();
  const auto answers = zero.client.ask("who?", 300ms);
  CHECK(Clock::now() - start >= 300ms);
  CHECK(Clock::now() - start < 5s);
  REQUIRE(answers.size() == 4);
  CHECK(answers[0].how == How::answered);
  CHECK(answers[0].text.empty());  // rank 0 has no answer, because it has not called answer_with()
  CHECK(answers[1].how == How::answered);
  CHECK(answers[1].text == "who? one");
  CHECK(answers[2].how == How::silent);
  CHECK(answers[3].how == How::departed);
  zero.client.fail("enough");
  thrown(atoll::ErrorCode::aborted, [&] { zero.client.ask("who?", 60s); });
}

TEST_CASE("a question returns as soon as all ranks have answered") {
  Place place(2);
  run_ranks(place, [](Rank& self) {
    self.client.answer_with([&](std::string_view) { return std::to_string(self.number); });
    self.client.exchange("ready", "", 10s);
    const auto start = Clock::now();
    const auto answers = self.client.ask("who?", 60s);
    CHECK(Clock::now() - start < 10s);
    for (std::size_t i = 0; i < answers.size(); ++i) CHECK(answers[i].text == std::to_string(i));
    self.client.exchange("done", "", 10s);
    self.client.answer_with({});
  });
}

TEST_CASE("the end of the store is the loss of rank 0") {
  Place place(2);
  Rank zero(place, 0), one(place, 1);
  zero.client.farewell();
  place.server().finish(50ms);
  CHECK(contains(thrown(atoll::ErrorCode::peer_lost, [&] { one.client.get("x", 10s); }),
                 "rank 0, which serves the store, ended before rank 1 (host here, pid 101)"));
}

TEST_CASE("every rank gets the first declared failure, with the rank that declared it") {
  Place place(2);
  Rank zero(place, 0), one(place, 1);
  one.client.fail("disk on fire");
  zero.client.fail("me too");
  for (const Rank* rank : {&zero, &one}) {
    REQUIRE(rank->failure->get());
    CHECK(rank->failure->get()->code() == atoll::ErrorCode::aborted);
    CHECK(std::string(rank->failure->get()->what()) == "rank 1 (host here, pid 101): disk on fire");
  }
}

TEST_CASE("ranks that have joined, early or late, learn which ranks did not") {
  Place place(4, 200ms);
  Rank zero(place, 0), two(place, 2);
  const std::string reason = "rank 1, rank 3 did not join the job within 0.2 s";
  CHECK(thrown(atoll::ErrorCode::timeout, [&] { two.client.exchange("", "", 60s); }) == reason);
  CHECK(thrown(atoll::ErrorCode::timeout, [&] { zero.client.get("x", 60s); }) == reason);
  Rank three(place, 3);
  CHECK(thrown(atoll::ErrorCode::timeout, [&] { three.client.get("x", 60s); }) == reason);
}

TEST_CASE("a duplicate rank and a rank with another job size are refused") {
  Place place(2);
  const net::Fd first = place.hello(1);
  CHECK(thrown(atoll::ErrorCode::mismatch, [&] { place.hello(1); }) ==
        "rank 1 (host here, pid 101) has already joined the job");
  CHECK(thrown(atoll::ErrorCode::mismatch, [&] { place.hello(0, "right", 3); }) ==
        "rank 0 of 3 cannot join a job of 2 ranks");
  CHECK(thrown(atoll::ErrorCode::mismatch, [&] { place.hello(7); }) ==
        "rank 7 of 2 cannot join a job of 2 ranks");
}

TEST_CASE("the store does not answer a wrong token, and the client suggests to check it") {
  Place place(1);
  const std::string hello =
      store::encode_frame(store::Kind::hello, 0, store::encode({"wrong", 0, 1, "here", 1}));
  CHECK(answer_to(place, hello) == "");
  const std::string message =
      thrown(atoll::ErrorCode::timeout, [&] { place.hello(0, "wrong", 1, 300ms); });
  CHECK(contains(message, "rank 0 (host here, pid 100) cannot reach the store of rank 0"));
  CHECK(contains(message, "is the token right?"));
  run_ranks(place, [](Rank& self) { self.client.put("still", "served"); });
}

TEST_CASE("connections without a valid hello get no answer and do no harm") {
  Place place(2);
  Rank zero(place, 0), one(place, 1);
  using store::Kind;
  using store::Packer;
  const std::string body = store::encode({"right", 0, 2, "here", 1});
  CHECK(answer_to(place, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") == "");
  CHECK(answer_to(place, std::string(100'000, '\xff')) == "");
  CHECK(answer_to(place, store::encode_header({0xffffffff, 1, 0})) == "");
  CHECK(answer_to(place, store::encode_header({2000, 1, 0})) == "");
  CHECK(answer_to(place, store::encode_frame(Kind::hello, 0, "")) == "");
  CHECK(answer_to(place, store::encode_frame(Kind::hello, 0, body + "x")) == "");
  for (std::size_t cut = 0; cut < body.size(); ++cut) {
    CHECK(answer_to(place, store::encode_frame(Kind::hello, 0, body.substr(0, cut))) == "");
  }
  // The store does not answer requests that precede the hello message, nor a hello message with a
  // text that claims to extend beyond the end of the message.
  const std::string get = Packer().number(1000).text("key").text("").take();
  CHECK(answer_to(place, store::encode_frame(Kind::get, 1, get)) == "");
  CHECK(answer_to(place, store::encode_frame(Kind::farewell, 1, "")) == "");
  CHECK(answer_to(place, store::encode_frame(Kind::welcome, 1, "")) == "");
  CHECK(answer_to(place,
                  store::encode_frame(
                      Kind::hello, 0,
                      Packer().number(store::magic).number(store::version).number(200).take())) ==
        "");

  zero.client.put("key", "value");
  CHECK(one.client.get("key", 10s) == "value");
  CHECK_FALSE(one.failure->get());
  zero.client.farewell();
  one.client.farewell();
}

TEST_CASE("idle connections do not block a rank and are closed") {
  Place place(1);
  std::vector<net::Fd> idle;
  for (std::size_t i = 0; i < store::max_strangers + 50; ++i) idle.push_back(place.stranger());
  run_ranks(place, [](Rank& self) { self.client.put("key", "value"); });
  std::array<char, 1> one{};
  CHECK(contains(thrown(atoll::ErrorCode::peer_lost,
                        [&] { net::receive_all(idle.front().get(), one, Clock::now() + 1s); }),
                 "closed"));
}

TEST_CASE("a silent connection is closed after the handshake timeout") {
  Place place(1);
  const auto start = Clock::now();
  CHECK(answer_to(place, "", store::handshake_timeout + 5s) == "");
  const auto waited = Clock::now() - start;
  CHECK(waited > store::handshake_timeout - 100ms);
  CHECK(waited < store::handshake_timeout + 2s);
}

TEST_CASE("a rank that sends malformed data is reported as lost") {
  using store::Kind;
  const auto exchange_of = [](std::initializer_list<std::uint32_t> ranks) {
    store::Packer packer;
    packer.number(1000).text("key").text("value");
    for (const std::uint32_t number : ranks) packer.number(number);  // first the number of ranks
    return store::encode_frame(Kind::exchange, 1, packer.take());
  };
  const std::vector<std::string> malformed{
      store::encode_header({0x7fffffff, 2, 1}),
      store::encode_frame(Kind::put, 1, "garbage"),
      exchange_of({}),
      exchange_of({2, 0}),
      exchange_of({0xffffffff, 0, 1}),
      exchange_of({2, 1, 1}),
      exchange_of({2, 1, 2}),
      exchange_of({0, 0}),
  };
  for (std::size_t i = 0; i < malformed.size(); ++i) {
    CAPTURE(i);
    Place place(2);
    Rank zero(place, 0);
    const net::Fd one = place.hello(1);
    net::send_all(one.get(), malformed[i]);
    CHECK(contains(thrown(atoll::ErrorCode::peer_lost, [&] { zero.client.get("x", 10s); }),
                   "rank 1 (host here, pid 101) was lost"));
  }
}

TEST_CASE("an exchange of some ranks completes without the others, and refuses them") {
  Place place(3);
  run_ranks(place, [](Rank& self) {
    const std::vector<int> ends{0, 2};
    if (self.number == 1) {
      CHECK(thrown(atoll::ErrorCode::mismatch, [&] {
              self.client.exchange("other", "", 10s, ends);
            }) == "rank 1: rank 1 does not take part in exchange \"other\"");
    } else {
      CHECK(self.client.exchange("key", self.number == 0 ? "a" : "b", 10s, ends) ==
            std::vector<std::string>{"a", "b"});
    }
  });
}

TEST_CASE("messages survive packing and unpacking, and every malformed message is rejected") {
  const store::Hello hello{"token", 3, 8, "node", 4711};
  const store::Hello back = store::decode_hello(store::encode(hello));
  CHECK(back.token == hello.token);
  CHECK(back.rank == 3);
  CHECK(back.size == 8);
  CHECK(back.host == "node");
  CHECK(back.pid == 4711);

  const store::Header header = store::decode_header(store::encode_header({1, 2, 1ull << 40}));
  CHECK(header.length == 1);
  CHECK(header.kind == 2);
  CHECK(header.request == 1ull << 40);

  const std::string text = store::Packer().text("abc").take();
  thrown(atoll::ErrorCode::bad_data, [&] { store::Unpacker(text).text(2); });
  thrown(atoll::ErrorCode::bad_data, [&] { store::Unpacker(text).finish(); });
  thrown(atoll::ErrorCode::bad_data, [&] { store::Unpacker("abc").number(); });
  CHECK(store::decode_answer(store::Packer().number(99).take()).problem ==
        atoll::ErrorCode::internal);
}

TEST_CASE("equal_secrets compares whole secrets") {
  CHECK(store::equal_secrets("", ""));
  CHECK(store::equal_secrets("abc", "abc"));
  CHECK_FALSE(store::equal_secrets("abc", "abd"));
  CHECK_FALSE(store::equal_secrets("abc", "abcabc"));
  CHECK_FALSE(store::equal_secrets("abc", ""));
  CHECK_FALSE(store::equal_secrets("", "a"));
  CHECK_FALSE(store::equal_secrets("aa", "a"));
}

// Linux assigns even ports to outgoing connections, one after the other, and odd ports to listeners
// on port 0. Without the check in connect_to(), one of these many connections would connect to
// itself.
TEST_CASE("a connection to a port without a listener fails and does not connect to itself") {
  const int odd = [] {
    const net::Fd listener = net::listen_on(net::resolve("127.0.0.1", 0).front());
    return net::port_of(net::local_address(listener.get()));
  }();
  const net::Address nobody = net::resolve("127.0.0.1", odd & ~1).front();
  int answers = 0;
  for (int i = 0; i < 20'000; ++i) {
    try {
      net::connect_to(nobody, Clock::now() + 5s);
      ++answers;
    } catch (const atoll::Error&) {
    }
  }
  CHECK(answers == 0);
}
