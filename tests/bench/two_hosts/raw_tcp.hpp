// Measures the TCP bandwidth between two hosts over all their links at once, without using atoll.
// This is the wire limit in the table of collectives_two_hosts.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace atoll_bench {

// Payload in bytes per second, measured by the receiver: the best of several runs of half a second.
struct RawRates {
  std::size_t links = 0;
  double one_way = 0;    // one direction, with idle links otherwise
  double both_ways = 0;  // the slower direction, with both directions busy
};

// A listening socket of this host, to which the other host connects.
class RawListener {
 public:
  RawListener();
  RawListener(RawListener&& other) noexcept;
  RawListener& operator=(RawListener&&) = delete;
  ~RawListener();
  int port() const { return port_; }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
  int port_ = 0;
};

struct RawTarget {
  std::string address;  // numeric IPv4 address
  int port = 0;
};

// The two ends of a measurement; both return the same rates. Each link has one connection per
// direction. targets[i] must lead to listeners[i].
RawRates measure_as_listener(const std::vector<RawListener>& listeners);
RawRates measure_as_caller(const std::vector<RawTarget>& targets);

}  // namespace atoll_bench
