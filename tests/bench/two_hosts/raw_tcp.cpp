#include "raw_tcp.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
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

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {
    if (fd_ < 0) fail_call("socket of the raw link");
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

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

// Both ends leave at about the same time.
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

// Bytes per second until the other end is done.
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

using Connect = std::function<Socket()>;

// The slower end's figure, which both get.
double agree(int fd, double mine) {
  double theirs = 0;
  send_all(fd, &mine, sizeof mine);
  receive_all(fd, &theirs, sizeof theirs);
  return std::min(mine, theirs);
}

double one_way(const Connect& connect, const Socket& control, End end) {
  const Socket data = connect();
  greet(control.get());
  constexpr double unknown = 1e30;
  if (end == End::listener) return agree(control.get(), drain(data.get()));
  pour(data.get());
  return agree(control.get(), unknown);
}

double both_ways(const Connect& connect, const Socket& control, End end) {
  const Socket first = connect(), second = connect();
  const int out = end == End::listener ? first.get() : second.get();
  const int in = end == End::listener ? second.get() : first.get();
  greet(control.get());
  double rate = 0;
  {
    std::jthread receiver([&] { rate = drain(in); });
    pour(out);
  }
  return agree(control.get(), rate);
}

RawRates measure(const Connect& connect, End end) {
  const Socket control = connect();
  RawRates best;
  for (int i = 0; i < runs; ++i) {
    best.one_way = std::max(best.one_way, one_way(connect, control, end));
    best.both_ways = std::max(best.both_ways, both_ways(connect, control, end));
  }
  return best;
}

}  // namespace

RawListener::RawListener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (fd_ < 0) fail_call("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(fd_, generic, length) != 0 || ::listen(fd_, 8) != 0 ||
      ::getsockname(fd_, generic, &length) != 0) {
    fail_call("listening for the raw link");
  }
  port_ = ntohs(address.sin_port);
}

RawListener::~RawListener() {
  if (fd_ >= 0) ::close(fd_);
}

RawRates measure_as_listener(const RawListener& listener) {
  return measure([&] { return Socket(::accept(listener.get(), nullptr, nullptr)); }, End::listener);
}

RawRates measure_as_caller(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    throw std::runtime_error("no such address: " + address);
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> target(found, ::freeaddrinfo);
  const auto call = [&] {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), target->ai_addr, target->ai_addrlen) != 0) fail_call("connect");
    return socket;
  };
  return measure(call, End::caller);
}

}  // namespace atoll_bench
