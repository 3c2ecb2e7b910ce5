// The server of the store: a thread of rank 0 that serves all ranks over TCP. Only the server
// decides that the job has failed, so all ranks get the same first reason.
#pragma once

#include <atomic>
#include <chrono>
#include <list>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/socket.hpp"
#include "core/store_protocol.hpp"
#include "core/store_table.hpp"

namespace atoll_v1::atoll::store {

// Limits for connections without a valid hello: their number, and the time that each one may stay.
// If there are too many, a new connection replaces the oldest.
constexpr std::size_t max_strangers = 128;
constexpr std::chrono::seconds handshake_timeout{5};

struct ServerOptions {
  std::vector<net::Fd> listeners;
  std::string token;
  int size = 0;
  std::chrono::milliseconds rendezvous_timeout{60'000};
};

class Connection;
struct Frame;

class Server {
 public:
  explicit Server(ServerOptions options);
  ~Server();  // calls finish(), with a limit of 1 s

  // Returns when every rank has left or is lost, at the latest after `patience` (1 s once the job
  // has failed). Ranks that remain are told that the store has ended.
  void finish(std::chrono::milliseconds patience);

 private:
  void run();  // main loop of the server's thread
  bool done(net::Clock::time_point now) const;
  net::Clock::time_point next_deadline() const;
  net::Clock::time_point finish_deadline() const;
  void expire(net::Clock::time_point now);
  void turn(net::Clock::time_point until);
  void accept_all(int listener);
  void serve(Connection& connection, short events);
  void close(Connection& connection);
  void end();

  void handle(Connection& connection, const Frame& frame);
  void handle_hello(Connection& connection, const Frame& frame);
  void handle_request(Connection& connection, Kind kind, const Frame& frame);
  std::vector<int> read_ranks(Unpacker& in) const;
  void ask_all(const Waiter& waiter, std::string question);
  void depart(Connection& connection, std::uint64_t request);
  void refuse(Connection& connection, const std::string& why);
  static void reply(const Waiter& waiter, std::optional<ErrorCode> problem,
                    const Table::Body& body);
  void declare(ErrorCode code, const std::string& reason);
  void notify(Connection& connection);

  ServerOptions options_;
  net::Fd wake_;
  net::Clock::time_point rendezvous_deadline_;
  std::atomic<net::Clock::rep> finish_deadline_{0};  // when finish() must end; 0 before its call
  Roster roster_;
  Table table_;
  std::list<Connection> connections_;  // ordered by age; a list never moves its elements
  std::optional<Error> failure_;
  net::Clock::time_point failed_at_;
  std::jthread thread_;
};

}  // namespace atoll_v1::atoll::store
