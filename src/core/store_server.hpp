// The server of the store: a thread of rank 0 that serves all ranks over TCP. Only the server decides
// that the job has failed, so all ranks get the same first reason.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/socket.hpp"

namespace atoll_v1::atoll::store {

// Limits for connections without a valid hello: their number, and the time that each one may stay. If
// there are too many, a new connection replaces the oldest.
constexpr std::size_t max_strangers = 128;
constexpr std::chrono::seconds handshake_timeout{5};

struct ServerOptions {
  std::vector<net::Fd> listeners;
  std::string token;
  int size = 0;
  std::chrono::milliseconds rendezvous_timeout{60'000};
};

class Server {
 public:
  explicit Server(ServerOptions options);
  ~Server();  // calls finish() with a patience of 1 s

  // Returns when every rank has left or is lost, at the latest after `patience` (1 s once the job has
  // failed). Ranks that remain are told that the store has ended.
  void finish(std::chrono::milliseconds patience);

 private:
  class Service;
  std::unique_ptr<Service> service_;
  std::jthread thread_;
};

}  // namespace atoll_v1::atoll::store
