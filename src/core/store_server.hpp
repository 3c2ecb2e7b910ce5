// The store itself: a thread of rank 0 that serves every rank over TCP. It alone decides that the
// job has failed, and its first reason is everybody's.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/socket.hpp"

namespace atoll_v1::atoll::store {

// Connections that have not said a valid hello: at most this many, each for at most this long; the
// oldest leaves when another one comes.
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
  ~Server();  // finish() with little patience

  // Returns once every rank has said farewell or is lost, at the latest after `patience`; then the
  // ranks that remain are told that the store has ended. Once the job has failed, patience is
  // short.
  void finish(std::chrono::milliseconds patience);

 private:
  class Service;
  std::unique_ptr<Service> service_;
  std::jthread thread_;
};

}  // namespace atoll_v1::atoll::store
