// Tests of the store with ranks that are threads: values, exchanges, questions and failures.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <optional>
#include <stop_token>

#include "unit/store/place.hpp"

using namespace atoll_test;

TEST_CASE("a value reaches every rank, even one that already waits, and can be overwritten") {
  Place place(3);
  run_ranks(place, [](Rank& self) {
    if (self.number == 0) {
      std::this_thread::sleep_for(50ms);
      self.client.put("late", "came", 10s);
    }
    REQUIRE(self.client.get("late", std::chrono::milliseconds::max()) == "came");
    self.client.exchange("", "", 10s);
    if (self.number == 1) self.client.put("late", "changed", 10s);
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
          self.client.put(text, text, 10s);
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
  CHECK(has(thrown(atoll::ErrorCode::timeout, [&] { one.client.get("nothing", 50ms); }),
            "rank 1: no rank put key \"nothing\" within 0.05 s"));
  // Rank 0 times out first, and the message for rank 1 must not report rank 0 as absent. The
  // timeouts are long enough that both ranks wait at the same time even on a busy machine.
  std::jthread other(
      [&] { thrown(atoll::ErrorCode::timeout, [&] { zero.client.exchange("", "", 2s); }); });
  CHECK(thrown(atoll::ErrorCode::timeout, [&] { one.client.exchange("", "", 6s); }) ==
        "rank 1: barrier: rank 2 (host here, pid 102) did not arrive within 6 s");
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
  CHECK(has(thrown(atoll::ErrorCode::timeout, [&] { one.client.exchange("late", "", 1s); }),
            "exchange \"late\": rank 0 (host here, pid 100) had already timed out"));
  last.join();
  for (Rank* rank : {&zero, &one, &two}) rank->client.farewell();
}

TEST_CASE("a timeout names the rank for which an absent rank waits itself") {
  Place place(3);
  Rank zero(place, 0), one(place, 1), two(place, 2);
  const std::vector<int> first{0, 1}, last{1, 2};
  for (const auto patience : {4s, 1s}) {  // rank 1 still waits, or has just timed out
    std::jthread other([&] {
      thrown(atoll::ErrorCode::timeout, [&] { one.client.exchange("b", "", patience, last); });
    });
    CHECK(
        thrown(atoll::ErrorCode::timeout, [&] { zero.client.exchange("a", "", 2s, first); }) ==
        "rank 0: exchange \"a\": rank 1 (host here, pid 101) did not arrive within 2 s; it waited "
        "for rank 2 (host here, pid 102)");
  }
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
  CHECK(has(waiting, "barrier: rank 1 (host here, pid 101) has left the job"));
  const std::string later =
      thrown(atoll::ErrorCode::peer_lost, [&] { zero.client.exchange("k", "", 10s); });
  CHECK(has(later, "exchange \"k\": rank 1"));
  CHECK_FALSE(zero.failure->get());
  zero.client.farewell();
}

TEST_CASE("a question reaches every rank, whatever it is doing") {
  using How = store::Answered::How;
  Place place(4);
  Rank zero(place, 0), one(place, 1);
  // Rank 2 joins but never reads from its connection, like a process that is stopped.
  const net::Fd stopped = place.hello(2);
  Rank three(place, 3);
  one.client.answer_with([](std::string_view name, std::string_view detail) {
    return std::string(name) + " one " + std::string(detail);
  });
  three.client.farewell();
  std::jthread waiter([&] { CHECK_THROWS_AS(one.client.get("never", 60s), atoll::Error); });
  const auto start = Clock::now();
  const auto answers = zero.client.ask("who?", "now\n?", 300ms);
  CHECK(Clock::now() - start >= 300ms);
  CHECK(Clock::now() - start < 5s);
  REQUIRE(answers.size() == 4);
  CHECK(answers[0].how == How::answered);
  CHECK(answers[0].text.empty());  // rank 0 has no answer, because it has not called answer_with()
  CHECK(answers[1].how == How::answered);
  CHECK(answers[1].text == "who? one now\n?");
  CHECK(answers[1].pid == 101);
  CHECK(answers[2].how == How::silent);
  CHECK(answers[3].how == How::departed);
  zero.client.fail("enough");
  thrown(atoll::ErrorCode::aborted, [&] { zero.client.ask("who?", "", 60s); });
}

TEST_CASE("a question returns as soon as all ranks have answered") {
  Place place(2);
  run_ranks(place, [](Rank& self) {
    self.client.answer_with([&](auto...) { return std::to_string(self.number); });
    self.client.exchange("ready", "", 10s);
    const auto start = Clock::now();
    const auto answers = self.client.ask("who?", "", 60s);
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
  CHECK(has(thrown(atoll::ErrorCode::peer_lost, [&] { one.client.get("x", 10s); }),
            "rank 0, which serves the store, ended before rank 1 (host here, pid 101)"));
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

// tests/fuzz/store_server tries many more.
TEST_CASE("a rank that sends malformed data is reported as lost") {
  using store::Kind;
  const std::string no_ranks = store::Packer().number(1000).text("key").text("value").take();
  const std::vector<std::string> malformed{
      store::encode_header({0x7fffffff, 2, 1}),
      store::encode_frame(Kind::put, 1, "garbage"),
      store::encode_frame(Kind::exchange, 1, no_ranks),
      store::encode_frame(Kind::get, 1, store::Packer().number(0).number(1u << 30).take()),
      store::encode_frame(Kind::join, 1, store::encode(store::Join{1, 2, "here", 1})),
      store::encode_frame(Kind::hello, 1, store::Handshake(store::Side::rank, "").greeting()),
  };
  for (std::size_t i = 0; i < malformed.size(); ++i) {
    CAPTURE(i);
    Place place(2);
    Rank zero(place, 0);
    const net::Fd one = place.hello(1);
    net::send_all(one.get(), malformed[i]);
    CHECK(has(thrown(atoll::ErrorCode::peer_lost, [&] { zero.client.get("x", 10s); }),
              "rank 1 (host here, pid 101) was lost"));
  }
}

TEST_CASE("interrupt() ends the exchanges with a prefix, pending ones and later ones") {
  Place place(2);
  Rank zero(place, 0), one(place, 1);
  std::jthread later([&] {
    std::this_thread::sleep_for(50ms);
    zero.client.interrupt("a/");
  });
  for (const char* key : {"a/1", "a/2"}) {
    CHECK(thrown(atoll::ErrorCode::aborted, [&] { zero.client.exchange(key, "", 60s); }) ==
          fmt::format("rank 0: the wait for \"{}\" was interrupted", key));
  }
  std::jthread other([&] { one.client.exchange("b/1", "", 10s); });
  zero.client.exchange("b/1", "", 10s);  // is not interrupted: it has another prefix
  other.join();
  for (Rank* rank : {&zero, &one}) rank->client.farewell();
}

TEST_CASE("a rank that stops its exchange ends it on all ranks, also on those that come later") {
  Place place(3);
  Rank zero(place, 0), one(place, 1), two(place, 2);
  std::stop_source source;
  std::string first, second;
  std::jthread waits([&] {
    first = thrown(atoll::ErrorCode::aborted, [&] { zero.client.exchange("x", "", 60s); });
  });
  std::jthread stops([&] {
    second = thrown(atoll::ErrorCode::aborted, [&] {
      one.client.exchange("x", "", 60s, {}, source.get_token(), "one stopped");
    });
  });
  std::this_thread::sleep_for(50ms);
  source.request_stop();
  waits.join();
  stops.join();
  CHECK(first == "rank 0: one stopped");
  CHECK(second == "rank 1: one stopped");
  CHECK(thrown(atoll::ErrorCode::aborted, [&] { two.client.exchange("x", "", 60s); }) ==
        "rank 2: one stopped");
  // All ranks know, so the key is free again.
  std::jthread others[] = {std::jthread([&] { zero.client.exchange("x", "", 10s); }),
                           std::jthread([&] { two.client.exchange("x", "", 10s); })};
  std::this_thread::sleep_for(20ms);
  CHECK(one.client.exchange("x", "", 10s).size() == 3);
  for (Rank* rank : {&zero, &one, &two}) rank->client.farewell();
}

TEST_CASE("a rank that joins late learns which rank was lost, although rank 0 has left") {
  Place place(3);
  const std::string lost = "rank 1 (host here, pid 101) was lost";
  {
    Rank zero(place, 0);
    place.hello(1);  // joins and disconnects at once
    CHECK(has(thrown(atoll::ErrorCode::peer_lost, [&] { zero.client.get("x", 10s); }), lost));
  }
  const std::jthread rank_0([&] { place.server().finish(10s); });
  std::this_thread::sleep_for(100ms);
  Rank two(place, 2);
  CHECK(has(thrown(atoll::ErrorCode::peer_lost, [&] { two.client.get("x", 10s); }), lost));
}

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

TEST_CASE("one message fetches many keys, and waits for those that come later") {
  Place place(2);
  run_ranks(place, [](Rank& self) {
    const std::vector<std::string> keys{"a", "late", "b", "a"};
    if (self.number == 0) {
      self.client.put("a", "1", 10s);
      self.client.put("b", "", 10s);
      std::this_thread::sleep_for(50ms);
      self.client.put("late", "came", 10s);
    }
    REQUIRE(self.client.get_all(keys, 10s) == std::vector<std::string>{"1", "came", "", "1"});
    REQUIRE(self.client.get_all({}, 10s).empty());
    const std::vector<std::string> absent{"a", "none", "no"};
    CHECK(has(thrown(atoll::ErrorCode::timeout, [&] { self.client.get_all(absent, 50ms); }),
              "no rank put key \"none\", \"no\" within 0.05 s"));
  });
}

TEST_CASE("keys are deleted when all of their readers have released them") {
  Place place(2);
  run_ranks(place, [](Rank& self) {
    if (self.number == 0) {
      for (const char* key : {"group/1", "group/2", "groups", "grou"})
        self.client.put(key, "x", 10s);
    }
    self.client.exchange("", "", 10s);
    const std::vector<int> readers{0, 1};
    if (self.number == 0) self.client.release("group/", readers);
    self.client.exchange("", "", 10s);
    REQUIRE(self.client.get("group/2", 10s) == "x");
    self.client.exchange("", "", 10s);
    if (self.number == 1) self.client.release("group/", {});
    self.client.exchange("", "", 10s);
    for (const char* key : {"group/1", "group/2"})
      thrown(atoll::ErrorCode::timeout, [&] { self.client.get(key, 0ms); });
    REQUIRE(self.client.get("groups", 10s) == "x");
    REQUIRE(self.client.get("grou", 10s) == "x");
  });
}

TEST_CASE("keys are deleted when the last of their readers is gone") {
  Place place(3);
  Rank zero(place, 0), two(place, 2);
  const std::vector<int> readers{0, 1};
  {
    Rank one(place, 1);
    zero.client.put("group/1", "x", 10s);
    zero.client.release("group/", readers);
    CHECK(two.client.get("group/1", 10s) == "x");
    one.client.farewell();
  }
  thrown(atoll::ErrorCode::timeout, [&] { two.client.get("group/1", 0ms); });
  for (Rank* rank : {&zero, &two}) rank->client.farewell();
}

TEST_CASE("ranks that name different groups for one exchange get an error") {
  Place place(3);
  Rank zero(place, 0), one(place, 1), two(place, 2);
  const std::vector<int> all{0, 1, 2}, some{0, 1};
  std::jthread waiter([&] {
    CHECK(zero.client.exchange("key", "z", 10s, all) == std::vector<std::string>{"z", "o", "t"});
  });
  std::this_thread::sleep_for(50ms);
  CHECK(thrown(atoll::ErrorCode::mismatch, [&] { one.client.exchange("key", "o", 10s, some); }) ==
        "rank 1: rank 1 names other ranks than the others in exchange \"key\"");
  std::jthread other([&] { one.client.exchange("key", "o", 10s, all); });
  two.client.exchange("key", "t", 10s, all);
  waiter.join();
  other.join();
  for (Rank* rank : {&zero, &one, &two}) rank->client.farewell();
}

TEST_CASE("a store that ends as soon as a rank has left is no failure of that rank") {
  int failures = 0;
  for (int i = 0; i < 200; ++i) {
    std::optional<Place> place(1);
    Rank self(*place, 0);
    const std::jthread ending([&] { place.reset(); });  // waits until the rank has left
    self.client.farewell();
    std::this_thread::sleep_for(1ms);
    failures += self.failure->get() ? 1 : 0;
  }
  CHECK(failures == 0);
}

TEST_CASE("the header of a long message claims no memory for bytes that have not arrived") {
  const auto most_used = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;  // in KiB
  };
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const atoll::net::Fd receiver(ends[0]);
  {
    const atoll::net::Fd sender(ends[1]);
    atoll::net::send_all(sender.get(), store::encode_header({store::max_answer_bytes, 17, 0}));
    atoll::net::send_all(sender.get(), std::string(100'000, 'x'));
  }
  const long before = most_used();
  CHECK_THROWS_AS(
      store::receive_message(receiver.get(), store::max_answer_bytes, Clock::now() + 10s),
      atoll::Error);
  CHECK(most_used() - before < 256 * 1024);
}

TEST_CASE("a connection to the store does not change the newest error of its thread") {
  const atoll::Error known(atoll::ErrorCode::io, "of this thread");
  Place place(1);
  const Rank self(place, 0);
  CHECK(std::string(atoll::newest_error.text.data()) == "of this thread");
  CHECK(atoll::newest_error.error == &known);
}
