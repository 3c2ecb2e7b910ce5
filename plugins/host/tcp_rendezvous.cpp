#include "host/tcp_rendezvous.hpp"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <iterator>
#include <sstream>
#include <system_error>
#include <utility>

#include "collectives/tuning.hpp"
#include "sdk/backend.hpp"

namespace atoll_host_backend {
namespace {

using namespace std::chrono_literals;
using atoll_sdk::Error;

constexpr auto handshake_limit = 5s;
constexpr auto accept_pause = 50ms;  // pause after an accept that failed for lack of resources
constexpr int accepts_per_turn = 64;
constexpr std::size_t events_per_turn = 64;
// Maximum numbers of connections that have not proved their identity, for the origins stranger and
// member. At 10,000 connections per second from an address of the group, each is kept for 100 ms.
constexpr std::array<std::size_t, 2> most_unproven = {128, 1024};

// While an object exists, all signals are blocked on this thread. A thread that starts meanwhile
// inherits the mask, so the program's own threads handle all signals.
class BlockedSignals {
 public:
  BlockedSignals() noexcept {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

Fd new_event() {
  Fd result(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!result) throw atoll_sdk::system_error("cannot create an event descriptor", errno);
  return result;
}

void signal(const Fd& event) noexcept {
  const std::uint64_t one = 1;
  // A write fails only if the counter is full; the event is readable then, so that is no error.
  [[maybe_unused]] const ssize_t n = ::write(event.get(), &one, sizeof(one));
}

void clear(const Fd& event) noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = ::read(event.get(), &count, sizeof(count));
}

// Sends a handshake message. One call of send() suffices, because the message fits into the empty
// buffer of a new socket.
bool send_all(int socket, const void* data, std::size_t size) {
  return ::send(socket, data, size, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

// Makes close() drop the connection without the state TIME_WAIT, of which a flood would leave many.
void close_hard(int socket) noexcept {
  const linger now{1, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

// Minimum number of connections between two hosts on each rail.
constexpr int connections_wanted = 2;

std::vector<std::string> rails_of(const atoll_placement& place) {
  std::istringstream in(place.rail_addresses == nullptr ? "" : place.rail_addresses);
  std::vector<std::string> result{std::istream_iterator<std::string>(in), {}};
  if (result.empty()) result.emplace_back(place.address == nullptr ? "" : place.address);
  if (result.size() > most_rails) {
    throw atoll_sdk::Error(
        ATOLL_INVALID_ARGUMENT,
        fmt::format("world rank {} has {} rails; the host backend supports at most {}",
                    place.world_rank, result.size(), most_rails));
  }
  return result;
}

// If hosts have few ranks, each pair has more connections, so that two hosts have at least
// `connections_wanted`.
int streams_per_rail(const atoll_group& group, const atoll_collectives::Layout& layout) {
  if (const int asked = atoll_collectives::connections_of(group); asked > 0) return asked;
  return std::max(1, connections_wanted / layout.fewest_ranks());
}

}  // namespace

Network::Network(const atoll_group& group)
    : rank_(group.rank),
      layout_(atoll_collectives::layout_of(group)),
      per_rail_(streams_per_rail(group, layout_)) {
  for (int rank = 0; rank < group.nranks; ++rank) {
    rails_.push_back(rails_of(*group.placements[rank]));
  }
}

std::size_t Network::common_rails(int rank) const {
  return std::min(rails(rank_).size(), rails(rank).size());
}

int Network::streams(int rank) const { return per_rail_ * static_cast<int>(common_rails(rank)); }

std::size_t Network::rail(int rank, int stream) const {
  const int first = layout_.local_of(std::min(rank, rank_));
  return static_cast<std::size_t>(first + stream) % common_rails(rank);
}

Rendezvous::Rendezvous(Identity identity, Network network, Limits limits)
    : handshake_(std::move(identity)),
      network_(std::move(network)),
      limits_(limits),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(new_event()),
      news_(new_event()) {
  if (!epoll_) throw atoll_sdk::system_error("epoll_create1", errno);
  for (int rank = 0; rank < network_.size(); ++rank) {
    if (!network_.is_remote(rank)) continue;
    members_.insert(network_.rails(rank).begin(), network_.rails(rank).end());
  }
  watch(wake_.get(), EPOLLIN, waker_);
  for (const auto& address : network_.rails(network_.rank())) {
    Listener& listener = listeners_.emplace_back();
    listener.kind = Kind::listener;
    listener.socket = listen_at(address);
    ports_.push_back(port_of(listener.socket.get()));
    watch(listener.socket.get(), EPOLLIN, listener);
  }
  const BlockedSignals blocked;
  try {
    thread_ = std::jthread([this] { run(); });
  } catch (const std::system_error& error) {
    throw atoll_sdk::system_error(
        "cannot start a thread (see ulimit -u, and pids.max of the control group)",
        error.code().value());
  }
}

Rendezvous::~Rendezvous() {
  stopping_ = true;
  wake();
}

void Rendezvous::want(int rank, const std::vector<std::uint16_t>& ports) {
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[rank];
    if (peer.wanted) return;
    peer.wanted = true;
    requests_.push_back({rank, ports});
  }
  wake();
}

Streams Rendezvous::take(int rank) {
  const std::lock_guard lock(mutex_);
  if (!broken_.empty()) throw Error(ATOLL_IO, broken_);
  const auto found = peers_.find(rank);
  if (found == peers_.end()) return {};
  Peer& peer = found->second;
  if (peer.taken) return {};
  if (!is_complete(rank, peer)) {
    if (peer.lost) throw Error(ATOLL_PEER_LOST, peer.failure);
    return {};
  }
  Streams result;
  for (auto& [number, connection] : peer.streams) result.push_back(std::move(connection));
  peer.streams.clear();
  peer.taken = true;
  return result;
}

std::string Rendezvous::reason(int rank) {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(rank);
  if (found != peers_.end() && !found->second.failure.empty()) return found->second.failure;
  const auto rail = network_.rail(rank, 0);
  return rank > network_.rank()
             ? fmt::format("that rank did not connect to {}", network_.rails(network_.rank())[rail])
             : fmt::format("no connection with {} yet", network_.rails(rank)[rail]);
}

void Rendezvous::calm() const noexcept { clear(news_); }
void Rendezvous::wake() const noexcept { signal(wake_); }
void Rendezvous::announce() const noexcept { signal(news_); }

bool Rendezvous::is_complete(int rank, const Peer& peer) const {
  return static_cast<int>(peer.streams.size()) == network_.streams(rank);
}

bool Rendezvous::needs(int rank, int stream) {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(rank);
  if (found == peers_.end()) return true;
  return !found->second.taken && !found->second.streams.contains(stream);
}

void Rendezvous::establish(int rank, int stream, Fd socket, const std::string& host) {
  // Without this, the next event of the socket would refer to an entry that no longer exists.
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket.get(), nullptr) != 0) {
    throw atoll_sdk::system_error("epoll_ctl", errno);
  }
  tune(socket.get(), limits_.cut);
  std::string ends = fmt::format("{} ({}) and {} ({})", this->host(), own_end(socket.get()), host,
                                 other_end(socket.get()));
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[rank];
    if (peer.taken) return;
    peer.streams[stream] = {std::move(socket), std::move(ends)};
    if (!is_complete(rank, peer)) return;
    peer.failure.clear();
  }
  for (auto& attempt : outgoing_) {  // the other rank has connected, so calls to it are over
    if (attempt.rank != rank || attempt.purpose != Purpose::call) continue;
    attempt.socket.reset();
    attempt.done = true;
  }
  announce();
}

void Rendezvous::watch(int socket, std::uint32_t events, Watched& what) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &what;
  int failed = ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event);
  if (failed != 0 && errno == EEXIST) {
    failed = ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket, &event);
  }
  if (failed != 0) throw atoll_sdk::system_error("epoll_ctl", errno);
}

void Rendezvous::run() noexcept {
  try {
    while (!stopping_) turn();
  } catch (const std::exception&) {
    atoll_sdk::record_current_exception();
    {
      const std::lock_guard lock(mutex_);
      broken_ = fmt::format("the thread that connects with other hosts has failed: {}",
                            atoll_sdk::last_error());
    }
    announce();
  }
}

void Rendezvous::turn() {
  std::array<epoll_event, events_per_turn> events{};
  const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), time_to_wait());
  if (count < 0 && errno != EINTR)
    throw Error(
        ATOLL_IO,
        fmt::format("epoll_wait: {}: the program has closed a descriptor of atoll; close only "
                    "descriptors that you opened",
                    std::generic_category().message(errno)));
  std::vector<Request> requests;
  {
    const std::lock_guard lock(mutex_);
    requests.swap(requests_);
  }
  for (const auto& request : requests) plan(request);
  const auto now = Clock::now();
  const std::span ready(events.data(), static_cast<std::size_t>(std::max(count, 0)));
  // Listeners come last, because admit() may remove a connection whose event is in the list.
  std::ranges::stable_partition(ready, [](const epoll_event& event) {
    return static_cast<Watched*>(event.data.ptr)->kind != Kind::listener;
  });
  for (const auto& event : ready) {
    auto* what = static_cast<Watched*>(event.data.ptr);
    switch (what->kind) {
      case Kind::wake:
        clear(wake_);
        break;
      case Kind::incoming:
        serve(static_cast<Incoming&>(*what));
        break;
      case Kind::outgoing:
        advance(static_cast<Outgoing&>(*what), now);
        break;
      case Kind::listener:
        admit(static_cast<Listener&>(*what));
        break;
    }
  }
  expire(now);
}

// Drops incoming connections and continues attempts to connect whose deadline has passed.
void Rendezvous::expire(Clock::time_point now) {
  for (auto& queue : incoming_) {
    while (!queue.empty() && queue.front().deadline <= now) drop(queue.front());
  }
  for (auto& attempt : outgoing_) {
    if (!attempt.done && attempt.until <= now) advance(attempt, now);
  }
  outgoing_.remove_if([](const Outgoing& attempt) { return attempt.done; });
  if (accept_after_ != Clock::time_point{} && accept_after_ <= now) {
    accept_after_ = {};
    for (auto& listener : listeners_) watch(listener.socket.get(), EPOLLIN, listener);
  }
}

// Returns the time limit of epoll_wait() in milliseconds. epoll_wait() does not notice when the
// program closes the descriptors, but its next call does.
int Rendezvous::time_to_wait() const {
  constexpr std::chrono::milliseconds longest{1000};
  auto next = Clock::now() + longest;
  for (const auto& queue : incoming_) {
    if (!queue.empty()) next = std::min(next, queue.front().deadline);
  }
  for (const auto& attempt : outgoing_) next = std::min(next, attempt.until);
  if (accept_after_ != Clock::time_point{}) next = std::min(next, accept_after_);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::clamp<long>(left, 0, longest.count()));
}

void Rendezvous::admit(const Listener& listener) {
  for (int i = 0; i < accepts_per_turn; ++i) {
    Fd socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        pause_accepting();
      }
      if (errno == ECONNABORTED || errno == EINTR) continue;
      return;
    }
    const Origin origin = members_.contains(other_address(socket.get())) ? member : stranger;
    Queue& queue = incoming_[origin];
    if (queue.size() >= most_unproven[origin]) drop(queue.front());
    Incoming& peer = queue.emplace_back();
    peer.kind = Kind::incoming;
    peer.self = std::prev(queue.end());
    peer.socket = std::move(socket);
    peer.origin = origin;
    peer.deadline = Clock::now() + handshake_limit;
    watch(peer.socket.get(), EPOLLIN, peer);
  }
}

// Without descriptors or memory for another connection, accept() fails at once but the listener
// stays ready, so the thread would spin.
void Rendezvous::pause_accepting() {
  accept_after_ = Clock::now() + accept_pause;
  for (auto& listener : listeners_) watch(listener.socket.get(), 0, listener);
}

void Rendezvous::drop(Incoming& peer) {
  if (peer.socket) close_hard(peer.socket.get());
  if (peer.origin == proven) pending_.erase(peer.hello.message.body.nonce);
  incoming_[peer.origin].erase(peer.self);
}

void Rendezvous::serve(Incoming& peer) {
  if (!receive(peer)) drop(peer);
}

// Reads the rest of a message. Reads no byte beyond the message, because data follows the
// handshake.
bool Rendezvous::receive(Incoming& peer) {
  const auto rest = peer.origin == proven ? peer.confirmation.rest() : peer.hello.rest();
  const ssize_t n = ::recv(peer.socket.get(), rest.data(), rest.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n <= 0) return false;
  if (peer.origin == proven) {
    peer.confirmation.have += static_cast<std::size_t>(n);
    return !peer.confirmation.complete() || confirm(peer);
  }
  peer.hello.have += static_cast<std::size_t>(n);
  return !peer.hello.complete() || welcome(peer);
}

// Answers a complete hello.
bool Rendezvous::welcome(Incoming& peer) {
  const Signed<Hello>& hello = peer.hello.message;
  if (!handshake_.accepts(hello)) return false;
  const Hello& body = hello.body;
  if (body.from >= network_.size() || !network_.is_remote(body.from)) return false;
  if (body.purpose == static_cast<std::int32_t>(Purpose::call)) {
    if (body.from > network_.rank() || body.nports < network_.common_rails(body.from)) return false;
  } else if (body.from < network_.rank() || body.stream >= network_.streams(body.from) ||
             !needs(body.from, body.stream)) {
    return false;
  }
  // A hello that is pending already is a replay by someone who has recorded it.
  if (pending_.contains(body.nonce)) return false;
  peer.answer = handshake_.answer(body);
  if (!send_all(peer.socket.get(), &peer.answer, sizeof(peer.answer))) return false;
  pending_.insert(body.nonce);
  incoming_[proven].splice(incoming_[proven].end(), incoming_[peer.origin], peer.self);
  peer.origin = proven;
  peer.deadline = Clock::now() + handshake_limit;
  return true;
}

// Checks the last message of an incoming connection. If it is right, the connection becomes a
// stream, or this rank connects to the caller. Returns false, because the entry is no longer
// needed.
bool Rendezvous::confirm(Incoming& peer) {
  const Hello& hello = peer.hello.message.body;
  if (!handshake_.confirms(hello, peer.answer.body, peer.confirmation.message)) return false;
  if (hello.checksum != handshake_.identity().checksum) return false;
  if (hello.purpose == static_cast<std::int32_t>(Purpose::call)) {
    want(hello.from, {hello.ports.begin(), hello.ports.begin() + hello.nports});
  } else if (needs(hello.from, hello.stream)) {
    establish(hello.from, hello.stream, std::move(peer.socket), text_of(hello.host));
  }
  return false;
}

}  // namespace atoll_host_backend
