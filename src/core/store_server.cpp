#include "core/store_server.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <utility>

#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/store_connection.hpp"
#include "core/thread.hpp"

namespace atoll_v1::atoll::store {
namespace {

using net::Clock;
using std::chrono::milliseconds;

// Time for the reason of a failure to reach all ranks before the store stops.
constexpr milliseconds failed_patience{1000};
// Work of one turn of the loop: events, and connections accepted from each listener.
constexpr std::size_t events_per_turn = 256;
constexpr int accepts_per_turn = 64;
// Pause after accept() has found no free descriptor.
constexpr milliseconds accept_pause{100};
// Descriptors of the process that are not connections of the store.
constexpr std::size_t other_descriptors = 128;
constexpr std::size_t fewest_strangers = 64;
// Refused ranks that the error about absent ranks names.
constexpr std::size_t most_refusals = 8;
// Longest time that the store waits for the answers of ranks to an observer.
constexpr milliseconds max_observation{10'000};
// epoll reports this number for the descriptor that finish() writes to, then the number of a
// listener plus one, then the numbers of connections.
constexpr std::uint64_t wake_id = 0;

bool observes(const std::pair<const std::uint64_t, Connection>& member) {
  return member.second.is_observer();
}

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

Table::Body shared(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

}  // namespace

Server::Server(ServerOptions options)
    : options_(std::move(options)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      rendezvous_deadline_(Clock::now() + options_.rendezvous_timeout),
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
  } catch (const std::bad_alloc&) {
    log::error("the store ends: out of memory");
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
  return failure_ ? std::ranges::all_of(members_, observes)
                  : !roster_.any(Peer::State::absent) && !roster_.any(Peer::State::present);
}

Clock::time_point Server::next_deadline() const {
  Clock::time_point result = Clock::now() + std::chrono::hours(1);
  result = std::min({result, finish_deadline(), table_.next_deadline()});
  if (!failure_ && roster_.any(Peer::State::absent))
    result = std::min(result, rendezvous_deadline_);
  if (!strangers_.empty())
    result = std::min(result, strangers_.begin()->second.opened() + handshake_timeout);
  if (accepts_again_) result = std::min(result, *accepts_again_);
  return result;
}

void Server::expire(Clock::time_point now) {
  while (!strangers_.empty() && strangers_.begin()->second.opened() + handshake_timeout <= now) {
    strangers_.erase(strangers_.begin());
  }
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
  }
}

void Server::turn(Clock::time_point until) {
  std::array<epoll_event, events_per_turn> events;
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  const int ready = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000)));
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
    if (!make_room()) return pause_accepting();
  }
}

void Server::admit(net::Fd socket) {
  // On a local socket the kernel says who connects: no other user comes further.
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

// The connection may have been closed by an earlier event of this turn.
void Server::serve(std::uint64_t id, std::uint32_t events) {
  if (const auto stranger = strangers_.find(id); stranger != strangers_.end()) {
    serve(stranger->second, events);
    if (!stranger->second.is_open()) {
      strangers_.erase(stranger);
    } else if (stranger->second.is_proven()) {
      members_.insert(strangers_.extract(stranger));
    }
    return;
  }
  const auto member = members_.find(id);
  if (member == members_.end()) return;
  serve(member->second, events);
  if (!member->second.is_open()) members_.erase(member);
}

void Server::serve(Connection& connection, std::uint32_t events) {
  bool open = true;
  try {
    if ((events & EPOLLOUT) != 0) open = connection.flush();
    if (open && (events & ~std::uint32_t{EPOLLOUT}) != 0) open = connection.receive();
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
  roster_.set(connection.rank(), Peer::State::lost);
  declare(ErrorCode::peer_lost, fmt::format("{} was lost", roster_.named(connection.rank())));
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
  listen(0);
  const Clock::time_point deadline = Clock::now() + failed_patience / 2;
  const auto waits = [](const auto& item) { return item.second.has_output() && !observes(item); };
  while (Clock::now() < deadline && std::ranges::any_of(members_, waits)) turn(deadline);
}

void Server::handle(Connection& connection, const Frame& frame) {
  const Kind kind{frame.kind};
  switch (connection.stage()) {
    case Connection::Stage::silent:
      if (kind == Kind::hello) return handle_hello(connection, frame);
      break;
    case Connection::Stage::challenged:
      if (kind == Kind::proof) return handle_proof(connection, frame);
      break;
    case Connection::Stage::proven:
      if (kind == Kind::join) return handle_join(connection, frame);
      if (kind == Kind::observe) return admit_observer(connection, frame);
      break;
    case Connection::Stage::observing:
      if (kind == Kind::observe) return handle_observe(connection, frame);
      break;
    case Connection::Stage::joined:
      const bool is_request = (kind >= Kind::put && kind <= Kind::reply) || kind == Kind::get_all ||
                              kind == Kind::release;
      if (is_request) return handle_request(connection, kind, frame);
  }
  throw make_error(ErrorCode::bad_data,
                   "a store message of kind {} is not allowed at this point of the connection",
                   frame.kind);
}

void Server::handle_hello(Connection& connection, const Frame& frame) {
  connection.challenge(frame.body, options_.token);
  if (!is_compatible(connection.greeting())) note_version(connection);
}

// A peer of another version reads from the challenge what runs here, and from the proof that it can
// believe the challenge.
void Server::handle_proof(Connection& connection, const Frame& frame) {
  if (!connection.prove(frame.body)) {
    note_token(connection);
    throw Error(ErrorCode::bad_data, "wrong token");
  }
  if (!is_compatible(connection.greeting())) close(connection);
}

void Server::note_version(const Connection& connection) {
  note(other_version_, fmt::format("{} runs {}, rank 0 runs {}: use one version on all hosts",
                                   connection.peer_name(), described(connection.greeting()),
                                   described(own_greeting())));
}

// A process without the token has not said who it is.
void Server::note_token(const Connection& connection) {
  note(other_token_, fmt::format("a process at {} has another token: is ATOLL_TOKEN equal on all "
                                 "ranks?",
                                 connection.peer_name()));
}

// Keeps and logs the first text for this place. Anybody can be the reason, so later ones are
// dropped.
void Server::note(std::string& place, std::string text) {
  if (!place.empty()) return;
  log::warn("the store refuses a process: {}", text);
  place = std::move(text);
}

std::string Server::notes() const {
  std::string result;
  for (const std::string& refusal : refusals_) result += "; the store refused " + refusal;
  for (const std::string* text : {&other_version_, &other_token_}) {
    if (!text->empty()) result += "; " + *text;
  }
  if (has_warned_of_descriptors_) {
    result += "; rank 0 had no descriptor left for a connection: raise the hard limit (ulimit -Hn)";
  }
  return result;
}

void Server::handle_join(Connection& connection, const Frame& frame) {
  const Join join = decode_join(frame.body);
  if (join.size != roster_.size() || join.rank < 0 || join.rank >= roster_.size()) {
    return refuse(
        connection,
        fmt::format(
            "rank {} of {} (host {}, pid {}): rank 0 started a job of {} ranks; "
            "start this process with size {} (ATOLL_SIZE) and a rank from 0 to {} (ATOLL_RANK)",
            join.rank, join.size, join.host, join.pid, roster_.size(), roster_.size(),
            roster_.size() - 1));
  }
  const Peer::State state = roster_[join.rank].state;
  // A rank that has left this job may already join the next one at the same address. Without an
  // answer it tries again, until the next store listens.
  if (state == Peer::State::departed) return close(connection);
  if (state != Peer::State::absent) {
    return refuse(connection,
                  fmt::format("rank {} (host {}, pid {}): {} has already joined the "
                              "job; give every process another rank (ATOLL_RANK)",
                              join.rank, join.host, join.pid, roster_.named(join.rank)));
  }
  roster_.join(join.rank, join.host, join.pid);
  connection.join(join.rank, options_.cut_timeout);
  connection.send(Kind::welcome, frame.request, std::nullopt, shared(options_.secret));
  if (failure_) notify(connection);
}

void Server::admit_observer(Connection& connection, const Frame& frame) {
  if (static_cast<std::size_t>(std::ranges::count_if(members_, observes)) >= max_observers) {
    connection.send(
        Kind::refusal, frame.request, ErrorCode::unsupported,
        shared(fmt::format("the job already has {} observers; end one of them", max_observers)));
    return close(connection);
  }
  connection.observe();
  connection.send(Kind::welcome, frame.request, std::nullopt, shared(""));
  if (failure_) notify(connection);
}

// Asks the ranks on behalf of an observer. An observer may have one question at a time, so that it
// cannot queue work or unread answers in the store.
void Server::handle_observe(Connection& connection, const Frame& frame) {
  if (failure_) return;
  Unpacker in(frame.body);
  const auto timeout = std::min<milliseconds>(milliseconds(in.number()), max_observation);
  in.finish();
  require(!connection.has_output() && !table_.asks(connection), ErrorCode::bad_data,
          "an observer asked before it had read the answer to its last question");
  ask_all({&connection, frame.request, Clock::now() + timeout, timeout, true},
          std::string(observer_question));
}

void Server::refuse(Connection& connection, const std::string& why) {
  log::warn("the store refuses {}", why);
  if (refusals_.size() < most_refusals && std::ranges::find(refusals_, why) == refusals_.end())
    refusals_.push_back(why);
  connection.send(Kind::refusal, 0, ErrorCode::mismatch, shared(why));
  close(connection);
}

void Server::handle_request(Connection& connection, Kind kind, const Frame& frame) {
  if (kind == Kind::farewell) return depart(connection, frame.request);
  // After a failure, requests need no answer: the failure message has been sent to every rank.
  if (failure_) return;
  Unpacker in(frame.body);
  if (kind == Kind::fail) {
    return declare(ErrorCode::aborted, fmt::format("{}: {}", roster_.named(connection.rank()),
                                                   in.text(max_request_bytes)));
  }
  const milliseconds timeout(in.number());
  const Waiter waiter{&connection, frame.request, Clock::now() + timeout, timeout};
  if (kind == Kind::get_all) return handle_get_all(waiter, in);
  std::string key(in.text(max_key_bytes));
  std::string value(in.text(max_value_bytes));
  if (kind == Kind::exchange) {
    const std::vector<Run> runs = unpack_runs(in, roster_.size());
    in.finish();
    return table_.exchange(waiter, connection.rank(), key, std::move(value), runs);
  }
  const std::uint32_t ranks = kind == Kind::release ? in.number() : 0;
  in.finish();
  if (kind == Kind::get) return table_.get(waiter, std::move(key));
  if (kind == Kind::ask) return ask_all(waiter, std::move(value));
  if (kind == Kind::reply) {
    return table_.answer(frame.request, connection.rank(), std::move(value));
  }
  if (kind == Kind::release) return table_.release(key, ranks);
  table_.put(key, std::move(value));
  reply(waiter, std::nullopt, shared(""));
}

void Server::handle_get_all(const Waiter& waiter, Unpacker& in) {
  const std::uint32_t count = in.number();
  require(count <= std::min(max_keys, in.left() / 4), ErrorCode::bad_data,
          "store message: {} keys do not fit into it", count);
  std::vector<std::string> keys;
  keys.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) keys.emplace_back(in.text(max_key_bytes));
  in.finish();
  table_.get_all(waiter, std::move(keys));
}

void Server::ask_all(const Waiter& waiter, std::string question) {
  const std::uint64_t number = table_.ask(waiter);
  const Table::Body body = shared(std::move(question));
  for (auto& [id, connection] : members_) {
    if (connection.is_open() && connection.rank() >= 0)
      connection.send(Kind::question, number, std::nullopt, body);
  }
}

void Server::depart(Connection& connection, std::uint64_t request) {
  if (roster_[connection.rank()].state != Peer::State::present) return;
  roster_.set(connection.rank(), Peer::State::departed);
  table_.depart(connection.rank());
  reply({&connection, request, {}, {}}, std::nullopt, shared(""));
}

void Server::reply(const Waiter& waiter, std::optional<ErrorCode> problem,
                   const Table::Body& body) {
  waiter.connection->send(Kind::answer, waiter.request, problem, body);
}

void Server::declare(ErrorCode code, const std::string& reason) {
  if (failure_) return;
  failure_.emplace(code, reason);
  failed_at_ = Clock::now();
  table_.forget_all();
  for (auto& [id, connection] : members_) {
    const bool hears = connection.rank() >= 0 || connection.is_observer();
    if (connection.is_open() && hears) notify(connection);
  }
}

void Server::notify(Connection& connection) {
  connection.send(Kind::failure, 0, failure_->code(), shared(failure_->what()));
}

}  // namespace atoll_v1::atoll::store
