// Tests of how ranks and the store prove themselves to each other.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <future>

#include "atoll/version.hpp"
#include "atoll/world.hpp"
#include "reserved_port.hpp"
#include "unit/child_process.hpp"
#include "unit/store/place.hpp"

using namespace atoll_test;
using store::Handshake;
using store::Kind;
using store::Packer;
using store::Side;

namespace {

const store::Greeting other_version{store::version + 1, "7.8.9", {}};

std::string frame(Kind kind, const std::string& body) { return store::encode_frame(kind, 0, body); }

struct Reply {
  Kind kind{};
  std::string payload;
};

// Receives one message of the store.
Reply receive(const net::Fd& socket) {
  std::array<char, store::header_bytes> bytes{};
  net::receive_all(socket.get(), bytes, Clock::now() + 5s);
  const store::Header header = store::decode_header({bytes.data(), bytes.size()});
  std::string body(header.length, '\0');
  net::receive_all(socket.get(), body, Clock::now() + 5s);
  return {Kind{header.kind}, std::string(store::decode_answer(body).payload)};
}

// Sends the hello of `rank` to the store and gives its challenge to `rank`.
void greet(const net::Fd& socket, Handshake& rank) {
  net::send_all(socket.get(), frame(Kind::hello, rank.greeting()));
  const Reply challenge = receive(socket);
  REQUIRE(challenge.kind == Kind::challenge);
  rank.hear(challenge.payload);
}

// A process that has taken the port of the store. It answers each message with the next of
// `answers` and records everything that it receives.
class Squatter {
 public:
  using Answer = std::function<std::string(const std::string& received)>;
  explicit Squatter(std::vector<Answer> answers)
      : listener_(net::listen_on(net::resolve("127.0.0.1", 0).front())),
        port_(net::port_of(net::local_address(listener_.get()))),
        thread_([this, answers = std::move(answers)] { serve(answers); }) {}

  // Returns the error of a rank that applies here with the token "right", and everything that this
  // process received.
  std::string error(std::string& recorded) {
    const std::string text = thrown(expected_, [&] {
      const auto deadline = Clock::now() + 10s;
      const net::Fd socket = net::connect_to(net::resolve("127.0.0.1", port_).front(), deadline);
      store::apply(socket.get(), {"right", {0, 2, "my-host-name", 4711}}, deadline, deadline);
    });
    thread_.join();
    recorded = recorded_;
    return text;
  }
  net::Address address() const { return net::resolve("127.0.0.1", port_).front(); }
  void expect(atoll::ErrorCode code) { expected_ = code; }

 private:
  void serve(const std::vector<Answer>& answers) {
    net::wait_for(listener_.get(), POLLIN, Clock::now() + 5s);
    const net::Fd socket = net::accept_from(listener_.get());
    for (const Answer& answer : answers) {
      const std::string body = receive_frame(socket);
      net::send_all(socket.get(), answer(body));
    }
    std::array<char, 1> one{};
    try {
      for (;;) {
        net::receive_all(socket.get(), one, Clock::now() + 300ms);
        recorded_ += one.front();
      }
    } catch (const atoll::Error&) {
    }
  }

  std::string receive_frame(const net::Fd& socket) {
    std::array<char, store::header_bytes> bytes{};
    net::receive_all(socket.get(), bytes, Clock::now() + 5s);
    std::string body(store::decode_header({bytes.data(), bytes.size()}).length, '\0');
    net::receive_all(socket.get(), body, Clock::now() + 5s);
    recorded_ += std::string(bytes.data(), bytes.size()) + body;
    return body;
  }

  net::Fd listener_;
  int port_;
  atoll::ErrorCode expected_ = atoll::ErrorCode::bad_data;
  std::string recorded_;
  std::jthread thread_;
};

std::string answer_frame(Kind kind, const std::string& payload) {
  return frame(kind, Packer().number(0).take() + payload);
}

// Runs `body` in a child process with another user; returns its exit status, or -1 if this process
// may not change the user.
int as_other_user(const std::function<int()>& body) {
  constexpr uid_t nobody = 65534;
  if (::geteuid() != 0) return -1;
  ChildProcess child([&](int) {
    if (::setuid(nobody) != 0) ::_exit(99);
    try {
      ::_exit(body());
    } catch (const std::exception&) {
      ::_exit(98);
    }
  });
  const int status = child.status();
  return WIFEXITED(status) ? WEXITSTATUS(status) : 97;
}

// The name contains the process that started, so that a forked process uses the same.
const std::string place_name = "atoll/test/" + std::to_string(::getpid());

net::Address local_place() { return net::local_socket(place_name); }

}  // namespace

TEST_CASE("the store does not answer a wrong token, and the client suggests to check it") {
  Place place(1);
  for (const char* token : {"wrong", "", "right!", "righ"}) {
    CAPTURE(token);
    Handshake rank(Side::rank, token);
    const net::Fd socket = place.stranger();
    greet(socket, rank);
    net::send_all(socket.get(), frame(Kind::proof, rank.proof()));
    CHECK(is_closed(socket));
  }
  CHECK(has(thrown(atoll::ErrorCode::timeout, [&] { place.hello(0, "wrong", 1, 2s); }),
            {"rank 0 (host here, pid 100) cannot reach the store of the job",
             "is ATOLL_TOKEN equal on all ranks?"}));
  run_ranks(place, [](Rank& self) { self.client.put("still", "served", 10s); });
}

TEST_CASE("a proof counts only from its author's role, for its own conversation, and whole") {
  Handshake rank(Side::rank, "right"), store(Side::store, "right"), wrong(Side::store, "wrong");
  rank.hear(store.greeting());
  store.hear(rank.greeting());
  wrong.hear(rank.greeting());
  CHECK(store.accepts(rank.proof()));
  CHECK(rank.accepts(store.proof()));
  CHECK_FALSE(rank.accepts(rank.proof()));
  CHECK_FALSE(store.accepts(store.proof()));
  CHECK_FALSE(rank.accepts(wrong.proof()));
  CHECK_FALSE(rank.accepts(store.proof().substr(1)));
  CHECK_FALSE(rank.accepts(store.proof() + "x"));
  CHECK_FALSE(rank.accepts(""));
  // A store with other random bytes must refuse the proof that was made for the first store.
  Handshake later(Side::store, "right");
  later.hear(rank.greeting());
  CHECK_FALSE(later.accepts(rank.proof()));
}

TEST_CASE("a recorded conversation lets nobody in") {
  Place place(2);
  Handshake rank(Side::rank, "right");
  const net::Fd recorded = place.stranger();
  greet(recorded, rank);
  const std::string proof = frame(Kind::proof, rank.proof());
  net::send_all(recorded.get(), proof);
  const Reply proved = receive(recorded);
  CHECK(proved.kind == Kind::proved);
  CHECK(rank.accepts(proved.payload));

  const net::Fd replay = place.stranger();
  net::send_all(replay.get(), frame(Kind::hello, rank.greeting()));
  CHECK(receive(replay).kind == Kind::challenge);
  net::send_all(replay.get(), proof);
  CHECK(is_closed(replay));

  // Sends the store's own proof back to the store, which must refuse it.
  Handshake second(Side::rank, "right");
  const net::Fd reflection = place.stranger();
  greet(reflection, second);
  net::send_all(reflection.get(), frame(Kind::proof, proved.payload));
  CHECK(is_closed(reflection));
}

TEST_CASE("a process on the store's port learns neither token nor identity, and lets no rank in") {
  const auto challenge = [](Handshake& store) {
    return [&store](const std::string& hello) {
      store.hear(hello);
      return answer_frame(Kind::challenge, store.greeting());
    };
  };
  Handshake thief(Side::store, "guess"), mirror(Side::store, "guess");
  struct Trial {
    std::vector<Squatter::Answer> answers;
    std::string error;
  };
  const std::vector<Trial> trials{
      {{[](const std::string&) { return std::string("HTTP/1.1 400 Bad Request\r\n\r\n"); }},
       "not an atoll store"},
      {{[](const std::string&) { return answer_frame(Kind::welcome, ""); }}, "not an atoll store"},
      {{challenge(thief),
        [&](const std::string&) { return answer_frame(Kind::proved, thief.proof()); }},
       "does not know the token of the job"},
      {{challenge(mirror),
        [](const std::string& proof) { return answer_frame(Kind::proved, proof); }},
       "does not know the token of the job"},
  };
  for (const Trial& trial : trials) {
    Squatter squatter(trial.answers);
    std::string recorded;
    CHECK(has(squatter.error(recorded), trial.error));
    CHECK(recorded.find("right") == std::string::npos);
    CHECK(recorded.find("my-host-name") == std::string::npos);
  }
}

TEST_CASE("a rank waits on one connection for a store that stands still after its proof") {
  Handshake store(Side::store, "right");
  Squatter slow({[&](const std::string& hello) {
                   store.hear(hello);
                   return answer_frame(Kind::challenge, store.greeting());
                 },
                 [&](const std::string& proof) {
                   CHECK(store.accepts(proof));
                   return answer_frame(Kind::proved, store.proof());
                 },
                 [&](const std::string&) {
                   std::this_thread::sleep_for(5500ms);
                   return answer_frame(Kind::welcome, "secret");
                 }});
  const store::Application application{"right", {1, 2, "here", 1}};
  CHECK(store::connect({slow.address()}, application, Clock::now() + 20s).answer == "secret");
}

TEST_CASE("another version is named as such on both sides, not as a wrong token") {
  const std::string here = "atoll " ATOLL_VERSION " (store protocol 7)";
  const std::string there = "atoll 7.8.9 (store protocol 8)";
  Handshake later(Side::store, "right", other_version);
  Squatter store_of_later(
      {[&](const std::string& hello) {
         later.hear(hello);
         return answer_frame(Kind::challenge, later.greeting());
       },
       [&](const std::string&) { return answer_frame(Kind::proved, later.proof()); }});
  store_of_later.expect(atoll::ErrorCode::mismatch);
  std::string recorded;
  CHECK(store_of_later.error(recorded) ==
        "rank 0 runs " + there + ", this rank runs " + here + ": use one version on all hosts");

  Place place(2, 2s);
  Rank zero(place, 0);
  Handshake rank(Side::rank, "right", other_version);
  const net::Fd socket = place.stranger();
  greet(socket, rank);
  net::send_all(socket.get(), frame(Kind::proof, rank.proof()));
  const Reply proved = receive(socket);
  CHECK(rank.accepts(proved.payload));
  CHECK(is_closed(socket));
  const std::string reason = thrown(atoll::ErrorCode::timeout, [&] { zero.client.get("x", 60s); });
  CHECK(has(reason, "rank 1 did not join the job within 2 s; 127.0.0.1 port "));
  CHECK(has(reason, " runs " + there + ", rank 0 runs " + here));
}

TEST_CASE("patches of one minor version share a job; other versions do not") {
  const auto is_compatible = [](std::uint32_t protocol, const std::string& library) {
    return store::is_compatible({protocol, library, {}});
  };
  const std::string series =
      std::to_string(ATOLL_VERSION_MAJOR) + "." + std::to_string(ATOLL_VERSION_MINOR) + ".";
  CHECK(is_compatible(store::version, ATOLL_VERSION));
  CHECK(is_compatible(store::version, series + "99"));
  CHECK_FALSE(is_compatible(store::version, "99.1.0"));
  CHECK_FALSE(is_compatible(store::version + 1, ATOLL_VERSION));
  CHECK_FALSE(is_compatible(2, ""));
}

TEST_CASE("without a token, ranks of one user meet at a local socket and get a secret") {
  store::ServerOptions options;
  options.listeners.push_back(net::listen_on(local_place()));
  options.secret = "random";
  options.size = 1;
  store::Server server(std::move(options));
  const int status = as_other_user([] {
    const net::Fd socket = net::connect_to(local_place(), Clock::now() + 5s);
    Handshake rank(Side::rank, "");
    try {
      net::send_all(socket.get(), frame(Kind::hello, rank.greeting()));
      std::array<char, 1> one{};
      net::receive_all(socket.get(), one, Clock::now() + 5s);
    } catch (const atoll::Error& error) {
      return error.code() == atoll::ErrorCode::peer_lost ? 0 : 1;
    }
    return 2;
  });
  if (status < 0) MESSAGE("not root: another user is not tried");
  CHECK(status <= 0);
  const store::Admission admission =
      store::connect({local_place()}, {"", {0, 1, "here", 1}}, Clock::now() + 5s);
  CHECK(admission.answer == "random");
}

TEST_CASE("a rank without a token does not trust a store of another user") {
  std::array<int, 2> ends{}, release{};
  REQUIRE(::pipe(ends.data()) == 0);
  REQUIRE(::pipe(release.data()) == 0);
  auto other = std::async(std::launch::async, [&] {
    return as_other_user([&] {
      const net::Fd listener = net::listen_on(local_place());
      if (::write(ends[1], "x", 1) != 1) return 1;
      net::wait_for(listener.get(), POLLIN, Clock::now() + 5s);
      const net::Fd socket = net::accept_from(listener.get());
      std::array<char, 1> one{};
      try {
        net::receive_all(socket.get(), one, Clock::now() + 5s);
      } catch (const atoll::Error& error) {
        // The rank tries again, and must find this process until its time is over.
        if (::read(release[0], one.data(), 1) != 1) return 4;
        return error.code() == atoll::ErrorCode::peer_lost ? 0 : 2;
      }
      return 3;  // the rank has sent something
    });
  });
  if (::geteuid() != 0) {
    MESSAGE("not root: another user is not tried");
    return;
  }
  std::array<char, 1> one{};
  REQUIRE(::read(ends[0], one.data(), 1) == 1);
  CHECK(has(thrown(atoll::ErrorCode::timeout,
                   [] {
                     store::connect({local_place()}, {"", {0, 1, "here", 1}}, Clock::now() + 2s);
                   }),
            "a process of another user has taken it: set ATOLL_TOKEN on every rank"));
  CHECK(::write(release[1], "x", 1) == 1);
  CHECK(other.get() == 0);
  for (const int end : {ends[0], ends[1], release[0], release[1]}) ::close(end);
}

TEST_CASE("processes: a job without a token gets one, which all of its ranks share") {
  const ReservedPort port;
  std::vector<ChildProcess> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.emplace_back([&](int out) {
      ::setenv("RANK", std::to_string(rank).c_str(), 1);
      ::setenv("WORLD_SIZE", "2", 1);
      ::setenv("MASTER_ADDR", "localhost", 1);
      ::setenv("ATOLL_PORT", std::to_string(port.number()).c_str(), 1);
      try {
        atoll::World world = atoll::World::from_env();
        const std::string& token = world.config().token;
        if (world.placements()[0].address != "127.0.0.1") ::dprintf(out, "another address ");
        if (world.exchange("token", token)[0] == token) ::dprintf(out, "%s", token.c_str());
      } catch (const std::exception& error) {
        ::dprintf(out, "%s", error.what());
      }
    });
  }
  const std::string first = children[0].rest(), second = children[1].rest();
  CHECK(first.size() == 32);
  CHECK(first == second);
  for (ChildProcess& child : children) CHECK(child.status() == 0);
}
