#include "raw_tcp.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace atoll_bench {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto duration = std::chrono::milliseconds(500);
constexpr int runs = 5;
constexpr std::size_t chunk = std::size_t{256} << 10;

[[noreturn]] void fail_call(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

atoll::net::Fd checked(int fd) {
  if (fd < 0) fail_call("socket of the raw link");
  return atoll::net::Fd(fd);
}

void send_all(int fd, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t n = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_call("send");
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

void receive_all(int fd, void* data, std::size_t bytes) {
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t n = ::recv(fd, at, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_call("recv");
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

// Exchanges one byte, so that both ends start to measure at about the same time.
void greet(int fd) {
  char hello = 'h';
  send_all(fd, &hello, 1);
  receive_all(fd, &hello, 1);
}

void pour(int fd) {
  const std::vector<std::byte> data(chunk, std::byte{1});
  const auto end = Clock::now() + duration;
  while (Clock::now() < end) send_all(fd, data.data(), data.size());
  ::shutdown(fd, SHUT_WR);
}

// Receives until the other end closes the connection, and returns the rate in bytes per second.
double drain(int fd) {
  std::vector<std::byte> data(chunk);
  const auto start = Clock::now();
  double bytes = 0;
  for (;;) {
    const ssize_t n = ::recv(fd, data.data(), data.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_call("recv");
    if (n == 0) break;
    bytes += static_cast<double>(n);
  }
  return bytes / std::chrono::duration<double>(Clock::now() - start).count();
}

enum class End {
  listener,
  caller
};

using Connect = std::function<atoll::net::Fd()>;

// Exchanges the measured rates of the two ends, so that both return the smaller rate.
double agree(int fd, double mine) {
  double theirs = 0;
  send_all(fd, &mine, sizeof mine);
  receive_all(fd, &theirs, sizeof theirs);
  return std::min(mine, theirs);
}

// One link between the two hosts: a function that opens a connection over the link, and a
// connection over which the two ends exchange their results.
struct Link {
  explicit Link(Connect connect_) : connect(std::move(connect_)), control(connect()) {}
  Connect connect;
  atoll::net::Fd control;
};

double one_way(const Link& link, End end) {
  const atoll::net::Fd data = link.connect();
  greet(link.control.get());
  constexpr double unknown = 1e30;
  if (end == End::listener) return agree(link.control.get(), drain(data.get()));
  pour(data.get());
  return agree(link.control.get(), unknown);
}

double both_ways(const Link& link, End end) {
  const atoll::net::Fd first = link.connect(), second = link.connect();
  const int out = end == End::listener ? first.get() : second.get();
  const int in = end == End::listener ? second.get() : first.get();
  greet(link.control.get());
  double rate = 0;
  {
    std::jthread receiver([&] { rate = drain(in); });
    pour(out);
  }
  return agree(link.control.get(), rate);
}

// Measures all links at the same time and returns the sum of their rates.
double total(const std::vector<Link>& links, End end, double (*rate_of)(const Link&, End)) {
  std::vector<std::future<double>> rates;
  for (const Link& link : links) {
    rates.push_back(std::async(std::launch::async, rate_of, std::cref(link), end));
  }
  double sum = 0;
  for (auto& rate : rates) sum += rate.get();
  return sum;
}

RawRates measure(const std::vector<Connect>& connects, End end) {
  std::vector<Link> links;
  for (const Connect& connect : connects) links.emplace_back(connect);
  RawRates best{links.size()};
  for (int i = 0; i < runs; ++i) {
    best.one_way = std::max(best.one_way, total(links, end, one_way));
    best.both_ways = std::max(best.both_ways, total(links, end, both_ways));
  }
  return best;
}

}  // namespace

RawListener::RawListener() : fd_(checked(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(get(), generic, length) != 0 || ::listen(get(), 8) != 0 ||
      ::getsockname(get(), generic, &length) != 0) {
    fail_call("listening for the raw link");
  }
  port_ = ntohs(address.sin_port);
}

RawRates measure_as_listener(const std::vector<RawListener>& listeners) {
  std::vector<Connect> connects;
  for (const RawListener& listener : listeners) {
    connects.emplace_back([&] { return checked(::accept(listener.get(), nullptr, nullptr)); });
  }
  return measure(connects, End::listener);
}

RawRates measure_as_caller(const std::vector<RawTarget>& targets) {
  std::vector<Connect> connects;
  for (const RawTarget& target : targets) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(target.port));
    if (::inet_pton(AF_INET, target.address.c_str(), &to.sin_addr) != 1) {
      throw std::runtime_error("not an IPv4 address: " + target.address);
    }
    connects.emplace_back([to] {
      auto socket = checked(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
        fail_call("connect");
      }
      return socket;
    });
  }
  return measure(connects, End::caller);
}

}  // namespace atoll_bench
