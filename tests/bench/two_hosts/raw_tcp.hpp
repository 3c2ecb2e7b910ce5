// Measures the TCP bandwidth between two hosts over all their links at once, without the transport
// of atoll. The bench collectives_two_hosts prints this rate as the limit of the wire.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/socket.hpp"

namespace atoll_bench {

// TCP payload in bytes per second, measured by the receiver. Each rate is the best of several runs
// of half a second.
struct RawRates {
  std::size_t links = 0;
  double one_way = 0;    // bytes per second in one direction while the other direction is idle
  double both_ways = 0;  // bytes per second of the slower direction while both directions are busy
};

// A listening socket on this host, to which the other host connects.
class RawListener {
 public:
  RawListener();
  int port() const { return port_; }
  int get() const { return fd_.get(); }

 private:
  atoll::net::Fd fd_;
  int port_ = 0;
};

struct RawTarget {
  std::string address;  // numeric IPv4 address
  int port = 0;
};

// Run the two ends of a measurement; both ends return the same rates. Each link uses one connection
// per direction. targets[i] must be an address of listeners[i].
RawRates measure_as_listener(const std::vector<RawListener>& listeners);
RawRates measure_as_caller(const std::vector<RawTarget>& targets);

}  // namespace atoll_bench
