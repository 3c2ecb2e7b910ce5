// Tests of connections to the store that never become a rank: strangers, and processes that know
// the token but do not join.
#include <string>
#include <vector>

#include "unit/store/place.hpp"

using namespace atoll_test;
using store::Handshake;
using store::Kind;
using store::Packer;
using store::Side;

namespace {

std::string frame(Kind kind, const std::string& body) { return store::encode_frame(kind, 0, body); }

}  // namespace

TEST_CASE("connections without a valid hello get no answer and do no harm") {
  Place place(2);
  Rank zero(place, 0), one(place, 1);
  const std::string hello = Handshake(Side::rank, "right").greeting();
  CHECK(answer_to(place, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") == "");
  CHECK(answer_to(place, std::string(100'000, '\xff')) == "");
  CHECK(answer_to(place, store::encode_header({0xffffffff, 1, 0})) == "");
  CHECK(answer_to(place, store::encode_header({2000, 1, 0})) == "");
  CHECK(answer_to(place, frame(Kind::hello, "")) == "");
  CHECK(answer_to(place, frame(Kind::hello, hello + "x")) == "");
  for (std::size_t cut = 0; cut < hello.size(); ++cut) {
    CHECK(answer_to(place, frame(Kind::hello, hello.substr(0, cut))) == "");
  }
  // Requests, a proof and a join must not precede the hello. The version in a hello must not
  // contain escape sequences, because messages show it on a terminal.
  const std::string get = Packer().number(1000).number(1).text("key").take();
  CHECK(answer_to(place, frame(Kind::get, get)) == "");
  CHECK(answer_to(place, frame(Kind::farewell, "")) == "");
  CHECK(answer_to(place, frame(Kind::welcome, "")) == "");
  CHECK(answer_to(place, frame(Kind::proof, std::string(32, 'x'))) == "");
  CHECK(answer_to(place, frame(Kind::join, store::encode(store::Join{0, 2, "h", 1}))) == "");
  const store::Greeting escape{store::version, "\x1b[2J", std::string(32, 'x')};
  CHECK(answer_to(place, frame(Kind::hello, store::encode(escape))) == "");

  zero.client.put("key", "value", 10s);
  CHECK(one.client.get("key", 10s) == "value");
  CHECK_FALSE(one.failure->get());
  zero.client.farewell();
  one.client.farewell();
}

TEST_CASE("idle connections do not block a rank, make room for new ones, and are closed in time") {
  constexpr std::size_t strangers = 64;
  Place place(2, 20s, strangers);
  Rank zero(place, 0);
  std::vector<net::Fd> idle;
  for (std::size_t i = 0; i < strangers + 50; ++i) idle.push_back(place.stranger());
  Rank one(place, 1);
  CHECK(is_closed(idle.front()));
  // Connections that have proven the token are no strangers, and no stranger replaces them.
  for (std::size_t i = 0; i < 3 * strangers; ++i) idle.push_back(place.stranger());
  zero.client.put("key", "value", 10s);
  CHECK(one.client.get("key", 10s) == "value");
  const auto start = Clock::now();
  CHECK(answer_to(place, "", store::handshake_timeout + 5s) == "");
  CHECK(Clock::now() - start > store::handshake_timeout - 100ms);
  CHECK(Clock::now() - start < store::handshake_timeout + 4s);
  zero.client.farewell();
  one.client.farewell();
}

TEST_CASE("a proven connection that does not join is closed after the rendezvous timeout") {
  Place place(1, 1s, 2);
  Rank zero(place, 0);
  const net::Fd idle = place.stranger();
  const auto start = Clock::now();
  store::shake_hands(idle.get(), "right", start + 5s);
  // Strangers do not take the place of this connection.
  std::vector<net::Fd> strangers;
  for (int i = 0; i < 20; ++i) strangers.push_back(place.stranger());
  CHECK(is_closed(idle));
  CHECK(Clock::now() - start > 900ms);
  CHECK(Clock::now() - start < 5s);
  zero.client.put("key", "value", 10s);
  CHECK(zero.client.get("key", 1s) == "value");
  zero.client.farewell();
}
