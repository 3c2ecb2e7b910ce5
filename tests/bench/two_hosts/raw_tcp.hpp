// The bandwidth of TCP between two hosts over all their links at once, without anything of atoll's:
// the wire that the table of collectives_two_hosts compares with.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace atoll_bench {

// Payload in bytes per second, as the receiver sees it: the best of some runs of half a second.
struct RawRates {
  std::size_t links = 0;
  double one_way = 0;    // nothing else on the links
  double both_ways = 0;  // the slower direction, while the other one is as busy
};

// Where the other end connects to: a socket of this host.
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
  std::string address;  // numeric, IPv4
  int port = 0;
};

// The two ends; each returns the same rates. A connection each way per link: listener i is what
// target i leads to.
RawRates measure_as_listener(const std::vector<RawListener>& listeners);
RawRates measure_as_caller(const std::vector<RawTarget>& targets);

}  // namespace atoll_bench
