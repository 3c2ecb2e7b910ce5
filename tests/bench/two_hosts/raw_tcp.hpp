// The bandwidth of TCP between two hosts, without anything of atoll's: the wire that the table of
// collectives_two_hosts compares with.
#pragma once

#include <string>

namespace atoll_bench {

// Payload in bytes per second, as the receiver sees it: the best of some runs of half a second.
struct RawRates {
  double one_way = 0;    // nothing else on the link
  double both_ways = 0;  // the slower direction, while the other one is as busy
};

// Where the other end connects to: a socket of this host.
class RawListener {
 public:
  RawListener();
  RawListener(const RawListener&) = delete;
  RawListener& operator=(const RawListener&) = delete;
  ~RawListener();
  int port() const { return port_; }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
  int port_ = 0;
};

// The two ends; each returns the same rates.
RawRates measure_as_listener(const RawListener& listener);
RawRates measure_as_caller(const std::string& address, int port);

}  // namespace atoll_bench
