#include "core/socket.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "core/errors.hpp"
#include "core/terminal_safe.hpp"

namespace atoll_v1::atoll {

std::atomic<unsigned> ProcessMark::forks_before_{0};

ProcessMark::ProcessMark() noexcept {
  static const int registered = ::pthread_atfork(
      nullptr, nullptr, [] { forks_before_.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  forks_ = forks_before_.load(std::memory_order_relaxed);
}

}  // namespace atoll_v1::atoll

namespace atoll_v1::atoll::net {
namespace {

[[noreturn]] void fail(std::string_view action, const Address& address, int number) {
  throw make_error(ErrorCode::io, "cannot {} {}: {}", action, name_of(address),
                   std::generic_category().message(number));
}

const sockaddr* as_sockaddr(const Address& address) noexcept {
  return reinterpret_cast<const sockaddr*>(address.bytes.data());
}

socklen_t length_of(const Address& address) noexcept {
  return static_cast<socklen_t>(address.bytes.size());
}

int family_of(const Address& address) noexcept { return as_sockaddr(address)->sa_family; }

Address from_sockaddr(const void* data, socklen_t length) {
  const auto* first = static_cast<const std::byte*>(data);
  return {{first, first + length}};
}

Fd stream_socket(const Address& address) {
  return Fd(::socket(family_of(address), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void set_option(int socket, int level, int option, int value) noexcept {
  ::setsockopt(socket, level, option, &value, sizeof value);
}

// Returns the address that getsockname() or getpeername() reports.
Address reported_address(int socket, int (*call)(int, sockaddr*, socklen_t*), const char* name) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (call(socket, reinterpret_cast<sockaddr*>(&storage), &length) != 0)
    throw make_error(ErrorCode::io, "{}: {}", name, std::generic_category().message(errno));
  return from_sockaddr(&storage, length);
}

}  // namespace

bool wait_for(int socket, short events, Clock::time_point deadline, const std::atomic<bool>* stop) {
  // poll() does not notice when this process closes the socket, but the next call of poll() does,
  // unless another file has got the number. So each call ends after at most one second.
  constexpr std::int64_t longest_poll = 1'000;  // milliseconds
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd item{socket, events, 0};
    const int ready =
        ::poll(&item, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, longest_poll)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the next call on the socket reports the error
    if (ready == 0 && (left <= 0 || (stop != nullptr && *stop))) return false;
  }
}

std::vector<Address> resolve(std::string_view host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* raw = nullptr;
  const int status =
      ::getaddrinfo(std::string(host).c_str(), std::to_string(port).c_str(), &hints, &raw);
  // "localhost" is always this machine (RFC 6761, 6.3), even in containers without /etc/hosts.
  if (status != 0 && host == "localhost") return resolve("127.0.0.1", port);
  if (status != 0) {
    throw make_error(ErrorCode::not_found, "cannot resolve host \"{}\": {}", terminal_safe(host),
                     ::gai_strerror(status));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(raw, &::freeaddrinfo);
  std::vector<Address> result;
  for (const addrinfo* item = list.get(); item != nullptr; item = item->ai_next) {
    result.push_back(from_sockaddr(item->ai_addr, item->ai_addrlen));
  }
  return result;
}

Address local_socket(std::string_view name) {
  sockaddr_un local{};
  local.sun_family = AF_UNIX;
  // An abstract name begins with a zero byte and is no file.
  const std::size_t length = std::min(name.size(), sizeof local.sun_path - 1);
  std::copy_n(name.begin(), length, local.sun_path + 1);
  return from_sockaddr(&local,
                       static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length));
}

bool is_local_socket(const Address& address) noexcept { return family_of(address) == AF_UNIX; }

bool is_loopback(const Address& address) noexcept {
  if (family_of(address) == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, address.bytes.data(), sizeof v4);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
  }
  sockaddr_in6 v6{};
  std::memcpy(&v6, address.bytes.data(), std::min(sizeof v6, address.bytes.size()));
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

bool names_loopback(std::string_view host) {
  if (host == "localhost" || host.starts_with("localhost.")) return true;
  const std::vector<Address> addresses = resolve(host, 0);
  return std::ranges::all_of(addresses, [&](const Address& address) {
    return is_loopback(address) && numeric_host(address) == host;
  });
}

std::string numeric_host(const Address& address) {
  std::array<char, NI_MAXHOST> text{};
  const int status = ::getnameinfo(as_sockaddr(address), length_of(address), text.data(),
                                   static_cast<socklen_t>(text.size()), nullptr, 0, NI_NUMERICHOST);
  return status == 0 ? std::string(text.data()) : std::string("?");
}

std::string name_of(const Address& address) {
  if (family_of(address) != AF_UNIX) {
    return fmt::format("{} port {}", numeric_host(address), port_of(address));
  }
  constexpr std::size_t start = offsetof(sockaddr_un, sun_path) + 1;
  if (address.bytes.size() <= start) return "a local socket";
  const auto* first = reinterpret_cast<const char*>(address.bytes.data());
  return "local socket " + std::string(first + start, first + address.bytes.size());
}

int port_of(const Address& address) noexcept {
  // IPv4 and IPv6 addresses store the port at the same offset.
  sockaddr_in v4{};
  std::memcpy(&v4, address.bytes.data(), std::min(sizeof v4, address.bytes.size()));
  return ntohs(v4.sin_port);
}

Fd listen_on(const Address& address) {
  Fd result = stream_socket(address);
  if (result) set_option(result.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (result && family_of(address) == AF_INET6)
    set_option(result.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (!result || ::bind(result.get(), as_sockaddr(address), length_of(address)) != 0 ||
      ::listen(result.get(), SOMAXCONN) != 0)
    fail("listen on", address, errno);
  return result;
}

Fd accept_from(int listener) {
  return Fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

void configure_stream(int socket) noexcept {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  notice_cut(socket, std::chrono::seconds(24));
}

void notice_cut(int socket, std::chrono::seconds limit) noexcept {
  constexpr int probes = 6;  // number of probes, one per second (TCP_KEEPINTVL)
  const int idle = static_cast<int>(std::clamp<std::int64_t>(limit.count(), 1, 32767));
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, idle);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, probes);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, (idle + probes) * 1000);
}

Fd connect_to(const Address& address, Clock::time_point deadline) {
  Fd result = stream_socket(address);
  if (!result) fail("connect to", address, errno);
  if (::connect(result.get(), as_sockaddr(address), length_of(address)) != 0) {
    if (errno != EINPROGRESS) fail("connect to", address, errno);
    if (!wait_for(result.get(), POLLOUT, deadline)) fail("connect to", address, ETIMEDOUT);
    int problem = 0;
    socklen_t length = sizeof problem;
    ::getsockopt(result.get(), SOL_SOCKET, SO_ERROR, &problem, &length);
    if (problem != 0) fail("connect to", address, problem);
  }
  // If nobody listens on a port in the ephemeral range, the system may assign that port to this
  // socket, which then connects to itself.
  if (local_address(result.get()).bytes == address.bytes) fail("connect to", address, ECONNREFUSED);
  ::fcntl(result.get(), F_SETFL, ::fcntl(result.get(), F_GETFL) & ~O_NONBLOCK);
  configure_stream(result.get());
  return result;
}

Address local_address(int socket) { return reported_address(socket, ::getsockname, "getsockname"); }

Address peer_address(int socket) { return reported_address(socket, ::getpeername, "getpeername"); }

bool peer_has_own_user(int socket) noexcept {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.uid == ::geteuid();
}

std::size_t send_some(int socket, std::string_view data, Clock::time_point deadline) {
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t sent =
        ::send(socket, data.data() + done, data.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      done += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(socket, POLLOUT, deadline)) break;
    } else if (errno != EINTR) {
      throw Error(ErrorCode::peer_lost, "send: " + std::generic_category().message(errno));
    }
  }
  return done;
}

void send_all(int socket, std::string_view data, Clock::time_point deadline) {
  require(send_some(socket, data, deadline) == data.size(), ErrorCode::timeout,
          "the peer takes no data");
}

void receive_all(int socket, std::span<char> data, Clock::time_point deadline,
                 const std::atomic<bool>* stop) {
  while (!data.empty()) {
    if (!wait_for(socket, POLLIN, deadline, stop)) throw Error(ErrorCode::timeout, "no answer");
    const ssize_t received = ::recv(socket, data.data(), data.size(), MSG_DONTWAIT);
    if (received < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (received <= 0) throw Error(ErrorCode::peer_lost, "the connection was closed");
    data = data.subspan(static_cast<std::size_t>(received));
  }
}

}  // namespace atoll_v1::atoll::net
