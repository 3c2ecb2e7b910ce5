// The connecting side of Rendezvous.
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "host/tcp_rendezvous.hpp"
#include "sdk/backend.hpp"

namespace atoll_host_backend {
namespace {

using namespace std::chrono_literals;

constexpr auto connect_limit = 3s;  // time within which the other side's kernel must answer
constexpr auto answer_limit = 5s;   // time within which the other side's process must answer
constexpr auto retry_pause = 50ms;
constexpr auto refused_limit = 1s;  // time for which refused connections are retried
constexpr unsigned fewest_failures = 3;
// Pause before a call (a request that the higher rank connects). Usually both ranks need the
// connection at the same time, and then the higher rank connects without a call.
constexpr auto call_delay = 10ms;
constexpr auto call_pause = 2s;

std::string message_of(int error) { return std::generic_category().message(error); }

}  // namespace

// Adds the attempts to connect with a rank: one per stream to a lower rank; to a higher rank one
// call, which asks that rank to connect to this one.
void Rendezvous::plan(const Request& request) {
  const int rank = request.rank;
  const std::size_t rails = network_.common_rails(rank);
  const auto& own = network_.rails(network_.rank());
  const bool calls = rank > network_.rank();
  const int count = calls ? 1 : network_.streams(rank);
  for (int stream = 0; stream < count; ++stream) {
    const std::size_t rail = network_.rail(rank, stream);
    Outgoing& attempt = outgoing_.emplace_back();
    attempt.kind = Kind::outgoing;
    attempt.rank = rank;
    attempt.stream = stream;
    attempt.purpose = calls ? Purpose::call : Purpose::connect;
    // With one rail the kernel chooses the source address, which also works behind NAT.
    attempt.own = own[rail];
    if (rails > 1) attempt.from = own[rail];
    attempt.address = network_.rails(rank)[rail];
    attempt.port = request.ports[rail];
    attempt.until = Clock::now() + (calls ? call_delay : 0ms);
  }
}

void Rendezvous::advance(Outgoing& attempt, Clock::time_point now) {
  if (attempt.done) return;
  const bool late = now >= attempt.until;
  switch (attempt.step) {
    case Step::pause:
      if (late) connect(attempt, now);
      return;
    case Step::connecting: {
      int error = 0;
      socklen_t size = sizeof(error);
      ::getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) {
        const auto how = error == ECONNREFUSED ? Failure::refused : Failure::unreachable;
        return fail(attempt, how, message_of(error));
      }
      sockaddr_storage other{};
      size = sizeof(other);
      // getpeername() fails until the other side's kernel has answered.
      if (::getpeername(attempt.socket.get(), reinterpret_cast<sockaddr*>(&other), &size) == 0) {
        return introduce(attempt);
      }
      if (late) fail(attempt, Failure::unreachable, "nothing answers at that address");
      return;
    }
    case Step::awaiting: {
      const auto rest = attempt.answer.rest();
      const ssize_t n = ::recv(attempt.socket.get(), rest.data(), rest.size(), MSG_DONTWAIT);
      if (n > 0) {
        attempt.answer.have += static_cast<std::size_t>(n);
        if (attempt.answer.complete()) return conclude(attempt);
      } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        return fail(attempt, Failure::rejected,
                    "the other side closed the connection during the handshake: it has closed the "
                    "communicator, or has another token (ATOLL_TOKEN) or version of atoll");
      }
      if (late) fail(attempt, Failure::silent, "the process there does not answer");
      return;
    }
  }
}

void Rendezvous::connect(Outgoing& attempt, Clock::time_point now) {
  if (attempt.purpose == Purpose::call && !needs(attempt.rank, attempt.stream)) {
    attempt.done = true;
    return;
  }
  attempt.began = now;
  const auto addresses = resolve(attempt.address, attempt.port, 0);
  if (!addresses) return fail(attempt, Failure::unreachable, "the address does not resolve");
  std::vector<const addrinfo*> all;
  for (const auto* a = addresses.get(); a != nullptr; a = a->ai_next) all.push_back(a);
  const addrinfo& to = *all[attempt.attempt++ % all.size()];
  attempt.socket = stream_socket(to.ai_family);
  if (!attempt.socket) return fail(attempt, Failure::unreachable, message_of(errno));
  if (!attempt.from.empty() && !bind_source(attempt.socket.get(), attempt.from)) {
    return fail(attempt, Failure::unreachable, message_of(errno));
  }
  attempt.answer.have = 0;
  attempt.until = now + std::clamp<std::chrono::nanoseconds>(limits_.cut / 3, 1s, connect_limit);
  attempt.step = Step::connecting;
  if (::connect(attempt.socket.get(), to.ai_addr, to.ai_addrlen) != 0 && errno != EINPROGRESS) {
    return fail(attempt, errno == ECONNREFUSED ? Failure::refused : Failure::unreachable,
                message_of(errno));
  }
  watch(attempt.socket.get(), EPOLLOUT, attempt);
}

void Rendezvous::introduce(Outgoing& attempt) {
  const auto ports = attempt.purpose == Purpose::call ? std::span<const std::uint16_t>(ports_)
                                                      : std::span<const std::uint16_t>();
  attempt.hello = handshake_.hello(attempt.rank, attempt.stream, attempt.purpose, ports);
  if (::send(attempt.socket.get(), &attempt.hello, sizeof(attempt.hello),
             MSG_DONTWAIT | MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(attempt.hello))) {
    return fail(attempt, Failure::unreachable, message_of(errno));
  }
  attempt.until = Clock::now() + answer_limit;
  attempt.step = Step::awaiting;
  watch(attempt.socket.get(), EPOLLIN, attempt);
}

void Rendezvous::conclude(Outgoing& attempt) {
  const Signed<Answer>& answer = attempt.answer.message;
  if (!handshake_.proves(attempt.hello.body, answer)) {
    return fail(attempt, Failure::rejected, "the process there does not know the job's token");
  }
  if (answer.body.checksum != handshake_.identity().checksum) {
    return fail(attempt, Failure::rejected,
                "only one of the two ranks uses checksums: set ATOLL_TCP_CHECKSUM on all ranks");
  }
  const Digest last = handshake_.confirmation(attempt.hello.body, answer.body);
  if (::send(attempt.socket.get(), last.data(), last.size(), MSG_DONTWAIT | MSG_NOSIGNAL) !=
      static_cast<ssize_t>(last.size())) {
    return fail(attempt, Failure::unreachable, message_of(errno));
  }
  if (attempt.purpose == Purpose::call) return rest(attempt, call_pause);
  establish(attempt.rank, attempt.stream, std::move(attempt.socket), text_of(answer.body.host));
  attempt.done = true;
}

// Closes the connection of an attempt, and begins the next attempt after a pause.
void Rendezvous::rest(Outgoing& attempt, std::chrono::nanoseconds pause) {
  attempt.socket.reset();
  attempt.step = Step::pause;
  attempt.until = Clock::now() + pause;
}

void Rendezvous::fail(Outgoing& attempt, Failure how, std::string why) {
  const auto now = Clock::now();
  if (how == Failure::silent) {
    attempt.failures = 0;
  } else if (attempt.failures++ == 0) {
    attempt.failing_since = attempt.began;
  }
  const bool lost = gives_up(attempt, how, now);
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[attempt.rank];
    peer.failure = fmt::format("no connection with {} port {} from {} at {} ({})", attempt.address,
                               attempt.port, host(), attempt.own, why);
    peer.lost |= lost;
  }
  if (lost) announce();
  attempt.done = lost;
  rest(attempt, attempt.purpose == Purpose::call ? std::chrono::nanoseconds(call_pause)
                                                 : std::chrono::nanoseconds(retry_pause));
}

// A rank also gives up a call that does not reach the other rank, because the other rank may not
// try to connect for a long time. So hosts must reach each other in both directions.
bool Rendezvous::gives_up(const Outgoing& attempt, Failure how, Clock::time_point now) const {
  if (attempt.failures < fewest_failures) return false;
  const auto failing = now - attempt.failing_since;
  switch (how) {
    case Failure::refused:
      return failing >= refused_limit;
    case Failure::unreachable:
      return failing >= std::min(limits_.cut, limits_.open);
    case Failure::rejected:
      return failing >= limits_.open;
    case Failure::silent:
      return false;
  }
  return false;
}

}  // namespace atoll_host_backend
