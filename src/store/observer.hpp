// The connection of an observer to the store. An observer is a process outside the job, which may
// only ask what the ranks do. It proves that it knows the token, as ranks do. The job does not wait
// for an observer, and does not notice when it disconnects.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/socket.hpp"
#include "store/protocol.hpp"

namespace atoll_v1::atoll::store {

class Observer {
 public:
  // Tries each address once. Throws Error(io) or Error(timeout) if nothing answers there,
  // Error(bad_data) if the token is wrong or another program listens there, Error(mismatch) if it
  // runs another version, and Error(unsupported) if the job has too many observers.
  Observer(std::vector<net::Address> addresses, std::string token, net::Clock::time_point deadline);

  // Asks every rank and waits at most `patience` for the answers. Returns nothing when the job has
  // ended. Throws Error(aborted) with the reason when the job has failed, Error(peer_lost) when
  // rank 0 is lost, and Error(timeout) when it does not answer. After an error, the next call
  // connects again.
  std::optional<std::vector<Answered>> look(std::chrono::milliseconds patience);

 private:
  void connect(net::Clock::time_point deadline);
  // Receives the payload of the next message of this kind; "" if the job ends before.
  std::string receive(Kind kind, net::Clock::time_point deadline);

  std::vector<net::Address> addresses_;
  std::string token_;
  net::Fd socket_;
  bool has_ended_ = false;
};

}  // namespace atoll_v1::atoll::store
