#include "store/server.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <limits>
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

// Time limit for sending the reason of a failure to all ranks before the store stops.
constexpr milliseconds failed_patience{1000};
// Limits for one turn of the loop: number of events, and of accepted connections per listener.
constexpr std::size_t events_per_turn = 256;
constexpr int accepts_per_turn = 64;
// The longest wait of one turn of the loop, in milliseconds. If the program closes the epoll
// descriptor, a waiting epoll_wait() does not notice it, but the next call fails.
constexpr std::int64_t longest_turn = 1'000;
// Pause before the next accept() after one has found no free descriptor.
constexpr milliseconds accept_pause{100};
// Reserve for descriptors of the process that are not connections of the store.
constexpr std::size_t other_descriptors = 128;
constexpr std::size_t fewest_strangers = 64;
// Numbers that epoll reports: wake_id for the descriptor that finish() writes to, then the index of
// a listener plus one, then the ids of connections.
constexpr std::uint64_t wake_id = 0;
// Number of requests for a sign of life within ServerOptions::heartbeat, and the poll number that
// these requests carry, which no poll has.
constexpr int beats_per_limit = 4;
constexpr std::uint64_t no_poll = std::numeric_limits<std::uint64_t>::max();

// Returns how many connections may be open that have not proved that they know the token. The other
// descriptors are for ranks: one each, or two in a job with epochs, in which a rank that asks for
// the next epoch has two connections for a moment.
std::size_t stranger_limit(int size, bool has_epochs, bool raise_limit, std::size_t wanted) {
  const std::size_t descriptors = net::descriptor_limit(raise_limit);
  const std::size_t needed =
      static_cast<std::size_t>(size) * (has_epochs ? 2 : 1) + other_descriptors;
  if (descriptors < needed + fewest_strangers) {
    log::warn(
        "the store's process may open {} file descriptors, but {} ranks need about {}: raise the "
        "limit (ulimit -n)",
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
      next_beat_(options_.loss_fails_job || options_.heartbeat.count() == 0
                     ? Clock::time_point::max()
                     : begin_),
      stranger_limit_(stranger_limit(options_.size, !options_.loss_fails_job,
                                     options_.raises_descriptor_limit, options_.strangers)),
      next_id_(options_.listeners.size() + 1) {
  epochs_.emplace_back(0u, options_.size, &Server::reply);
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.u64 = wake_id;
  if (!epoll_ || !wake_ || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &wanted) != 0) {
    throw Error(ErrorCode::io, "no file descriptor for the store of the job: raise ulimit -n");
  }
  for (std::size_t i = 0; i < options_.listeners.size(); ++i) {
    wanted.data.u64 = i + 1;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, options_.listeners[i].get(), &wanted) != 0) {
      throw Error(ErrorCode::io, "the store of the job cannot watch its listening socket");
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
      for (Epoch& epoch : epochs_)
        declare(epoch, ErrorCode::out_of_memory, "rank 0: out of memory in the store");
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
  const bool ends_soon = newest().failure && !a_rank_waits();
  return ends_soon ? std::min(deadline, newest().failed_at + failed_patience) : deadline;
}

bool Server::done(Clock::time_point now) const {
  if (finish_deadline_ == 0) return false;
  if (now >= finish_deadline()) return true;
  return !a_rank_waits() &&
         std::ranges::all_of(epochs_, [&](const Epoch& epoch) { return is_over(epoch, now); });
}

bool Server::is_over(const Epoch& epoch, Clock::time_point now) const {
  const bool is_absent = epoch.number == newest().number && epoch.roster.any(Peer::State::absent);
  // Absent ranks learn the reason when they join, so a failed epoch waits for them, up to a limit.
  if (epoch.failure) {
    return (!is_absent || now >= rendezvous_deadline_) &&
           std::ranges::none_of(
               members_, [&](const auto& member) { return member.second.epoch() == &epoch; });
  }
  return !is_absent && !epoch.roster.any(Peer::State::present);
}

// Only the first epoch has ranks that may still join it.
bool Server::waits_for_absent() const {
  return !newest().failure && newest().roster.any(Peer::State::absent);
}

Clock::time_point Server::next_deadline() const {
  Clock::time_point result = Clock::now() + std::chrono::hours(1);
  result = std::min({result, finish_deadline(), next_beat_});
  for (const Epoch& epoch : epochs_) result = std::min(result, epoch.table.next_deadline());
  if (epoch_deadline_) result = std::min(result, *epoch_deadline_);
  if (waits_for_absent()) result = std::min({result, rendezvous_deadline_, next_reminder_});
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
  for (Epoch& epoch : epochs_) epoch.table.expire(now);
  if (now >= next_beat_) beat(now);
  if (epoch_deadline_ && now >= *epoch_deadline_) begin_epoch();
  if (accepts_again_ && now >= *accepts_again_) {
    accepts_again_.reset();
    listen(EPOLLIN);
  }
  if (!waits_for_absent()) return;
  if (now >= rendezvous_deadline_) {
    declare(newest(), ErrorCode::timeout,
            fmt::format(
                "{} did not join the job within {} s{}", newest().roster.named(Peer::State::absent),
                std::chrono::duration<double>(options_.rendezvous_timeout).count(), notes()));
  } else if (now >= next_reminder_) {
    remind(now);
  }
}

// Asks all ranks for a sign of life. The thread of a rank that reads its connection answers, so
// only a stopped process is silent. If this process itself was stopped, no rank counts as silent.
void Server::beat(Clock::time_point now) {
  const milliseconds period = options_.heartbeat / beats_per_limit;
  const bool is_late = now > next_beat_ + period;
  next_beat_ = now + period;
  const Table::Body nothing = shared(Packer().text("").text("").take());
  std::vector<std::uint64_t> silent;
  for (auto& [id, connection] : members_) {
    if (connection.epoch() == nullptr || !connection.is_open()) continue;
    if (is_late) connection.hear();
    if (connection.heard() + options_.heartbeat < now) {
      silent.push_back(id);
    } else {
      connection.send(Kind::question, no_poll, std::nullopt, nothing);
    }
  }
  for (const std::uint64_t id : silent) {
    Connection& connection = members_.at(id);
    const std::string why = fmt::format("{} has given no sign of life for {} s: it counts as lost",
                                        connection.epoch()->roster.named(connection.rank()),
                                        std::chrono::duration<double>(options_.heartbeat).count());
    log::warn("{}", why);
    notify(connection, Error(ErrorCode::peer_lost, why));
    close(connection);
    members_.erase(id);
  }
}

// Logs which ranks are absent. A rank that ends before it joins would only show at the timeout.
void Server::remind(Clock::time_point now) {
  const auto seconds = [](Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  };
  log::warn("rank 0 has waited {:.1f} s of {} s for {} to join the job{}", seconds(now - begin_),
            seconds(options_.rendezvous_timeout), newest().roster.named(Peer::State::absent),
            notes());
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
        "the store's process has no file descriptor left for the connection of another rank: raise "
        "the limit (ulimit -n)");
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
      log::error("{}: {}", connection.epoch()->roster.named(connection.rank()), error.what());
    open = false;
  }
  if (!open) close(connection);
}

// The caller of serve() removes the closed connection.
void Server::close(Connection& connection) {
  if (!connection.is_open()) return;
  connection.close();
  if (connection.is_observer())
    for (Epoch& epoch : epochs_) epoch.table.forget(connection);
  if (connection.is_waiting()) withdraw(connection);
  if (connection.epoch() == nullptr) return;
  Epoch& epoch = *connection.epoch();
  const int rank = connection.rank();
  epoch.table.forget(connection);
  if (epoch.roster[rank].state != Peer::State::present) return;
  if (options_.loss_fails_job) {
    epoch.roster.set(rank, Peer::State::lost);
    return declare(epoch, ErrorCode::peer_lost,
                   fmt::format("{} was lost", epoch.roster.named(rank)));
  }
  go(epoch, rank, Peer::State::lost, true);
}

// Records that a rank has left its epoch. If `told`, informs the other ranks.
void Server::go(Epoch& epoch, int rank, Peer::State state, bool told) {
  epoch.roster.set(rank, state);
  epoch.table.depart(rank);
  if (told && !epoch.failure) {
    const ErrorCode code =
        state == Peer::State::departed ? ErrorCode::aborted : ErrorCode::peer_lost;
    tell_all(epoch, Kind::departure, static_cast<std::uint64_t>(rank), code,
             shared(fmt::format("{} {}", epoch.roster.named(rank), epoch.roster[rank].went())));
  }
  if (a_rank_waits() && !newest().roster.any(Peer::State::present)) begin_epoch();
}

// Tells connected ranks why the store ends; otherwise they would report a crash of rank 0.
void Server::end() {
  for (Epoch& epoch : epochs_) {
    if (!epoch.roster.any(Peer::State::present)) continue;
    declare(epoch, ErrorCode::peer_lost,
            fmt::format("{} ended before {}", options_.server,
                        epoch.roster.named(Peer::State::present)));
  }
  turn_away(ErrorCode::aborted, "the job has ended", true);
  for (auto& [id, connection] : members_) {
    if (connection.is_observer() && !newest().failure)
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
