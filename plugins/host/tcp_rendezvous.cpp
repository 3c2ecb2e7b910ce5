#include "host/tcp_rendezvous.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <system_error>

#include "sdk/guard.hpp"

namespace atoll_sdk::host {
namespace {

using namespace std::chrono_literals;
using atoll_sdk::Descriptor;
using atoll_sdk::Digest;
using atoll_sdk::Error;

constexpr std::uint32_t hello_magic = 0x41544854;
constexpr std::uint32_t hello_version = 3;
constexpr auto handshake_limit = 5s;
constexpr auto retry_pause = 50ms;
constexpr auto poll_limit = 50ms;
constexpr auto check_period = 250ms;
constexpr std::size_t most_guests = 256;

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Empty when the name does not resolve.
Addresses resolve(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const char* node = host.empty() ? nullptr : host.c_str();
  if (::getaddrinfo(node, port.c_str(), &hints, &found) != 0) found = nullptr;
  return {found, &::freeaddrinfo};
}

Descriptor stream_socket(int family) {
  return Descriptor(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

Descriptor listen_on(const addrinfo* first) {
  for (const auto* a = first; a != nullptr; a = a->ai_next) {
    Descriptor socket = stream_socket(a->ai_family);
    if (socket && ::bind(socket.get(), a->ai_addr, a->ai_addrlen) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0) {
      return socket;
    }
  }
  return {};
}

std::uint16_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw atoll_sdk::system_error("getsockname", errno);
  }
  in_port_t port = 0;
  if (address.ss_family == AF_INET6) {
    port = reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port;
  } else {
    port = reinterpret_cast<const sockaddr_in*>(&address)->sin_port;
  }
  return ntohs(port);
}

// What the socket sends leaves with this source address. The port is left to connect(), which needs
// it unique per peer only.
bool bind_source(int socket, const std::string& address) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
  const auto source = resolve(address, "0", AI_NUMERICHOST);
  if (!source) errno = EADDRNOTAVAIL;
  return source && ::bind(socket, source->ai_addr, source->ai_addrlen) == 0;
}

void tune(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

// Handshake messages are small against the buffer of a fresh socket.
bool send_all(int socket, const void* data, std::size_t size) {
  return ::send(socket, data, size, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

enum class Fill {
  full,
  partial,
  failed,
};

// Reads up to the end of `buffer` and not a byte more: what follows a handshake is payload.
Fill fill(int socket, std::span<std::uint8_t> buffer, std::size_t& have) {
  const ssize_t n = ::recv(socket, buffer.data() + have, buffer.size() - have, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return Fill::partial;
  if (n <= 0) return Fill::failed;
  have += static_cast<std::size_t>(n);
  return have == buffer.size() ? Fill::full : Fill::partial;
}

}  // namespace

Rendezvous::Rendezvous(Identity identity, std::vector<std::string> addresses)
    : identity_(std::move(identity)),
      group_(atoll_sdk::sha256(identity_.group)),
      addresses_(std::move(addresses)) {
  for (const auto& address : addresses_) {
    Descriptor listener;
    if (!address.empty()) listener = listen_on(resolve(address, "0", AI_PASSIVE).get());
    for (const char* any : {"::", "0.0.0.0"}) {
      if (!listener) listener = listen_on(resolve(any, "0", AI_PASSIVE | AI_NUMERICHOST).get());
    }
    if (!listener) {
      throw atoll_sdk::system_error(
          fmt::format("listening for ranks of other hosts at {}", address), errno);
    }
    listeners_.push_back(std::move(listener));
  }
}

std::vector<std::uint16_t> Rendezvous::ports() const {
  std::vector<std::uint16_t> result;
  for (const auto& listener : listeners_) result.push_back(port_of(listener.get()));
  return result;
}

void Rendezvous::expect(Link link, std::size_t rail) { expected_.emplace(link, rail); }

void Rendezvous::call(Link link, Way way) {
  Call& call = calls_.emplace_back();
  call.link = link;
  call.way = std::move(way);
}

std::map<int, Streams> Rendezvous::meet(Clock::time_point deadline,
                                        const std::function<void()>& check,
                                        const std::function<std::string(int)>& describe) {
  auto next_check = Clock::now() + check_period;
  while (!calls_.empty() || !expected_.empty()) {
    const auto now = Clock::now();
    if (now >= deadline) throw Error(ATOLL_TIMEOUT, missing(describe));
    if (now >= next_check) {
      check();
      next_check = now + check_period;
    }
    poll_once();
  }
  guests_.clear();
  listeners_.clear();
  std::map<int, Streams> result;
  for (auto& [link, socket] : connected_) result[link.first].push_back(std::move(socket));
  return result;
}

void Rendezvous::poll_once() {
  std::vector<pollfd> descriptors;
  for (const auto& listener : listeners_) descriptors.push_back({listener.get(), POLLIN, 0});
  for (const auto& guest : guests_) descriptors.push_back({guest.socket.get(), POLLIN, 0});
  bool paused = false;
  for (const auto& call : calls_) {
    paused |= call.step == Step::pause && call.attempt == 0;
    if (call.step == Step::pause) continue;
    const short events = call.step == Step::connecting ? POLLOUT : POLLIN;
    descriptors.push_back({call.socket.get(), events, 0});
  }
  const auto limit = paused ? 0ms : poll_limit;
  ::poll(descriptors.data(), descriptors.size(), static_cast<int>(limit.count()));
  for (const auto& listener : listeners_) admit(listener.get());
  guests_.remove_if([this](Guest& guest) { return !serve(guest); });
  for (auto& call : calls_) advance(call);
  calls_.remove_if([this](const Call& call) { return connected_.contains(call.link); });
}

void Rendezvous::admit(int listener) {
  for (;;) {
    Descriptor socket(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    // The oldest gives way: a flood of silent strangers must not lock the ranks out.
    if (guests_.size() >= most_guests) guests_.pop_front();
    Guest& guest = guests_.emplace_back();
    guest.socket = std::move(socket);
    guest.deadline = Clock::now() + handshake_limit;
    guest.challenge = atoll_sdk::random_digest();
    tune(guest.socket.get());
    send_all(guest.socket.get(), guest.challenge.data(), guest.challenge.size());
  }
}

bool Rendezvous::serve(Guest& guest) {
  switch (fill(guest.socket.get(), guest.received, guest.have)) {
    case Fill::partial:
      return Clock::now() < guest.deadline;
    case Fill::failed:
      return false;
    case Fill::full:
      return welcome(guest);
  }
  return false;
}

// Always ends the guest: known, its socket moves to the connections; unknown, it is closed.
bool Rendezvous::welcome(Guest& guest) {
  Hello hello{};
  Digest given{};
  std::memcpy(&hello, guest.received.data(), sizeof(hello));
  std::memcpy(given.data(), guest.received.data() + sizeof(hello), sizeof(given));
  if (!atoll_sdk::equal(given, proof("connect", guest.challenge, hello))) return false;
  if (hello.magic != hello_magic || hello.version != hello_version || hello.to != identity_.rank ||
      hello.group != group_ || !expected_.contains({hello.from, hello.stream})) {
    return false;
  }
  const Digest answer = proof("accept", guest.challenge, hello);
  if (!send_all(guest.socket.get(), answer.data(), answer.size())) return false;
  const Link link{hello.from, hello.stream};
  connected_[link] = std::move(guest.socket);
  expected_.erase(link);
  return false;
}

void Rendezvous::advance(Call& call) {
  if (call.step != Step::pause && Clock::now() >= call.until) fail(call, "handshake timed out");
  switch (call.step) {
    case Step::pause:
      if (Clock::now() >= call.until) connect(call);
      return;
    case Step::connecting: {
      int error = 0;
      socklen_t size = sizeof(error);
      pollfd ready{call.socket.get(), POLLOUT, 0};
      if (::poll(&ready, 1, 0) == 0) return;
      ::getsockopt(call.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) return fail(call, std::generic_category().message(error));
      call.step = Step::challenged;
      return;
    }
    case Step::challenged:
    case Step::answered:
      switch (fill(call.socket.get(), call.received, call.have)) {
        case Fill::partial:
          return;
        case Fill::failed:
          return fail(call, "it closed the connection during the handshake");
        case Fill::full:
          return answer(call);
      }
  }
}

void Rendezvous::connect(Call& call) {
  const auto addresses = resolve(call.way.address, fmt::format("{}", call.way.port), 0);
  if (!addresses) return fail(call, "its address does not resolve");
  std::vector<const addrinfo*> all;
  for (const auto* a = addresses.get(); a != nullptr; a = a->ai_next) all.push_back(a);
  const addrinfo& to = *all[call.attempt % all.size()];
  call.socket = stream_socket(to.ai_family);
  if (!call.socket) return fail(call, std::generic_category().message(errno));
  if (!call.way.from.empty() && !bind_source(call.socket.get(), call.way.from)) {
    return fail(call, std::generic_category().message(errno));
  }
  tune(call.socket.get());
  ++call.attempt;
  call.have = 0;
  call.until = Clock::now() + handshake_limit;
  call.step = Step::connecting;
  if (::connect(call.socket.get(), to.ai_addr, to.ai_addrlen) != 0 && errno != EINPROGRESS) {
    fail(call, std::generic_category().message(errno));
  }
}

void Rendezvous::answer(Call& call) {
  if (call.step == Step::answered) {
    if (!atoll_sdk::equal(call.received, proof("accept", call.challenge, call.hello))) {
      return fail(call, "it does not know the job's token");
    }
    connected_[call.link] = std::move(call.socket);
    call.step = Step::pause;
    return;
  }
  call.challenge = call.received;
  call.hello = {hello_magic,      hello_version,
                identity_.rank,   call.link.first,
                call.link.second, 0,
                group_,           atoll_sdk::random_digest()};
  std::array<std::uint8_t, sizeof(Hello) + sizeof(Digest)> message{};
  const Digest mine = proof("connect", call.challenge, call.hello);
  std::memcpy(message.data(), &call.hello, sizeof(Hello));
  std::memcpy(message.data() + sizeof(Hello), mine.data(), mine.size());
  if (!send_all(call.socket.get(), message.data(), message.size())) {
    return fail(call, std::generic_category().message(errno));
  }
  call.have = 0;
  call.step = Step::answered;
}

void Rendezvous::fail(Call& call, std::string why) {
  call.failure = std::move(why);
  call.socket.reset();
  call.step = Step::pause;
  call.until = Clock::now() + retry_pause;
  ++call.attempt;
}

Digest Rendezvous::proof(const char* role, const Digest& challenge, const Hello& hello) const {
  const auto* octets = reinterpret_cast<const std::uint8_t*>(&hello);
  std::vector<std::uint8_t> message;
  for (const char* c = role; *c != '\0'; ++c) message.push_back(static_cast<std::uint8_t>(*c));
  message.insert(message.end(), challenge.begin(), challenge.end());
  message.insert(message.end(), octets, octets + sizeof(hello));
  return atoll_sdk::hmac(identity_.token, message);
}

std::string Rendezvous::missing(const std::function<std::string(int)>& describe) const {
  std::string text = "no connection with";
  std::set<std::pair<int, std::string>> named;  // a line per rank and rail, not per stream
  for (const auto& call : calls_) {
    if (!named.emplace(call.link.first, call.way.address).second) continue;
    text += fmt::format(" {} at {} port {}{}{} ({});", describe(call.link.first), call.way.address,
                        call.way.port, call.way.from.empty() ? "" : " from ", call.way.from,
                        call.failure);
  }
  for (const auto& [link, rail] : expected_) {
    if (!named.emplace(link.first, addresses_[rail]).second) continue;
    text += fmt::format(" {} (it did not connect to {});", describe(link.first), addresses_[rail]);
  }
  text.pop_back();
  return text;
}

}  // namespace atoll_sdk::host
