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

namespace atoll_host_backend {
namespace {

using namespace std::chrono_literals;
using atoll_sdk::Error;

constexpr std::uint32_t hello_magic = 0x41544854;
constexpr std::uint32_t hello_version = 3;
constexpr auto handshake_limit = 5s;
constexpr auto retry_pause = 50ms;
constexpr auto poll_limit = 50ms;
constexpr auto check_period = 250ms;
constexpr std::size_t most_incoming = 256;

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Resolves a host name or address. Returns null if it does not resolve.
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

// Binds a socket to a source address. The port is chosen later by connect(), so that it must be
// unique only per peer.
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

// Sends a handshake message. One call of send() suffices, because the message fits into the empty
// buffer of a new socket.
bool send_all(int socket, const void* data, std::size_t size) {
  return ::send(socket, data, size, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

enum class Fill {
  full,
  partial,
  failed,
};

// Reads the rest of a handshake message into `buffer`. Reads no byte beyond the message, because
// payload follows the handshake.
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
      group_(atoll_collectives::sha256(identity_.group)),
      addresses_(std::move(addresses)) {
  for (const auto& address : addresses_) {
    Descriptor listener;
    if (!address.empty()) listener = listen_on(resolve(address, "0", AI_PASSIVE).get());
    for (const char* any : {"::", "0.0.0.0"}) {
      if (!listener) listener = listen_on(resolve(any, "0", AI_PASSIVE | AI_NUMERICHOST).get());
    }
    if (!listener) {
      throw atoll_sdk::system_error(
          fmt::format("cannot listen for ranks of other hosts at {}", address), errno);
    }
    listeners_.push_back(std::move(listener));
  }
}

std::vector<std::uint16_t> Rendezvous::ports() const {
  std::vector<std::uint16_t> result;
  for (const auto& listener : listeners_) result.push_back(port_of(listener.get()));
  return result;
}

void Rendezvous::expect(StreamId stream, std::size_t rail) { expected_.emplace(stream, rail); }

void Rendezvous::connect_to(StreamId stream, Endpoint where) {
  Outgoing& attempt = outgoing_.emplace_back();
  attempt.stream = stream;
  attempt.where = std::move(where);
}

std::map<int, Streams> Rendezvous::run(Clock::time_point deadline,
                                       const std::function<void()>& check,
                                       const std::function<std::string(int)>& describe) {
  auto next_check = Clock::now() + check_period;
  while (!outgoing_.empty() || !expected_.empty()) {
    const auto now = Clock::now();
    if (now >= deadline) throw Error(ATOLL_TIMEOUT, missing(describe));
    if (now >= next_check) {
      check();
      next_check = now + check_period;
    }
    poll_once();
  }
  incoming_.clear();
  listeners_.clear();
  std::map<int, Streams> result;
  for (auto& [stream, socket] : connected_) result[stream.first].push_back(std::move(socket));
  return result;
}

void Rendezvous::poll_once() {
  std::vector<pollfd> descriptors;
  for (const auto& listener : listeners_) descriptors.push_back({listener.get(), POLLIN, 0});
  for (const auto& peer : incoming_) descriptors.push_back({peer.socket.get(), POLLIN, 0});
  bool paused = false;
  for (const auto& attempt : outgoing_) {
    paused |= attempt.step == Step::pause && attempt.attempt == 0;
    if (attempt.step == Step::pause) continue;
    const short events = attempt.step == Step::connecting ? POLLOUT : POLLIN;
    descriptors.push_back({attempt.socket.get(), events, 0});
  }
  const auto limit = paused ? 0ms : poll_limit;
  ::poll(descriptors.data(), descriptors.size(), static_cast<int>(limit.count()));
  for (const auto& listener : listeners_) admit(listener.get());
  incoming_.remove_if([this](Incoming& peer) { return !serve(peer); });
  for (auto& attempt : outgoing_) advance(attempt);
  outgoing_.remove_if(
      [this](const Outgoing& attempt) { return connected_.contains(attempt.stream); });
}

void Rendezvous::admit(int listener) {
  for (;;) {
    Descriptor socket(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    // Drops the oldest unauthenticated connection, so that processes that connect but send nothing
    // cannot keep ranks out.
    if (incoming_.size() >= most_incoming) incoming_.pop_front();
    Incoming& peer = incoming_.emplace_back();
    peer.socket = std::move(socket);
    peer.deadline = Clock::now() + handshake_limit;
    peer.challenge = atoll_collectives::random_digest();
    tune(peer.socket.get());
    send_all(peer.socket.get(), peer.challenge.data(), peer.challenge.size());
  }
}

bool Rendezvous::serve(Incoming& peer) {
  switch (fill(peer.socket.get(), peer.received, peer.have)) {
    case Fill::partial:
      return Clock::now() < peer.deadline;
    case Fill::failed:
      return false;
    case Fill::full:
      return welcome(peer);
  }
  return false;
}

// Checks the complete handshake message of an incoming connection. If it is valid, its socket moves
// to the connected streams. Always returns false, so that the caller removes the entry, which
// closes the socket of an invalid connection.
bool Rendezvous::welcome(Incoming& peer) {
  Hello hello{};
  Digest given{};
  std::memcpy(&hello, peer.received.data(), sizeof(hello));
  std::memcpy(given.data(), peer.received.data() + sizeof(hello), sizeof(given));
  if (!atoll_collectives::equal(given, proof("connect", peer.challenge, hello))) return false;
  if (hello.magic != hello_magic || hello.version != hello_version || hello.to != identity_.rank ||
      hello.group != group_ || !expected_.contains({hello.from, hello.stream})) {
    return false;
  }
  const Digest answer = proof("accept", peer.challenge, hello);
  if (!send_all(peer.socket.get(), answer.data(), answer.size())) return false;
  const StreamId stream{hello.from, hello.stream};
  connected_[stream] = std::move(peer.socket);
  expected_.erase(stream);
  return false;
}

void Rendezvous::advance(Outgoing& attempt) {
  if (attempt.step != Step::pause && Clock::now() >= attempt.until)
    fail(attempt, "handshake timed out");
  switch (attempt.step) {
    case Step::pause:
      if (Clock::now() >= attempt.until) connect(attempt);
      return;
    case Step::connecting: {
      int error = 0;
      socklen_t size = sizeof(error);
      pollfd ready{attempt.socket.get(), POLLOUT, 0};
      if (::poll(&ready, 1, 0) == 0) return;
      ::getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) return fail(attempt, std::generic_category().message(error));
      attempt.step = Step::challenged;
      return;
    }
    case Step::challenged:
    case Step::answered:
      switch (fill(attempt.socket.get(), attempt.received, attempt.have)) {
        case Fill::partial:
          return;
        case Fill::failed:
          return fail(attempt, "the peer closed the connection during the handshake");
        case Fill::full:
          return answer(attempt);
      }
  }
}

void Rendezvous::connect(Outgoing& attempt) {
  const auto addresses = resolve(attempt.where.address, fmt::format("{}", attempt.where.port), 0);
  if (!addresses) return fail(attempt, "the peer's address does not resolve");
  std::vector<const addrinfo*> all;
  for (const auto* a = addresses.get(); a != nullptr; a = a->ai_next) all.push_back(a);
  const addrinfo& to = *all[attempt.attempt % all.size()];
  attempt.socket = stream_socket(to.ai_family);
  if (!attempt.socket) return fail(attempt, std::generic_category().message(errno));
  if (!attempt.where.from.empty() && !bind_source(attempt.socket.get(), attempt.where.from)) {
    return fail(attempt, std::generic_category().message(errno));
  }
  tune(attempt.socket.get());
  ++attempt.attempt;
  attempt.have = 0;
  attempt.until = Clock::now() + handshake_limit;
  attempt.step = Step::connecting;
  if (::connect(attempt.socket.get(), to.ai_addr, to.ai_addrlen) != 0 && errno != EINPROGRESS) {
    fail(attempt, std::generic_category().message(errno));
  }
}

void Rendezvous::answer(Outgoing& attempt) {
  if (attempt.step == Step::answered) {
    if (!atoll_collectives::equal(attempt.received,
                                  proof("accept", attempt.challenge, attempt.hello))) {
      return fail(attempt, "the peer does not know the job's token");
    }
    connected_[attempt.stream] = std::move(attempt.socket);
    attempt.step = Step::pause;
    return;
  }
  attempt.challenge = attempt.received;
  attempt.hello = {hello_magic,
                   hello_version,
                   identity_.rank,
                   attempt.stream.first,
                   attempt.stream.second,
                   0,
                   group_,
                   atoll_collectives::random_digest()};
  std::array<std::uint8_t, sizeof(Hello) + sizeof(Digest)> message{};
  const Digest mine = proof("connect", attempt.challenge, attempt.hello);
  std::memcpy(message.data(), &attempt.hello, sizeof(Hello));
  std::memcpy(message.data() + sizeof(Hello), mine.data(), mine.size());
  if (!send_all(attempt.socket.get(), message.data(), message.size())) {
    return fail(attempt, std::generic_category().message(errno));
  }
  attempt.have = 0;
  attempt.step = Step::answered;
}

void Rendezvous::fail(Outgoing& attempt, std::string why) {
  attempt.failure = std::move(why);
  attempt.socket.reset();
  attempt.step = Step::pause;
  attempt.until = Clock::now() + retry_pause;
  ++attempt.attempt;
}

Digest Rendezvous::proof(const char* role, const Digest& challenge, const Hello& hello) const {
  const auto* octets = reinterpret_cast<const std::uint8_t*>(&hello);
  std::vector<std::uint8_t> message;
  for (const char* c = role; *c != '\0'; ++c) message.push_back(static_cast<std::uint8_t>(*c));
  message.insert(message.end(), challenge.begin(), challenge.end());
  message.insert(message.end(), octets, octets + sizeof(hello));
  return atoll_collectives::hmac(identity_.token, message);
}

std::string Rendezvous::missing(const std::function<std::string(int)>& describe) const {
  std::string text = "no connection with";
  // Pairs of rank and address that the error text already names.
  std::set<std::pair<int, std::string>> named;
  for (const auto& attempt : outgoing_) {
    if (!named.emplace(attempt.stream.first, attempt.where.address).second) continue;
    text += fmt::format(" {} at {} port {}{}{} ({});", describe(attempt.stream.first),
                        attempt.where.address, attempt.where.port,
                        attempt.where.from.empty() ? "" : " from ", attempt.where.from,
                        attempt.failure);
  }
  for (const auto& [stream, rail] : expected_) {
    if (!named.emplace(stream.first, addresses_[rail]).second) continue;
    text += fmt::format(" {} (that rank did not connect to {});", describe(stream.first),
                        addresses_[rail]);
  }
  text.pop_back();
  return text;
}

}  // namespace atoll_host_backend
