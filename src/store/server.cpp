#include "store/server.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <new>
#include <system_error>
#include <utility>

#include "core/errors.hpp"
#include "core/limits.hpp"
#include "core/log.hpp"
#include "store/connection.hpp"

namespace atoll_v1::atoll::store {
namespace {

using net::Clock;
using std::chrono::milliseconds;

// Time for the reason of a failure to reach all ranks before the store stops.
constexpr milliseconds failed_patience{1000};
// The most that one turn of the loop handles: events, and connections accepted from each listener.
constexpr std::size_t events_per_turn = 256;
constexpr int accepts_per_turn = 64;
// The longest wait of one turn of the loop, in milliseconds. If the program closes the epoll
// descriptor, a waiting epoll_wait() does not notice it, but the next call fails.
constexpr std::int64_t longest_turn = 1'000;
// Pause after accept() has found no free descriptor.
constexpr milliseconds accept_pause{100};
// Descriptors of the process that are not connections of the store.
constexpr std::size_t other_descriptors = 128;
constexpr std::size_t fewest_strangers = 64;
// epoll reports this number for the descriptor that finish() writes to, then the number of a
// listener plus one, then the numbers of connections.
constexpr std::uint64_t wake_id = 0;

std::size_t stranger_limit(int size, std::size_t wanted) {
  const std::size_t descriptors = net::raise_descriptor_limit();
  const std::size_t needed = static_cast<std::size_t>(size) + other_descriptors;
  if (descriptors < needed + fewest_strangers) {
    log::warn(
        "rank 0 may open {} descriptors, but {} ranks need about {}: raise the hard limit "
        "(ulimit -Hn)",
        descriptors, size, needed + fewest_strangers);
    return fewest_strangers;
  }
  return std::min(wanted, descriptors - needed);
}

}  // namespace

Server::Server(ServerOptions options)
    : options_(std::move(options)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      rendezvous_deadline_(begin_ + options_.rendezvous_timeout),
      next_reminder_(begin_ + options_.first_reminder),
      roster_(options_.size),
      table_(roster_, &Server::reply),
      stranger_limit_(stranger_limit(options_.size, options_.strangers)),
      next_id_(options_.listeners.size() + 1) {
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.u64 = wake_id;
  if (!epoll_ || !wake_ || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &wanted) != 0) {
    throw Error(ErrorCode::io, "no file descriptor for the store of rank 0: raise ulimit -n");
  }
  for (std::size_t i = 0; i < options_.listeners.size(); ++i) {
    wanted.data.u64 = i + 1;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, options_.listeners[i].get(), &wanted) != 0) {
      throw Error(ErrorCode::io, "the store of rank 0 cannot watch its listening socket");
    }
  }
  thread_ = start_thread([this] { run(); });
}

Server::~Server() { finish(failed_patience); }

// If memory runs out, the job fails. The store needs little memory to report a failure. If even
// this is not available, it closes all connections, so that the ranks notice the end.
void Server::run() noexcept {
  try {
    try {
      run_until_done();
    } catch (const std::bad_alloc&) {
      declare(ErrorCode::out_of_memory, "rank 0: out of memory in the store");
      run_until_done();
    }
  } catch (const std::exception& problem) {
    log::error("the store ends: {}", text_of(problem));
    joining_.clear();
    for (auto& [id, connection] : members_) connection.close();
  }
}

void Server::run_until_done() {
  for (;;) {
    const Clock::time_point now = Clock::now();
    expire(now);
    if (done(now)) break;
    turn(next_deadline());
  }
  end();
}

void Server::finish(milliseconds patience) {
  if (!thread_.joinable()) return;
  finish_deadline_ = (Clock::now() + patience).time_since_epoch().count();
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

Clock::time_point Server::finish_deadline() const {
  const Clock::rep ticks = finish_deadline_;
  if (ticks == 0) return Clock::time_point::max();
  const Clock::time_point deadline{Clock::duration(ticks)};
  return failure_ ? std::min(deadline, failed_at_ + failed_patience) : deadline;
}

bool Server::done(Clock::time_point now) const {
  if (finish_deadline_ == 0) return false;
  if (now >= finish_deadline()) return true;
  const bool is_absent = roster_.any(Peer::State::absent);
  // Ranks that have not joined yet learn the reason when they join.
  if (failure_)
    return observers() == members_.size() && (!is_absent || now >= rendezvous_deadline_);
  return !is_absent && !roster_.any(Peer::State::present);
}

Clock::time_point Server::next_deadline() const {
  Clock::time_point result = Clock::now() + std::chrono::hours(1);
  result = std::min({result, finish_deadline(), table_.next_deadline()});
  if (!failure_ && roster_.any(Peer::State::absent))
    result = std::min({result, rendezvous_deadline_, next_reminder_});
  if (!strangers_.empty())
    result = std::min(result, strangers_.begin()->second.opened() + handshake_timeout);
  if (!joining_.empty())
    result = std::min(result, joining_.begin()->second.opened() + options_.rendezvous_timeout);
  if (accepts_again_) result = std::min(result, *accepts_again_);
  return result;
}

void Server::expire(Clock::time_point now) {
  const auto close_older = [now](Connections& connections, milliseconds age) {
    while (!connections.empty() && connections.begin()->second.opened() + age <= now)
      connections.erase(connections.begin());
  };
  close_older(strangers_, handshake_timeout);
  close_older(joining_, options_.rendezvous_timeout);
  table_.expire(now);
  if (accepts_again_ && now >= *accepts_again_) {
    accepts_again_.reset();
    listen(EPOLLIN);
  }
  if (!failure_ && now >= rendezvous_deadline_ && roster_.any(Peer::State::absent)) {
    declare(
        ErrorCode::timeout,
        fmt::format("{} did not join the job within {} s{}", roster_.named(Peer::State::absent),
                    std::chrono::duration<double>(options_.rendezvous_timeout).count(), notes()));
  } else if (!failure_ && now >= next_reminder_ && roster_.any(Peer::State::absent)) {
    remind(now);
  }
}

// Without reminders, a rank that ends before it joins is noticed only at the timeout.
void Server::remind(Clock::time_point now) {
  const auto seconds = [](Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  };
  log::warn("rank 0 has waited {:.1f} s of {} s for {} to join the job{}", seconds(now - begin_),
            seconds(options_.rendezvous_timeout), roster_.named(Peer::State::absent), notes());
  next_reminder_ = now + (now - begin_);
}

void Server::turn(Clock::time_point until) {
  std::array<epoll_event, events_per_turn> events;
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  const int ready = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 static_cast<int>(std::clamp<std::int64_t>(left, 0, longest_turn)));
  require(ready >= 0 || errno == EINTR, ErrorCode::io,
          "epoll_wait: {}: the program has closed a descriptor of atoll; close only descriptors "
          "that you opened",
          std::generic_category().message(errno));
  for (int i = 0; i < ready; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    const std::uint64_t id = event.data.u64;
    if (id == wake_id) {
      std::uint64_t ignored = 0;
      [[maybe_unused]] const ssize_t count = ::read(wake_.get(), &ignored, sizeof ignored);
    } else if (id <= options_.listeners.size()) {
      accept_some(options_.listeners[id - 1]);
    } else {
      serve(id, event.events);
    }
  }
}

void Server::accept_some(const net::Fd& listener) {
  for (int i = 0; i < accepts_per_turn; ++i) {
    net::Fd socket = net::accept_from(listener.get());
    if (socket) {
      admit(std::move(socket));
      continue;
    }
    const bool has_no_descriptor = errno == EMFILE || errno == ENFILE || errno == ENOBUFS;
    if (!has_no_descriptor) return;
    lacked_descriptors_ = true;
    if (!make_room()) return pause_accepting();
  }
}

void Server::admit(net::Fd socket) {
  // On a local socket the kernel names the user of the peer. Other users are refused.
  const bool is_local = !options_.secret.empty();
  if (is_local && !net::peer_has_own_user(socket.get())) return;
  if (strangers_.size() >= stranger_limit_) make_room();
  const std::uint64_t id = next_id_++;
  const auto [place, is_new] = strangers_.try_emplace(id, std::move(socket), epoll_.get(), id);
  if (!place->second.is_open()) strangers_.erase(place);
}

// Closes the oldest connection without a proof; returns false if there is none.
bool Server::make_room() {
  if (strangers_.empty()) return false;
  strangers_.erase(strangers_.begin());
  return true;
}

void Server::listen(std::uint32_t events) {
  for (std::size_t i = 0; i < options_.listeners.size(); ++i) {
    epoll_event wanted{};
    wanted.events = events;
    wanted.data.u64 = i + 1;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, options_.listeners[i].get(), &wanted);
  }
}

void Server::pause_accepting() {
  if (!has_warned_of_descriptors_) {
    log::warn(
        "rank 0 has no descriptor left for the connection of another rank: raise the hard "
        "limit (ulimit -Hn)");
  }
  has_warned_of_descriptors_ = true;
  accepts_again_ = Clock::now() + accept_pause;
  listen(0);
}

void Server::serve(std::uint64_t id, std::uint32_t events) {
  const auto all = {&strangers_, &joining_, &members_};
  const auto place = std::ranges::find_if(all, [id](const auto* one) { return one->contains(id); });
  if (place == all.end()) return;  // an earlier event of this turn has closed the connection
  Connection& connection = (*place)->at(id);
  serve(connection, events);
  if (connection.is_open()) return;
  for (Connections* const connections : all) connections->erase(id);
}

std::size_t Server::observers() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      members_, [](const auto& member) { return member.second.is_observer(); }));
}

void Server::serve(Connection& connection, std::uint32_t events) {
  bool open = true;
  try {
    if ((events & EPOLLOUT) != 0) connection.flush();
    if ((events & ~std::uint32_t{EPOLLOUT}) != 0) open = connection.receive();
    Frame frame;
    while (connection.is_open() && connection.next(frame)) handle(connection, frame);
  } catch (const Error& error) {
    if (connection.rank() >= 0)
      log::error("{}: {}", roster_.named(connection.rank()), error.what());
    open = false;
  }
  if (!open) close(connection);
}

// The caller of serve() removes the closed connection.
void Server::close(Connection& connection) {
  if (!connection.is_open()) return;
  connection.close();
  if (connection.rank() >= 0 || connection.is_observer()) table_.forget(connection);
  if (connection.rank() < 0) return;
  if (roster_[connection.rank()].state != Peer::State::present) return;
  const int rank = connection.rank();
  roster_.set(rank, Peer::State::lost);
  if (options_.loss_fails_job)
    return declare(ErrorCode::peer_lost, fmt::format("{} was lost", roster_.named(rank)));
  table_.depart(rank);
  if (!failure_) tell_departure(rank);
}

// Tells connected ranks why the store ends; otherwise they would report a crash of rank 0.
void Server::end() {
  if (roster_.any(Peer::State::present)) {
    declare(ErrorCode::peer_lost, fmt::format("rank 0, which serves the store, ended before {}",
                                              roster_.named(Peer::State::present)));
  }
  for (auto& [id, connection] : members_) {
    if (connection.is_observer() && !failure_)
      connection.send(Kind::ended, 0, std::nullopt, shared(""));
  }
  strangers_.clear();
  joining_.clear();
  listen(0);
  const Clock::time_point deadline = Clock::now() + failed_patience / 2;
  const auto waits = [](const auto& item) {
    return item.second.has_output() && !item.second.is_observer();
  };
  while (Clock::now() < deadline && std::ranges::any_of(members_, waits)) turn(deadline);
}

}  // namespace atoll_v1::atoll::store
