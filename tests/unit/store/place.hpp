// A store on the loopback interface, for tests that connect to it as ranks or as strangers.
#pragma once

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
#include "store/client.hpp"
#include "store/protocol.hpp"
#include "store/server.hpp"
#include "unit/error_text.hpp"

namespace atoll_test {

using namespace std::chrono_literals;
namespace net = atoll::net;
namespace store = atoll::store;
using net::Clock;

// A store of a job whose token is "right", with functions that connect to it.
class Place {
 public:
  explicit Place(int size, std::chrono::milliseconds rendezvous = 20s,
                 std::size_t strangers = store::max_strangers,
                 std::chrono::milliseconds first_reminder = 10s)
      : size_(size) {
    store::ServerOptions options;
    options.listeners.push_back(net::listen_on(net::resolve("127.0.0.1", 0).front()));
    port_ = net::port_of(net::local_address(options.listeners.front().get()));
    options.token = "right";
    options.size = size;
    options.rendezvous_timeout = rendezvous;
    options.strangers = strangers;
    options.first_reminder = first_reminder;
    server_ = std::make_unique<store::Server>(std::move(options));
  }

  net::Fd hello(int rank, const std::string& token = "right", int size = 0,
                std::chrono::milliseconds patience = 10s) const {
    const store::Join join{rank, size == 0 ? size_ : size, "here", 100 + rank};
    return store::connect(net::resolve("127.0.0.1", port_), {token, join}, Clock::now() + patience)
        .socket;
  }
  net::Fd stranger() const {
    return net::connect_to(net::resolve("127.0.0.1", port_).front(), Clock::now() + 5s);
  }
  store::Server& server() { return *server_; }
  int size() const { return size_; }
  int port() const { return port_; }

 private:
  int size_;
  int port_ = 0;
  std::unique_ptr<store::Server> server_;
};

struct Rank {
  Rank(const Place& place, int rank)
      : number(rank), client(place.hello(rank), rank, place.size(), failure) {}
  std::shared_ptr<atoll::Failure> failure = std::make_shared<atoll::Failure>();
  int number;
  store::Client client;
};

// Runs `body` on one thread per rank. Every rank leaves the job afterwards. Rethrows the first
// exception of a rank.
inline void run_ranks(const Place& place, const std::function<void(Rank&)>& body) {
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
  FAIL_CHECK("nothing was thrown");
  return "";
}

// Returns whether the store closes the connection within 10 s.
inline bool is_closed(const net::Fd& socket) {
  std::array<char, 1> one{};
  return has(thrown(atoll::ErrorCode::peer_lost,
                    [&] { net::receive_all(socket.get(), one, Clock::now() + 10s); }),
             "closed");
}

// Sends bytes to the store and returns everything that the store sends until it closes the
// connection. Appends "open" if the connection is still open after `patience`.
inline std::string answer_to(const Place& place, const std::string& bytes,
                             Clock::duration patience = 3s) {
  const net::Fd socket = place.stranger();
  std::string received;
  std::array<char, 1> one{};
  try {
    net::send_all(socket.get(), bytes);  // fails if the store closes the connection meanwhile
    for (;;) {
      net::receive_all(socket.get(), one, Clock::now() + patience);
      received += one.front();
    }
  } catch (const atoll::Error& error) {
    return error.code() == atoll::ErrorCode::timeout ? received + "open" : received;
  }
}

}  // namespace atoll_test
