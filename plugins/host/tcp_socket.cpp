#include "host/tcp_socket.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "sdk/backend.hpp"

namespace atoll_host_backend {
namespace {

// Number of unanswered probes after which the kernel ends an idle connection, and the time between
// two probes. A network that loses 5 % of the packets loses six probes in a row about once in a
// million trials.
constexpr int idle_probes = 6;
constexpr int probe_seconds = 1;
// Longest pause between two retransmissions or probes. The kernel's own limit, two minutes, is too
// long to notice a cut in time.
constexpr int longest_retry_ms = 3000;
constexpr int rto_max_option = 44;  // TCP_RTO_MAX_MS of Linux 6.15; older kernels refuse it

void set(int socket, int level, int option, int value) noexcept {
  ::setsockopt(socket, level, option, &value, sizeof(value));
}

Fd listen_on(const addrinfo* first) {
  for (const auto* a = first; a != nullptr; a = a->ai_next) {
    Fd socket = stream_socket(a->ai_family);
    if (socket && ::bind(socket.get(), a->ai_addr, a->ai_addrlen) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0) {
      return socket;
    }
  }
  return {};
}

std::pair<std::string, std::uint16_t> parts_of(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &six.sin6_addr, text.data(), text.size());
    std::string_view result(text.data());
    constexpr std::string_view mapped = "::ffff:";
    if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) && result.starts_with(mapped)) {
      result.remove_prefix(mapped.size());
    }
    return {std::string(result), ntohs(six.sin6_port)};
  }
  if (address.ss_family != AF_INET) return {"unknown", 0};
  const auto& four = reinterpret_cast<const sockaddr_in&>(address);
  ::inet_ntop(AF_INET, &four.sin_addr, text.data(), text.size());
  return {text.data(), ntohs(four.sin_port)};
}

using NameOf = int (*)(int, sockaddr*, socklen_t*);

std::pair<std::string, std::uint16_t> end_of(int socket, NameOf name_of) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (name_of(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {"unknown", 0};
  return parts_of(address);
}

std::string text_of(const std::pair<std::string, std::uint16_t>& end) {
  return fmt::format("{} port {}", end.first, end.second);
}

int get_own(int socket, sockaddr* to, socklen_t* size) { return ::getsockname(socket, to, size); }
int get_other(int socket, sockaddr* to, socklen_t* size) { return ::getpeername(socket, to, size); }

}  // namespace

Addresses resolve(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const char* node = host.empty() ? nullptr : host.c_str();
  if (::getaddrinfo(node, fmt::format("{}", port).c_str(), &hints, &found) != 0) found = nullptr;
  return {found, &::freeaddrinfo};
}

Fd stream_socket(int family) {
  return Fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

Fd listen_at(const std::string& address) {
  Fd listener;
  if (!address.empty()) listener = listen_on(resolve(address, 0, AI_PASSIVE).get());
  for (const char* any : {"::", "0.0.0.0"}) {
    if (!listener) listener = listen_on(resolve(any, 0, AI_PASSIVE | AI_NUMERICHOST).get());
  }
  if (!listener) {
    throw atoll_sdk::system_error(
        fmt::format("cannot listen for ranks of other hosts at {}", address), errno);
  }
  return listener;
}

std::uint16_t port_of(int socket) { return end_of(socket, get_own).second; }

bool bind_source(int socket, const std::string& address) {
  set(socket, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
  const auto source = resolve(address, 0, AI_NUMERICHOST);
  if (!source) errno = EADDRNOTAVAIL;
  return source && ::bind(socket, source->ai_addr, source->ai_addrlen) == 0;
}

void tune(int socket, std::chrono::nanoseconds cut) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(cut).count();
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(std::clamp<long>(seconds, 1, 32767)));
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, probe_seconds);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, idle_probes);
  set(socket, IPPROTO_TCP, rto_max_option, longest_retry_ms);
}

std::string own_end(int socket) { return text_of(end_of(socket, get_own)); }
std::string other_end(int socket) { return text_of(end_of(socket, get_other)); }
std::string other_address(int socket) { return end_of(socket, get_other).first; }

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace atoll_host_backend
