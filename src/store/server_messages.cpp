// The part of the server that reads messages: the admission of ranks and observers, requests, and
// failures.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "core/errors.hpp"
#include "core/log.hpp"
#include "store/connection.hpp"
#include "store/server.hpp"

namespace atoll_v1::atoll::store {
namespace {

using net::Clock;
using std::chrono::milliseconds;

// Maximum number of refused ranks that the error about absent ranks names.
constexpr std::size_t most_refusals = 8;
// Longest time that the store waits for the answers of ranks to an observer.
constexpr milliseconds max_observation{10'000};

}  // namespace

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
      if (kind == Kind::regroup) return handle_regroup(connection, frame);
      break;
    case Connection::Stage::waiting:
      break;
    case Connection::Stage::observing:
      if (kind == Kind::observe) return handle_observe(connection, frame);
      break;
    case Connection::Stage::joined:
      const bool is_request = (kind >= Kind::put && kind <= Kind::reply) || kind == Kind::cancel ||
                              kind == Kind::release || kind == Kind::announce;
      if (is_request) return handle_request(connection, kind, frame);
  }
  throw make_error(ErrorCode::bad_data,
                   "a store message of kind {} is not allowed at this point of the connection",
                   frame.kind);
}

void Server::handle_hello(Connection& connection, const Frame& frame) {
  connection.challenge(frame.body, options_.token);
  const Greeting& peer = connection.greeting();
  if (is_compatible(peer)) return;
  note(other_version_,
       fmt::format("{} runs {}, rank 0 runs {}: use one version on all hosts",
                   connection.peer_name(), described(peer), described(own_greeting())));
}

// The challenge tells a peer of another version which version runs on rank 0, and the proof tells
// it that the challenge is genuine.
void Server::handle_proof(Connection& connection, const Frame& frame) {
  if (!connection.prove(frame.body)) {
    // A process without the token has not said which rank it is, so the text has only its address.
    note(other_token_,
         fmt::format("a process at {} has another token: is ATOLL_TOKEN equal on all ranks?",
                     connection.peer_name()));
    throw Error(ErrorCode::bad_data, "wrong token");
  }
  joining_.insert(strangers_.extract(connection.id()));
  if (!is_compatible(connection.greeting())) close(connection);
}

// Logs the first text for `place`, and keeps it there. Anybody can cause such texts, so later ones
// are dropped.
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
  return result + lack_of_descriptors();
}

std::string Server::lack_of_descriptors() const {
  if (!lacked_descriptors_) return "";
  return "; the store's process had no file descriptor left for a connection: raise the limit "
         "(ulimit -n)";
}

void Server::handle_join(Connection& connection, const Frame& frame) {
  const Join join = decode_join(frame.body);
  Epoch& epoch = newest();
  Roster& roster = epoch.roster;
  const bool had_left = join.rank >= 0 && join.rank < roster.size() &&
                        roster[join.rank].state == Peer::State::departed;
  if (epoch.number > 0) {
    // The rank may be joining the next job at this address (see below).
    if (had_left && finish_deadline_ != 0) return close(connection);
    return refuse(connection,
                  fmt::format("rank {} of {} (host {}, pid {}): the job goes on in epoch {}; a new "
                              "process enters it with World::enter()",
                              join.rank, join.size, join.host, join.pid, epoch.number));
  }
  if (join.size != roster.size() || join.rank < 0 || join.rank >= roster.size()) {
    return refuse(
        connection,
        fmt::format(
            "rank {} of {} (host {}, pid {}): rank 0 started a job of {} ranks; "
            "start this process with size {} (ATOLL_SIZE) and a rank from 0 to {} (ATOLL_RANK)",
            join.rank, join.size, join.host, join.pid, roster.size(), roster.size(),
            roster.size() - 1));
  }
  const Peer::State state = roster[join.rank].state;
  // A rank that has left this job may already join the next one at the same address. Without an
  // answer it tries again, until the next store listens.
  if (had_left) return close(connection);
  if (state != Peer::State::absent) {
    return refuse(connection, fmt::format("rank {} (host {}, pid {}): {} has already joined the "
                                          "job; give every process another rank (ATOLL_RANK)",
                                          join.rank, join.host, join.pid, roster.named(join.rank)));
  }
  roster.join(join.rank, join.host, join.pid);
  connection.join(epoch, join.rank, options_.cut_timeout);
  members_.insert(joining_.extract(connection.id()));
  connection.send(Kind::welcome, frame.request, std::nullopt, shared(options_.secret));
  if (epoch.failure) notify(connection, *epoch.failure);
}

void Server::admit_observer(Connection& connection, const Frame& frame) {
  if (observers() >= max_observers) {
    connection.send(
        Kind::refusal, frame.request, ErrorCode::unsupported,
        shared(fmt::format("the job already has {} observers; end one of them", max_observers)));
    return close(connection);
  }
  connection.observe();
  members_.insert(joining_.extract(connection.id()));
  connection.send(Kind::welcome, frame.request, std::nullopt, shared(""));
  if (newest().failure) notify(connection, *newest().failure);
}

// Asks the ranks on behalf of an observer. An observer may have one question at a time, so that it
// cannot queue work or unread answers in the store.
void Server::handle_observe(Connection& connection, const Frame& frame) {
  if (newest().failure) return;
  Unpacker in(frame.body);
  const auto timeout = std::min<milliseconds>(milliseconds(in.number()), max_observation);
  in.finish();
  require(!connection.has_output() && !newest().table.asks(connection), ErrorCode::bad_data,
          "an observer asked before it had read the answer to its last question");
  ask_all({&connection, frame.request, Clock::now() + timeout, timeout}, observer_question, "");
}

void Server::refuse(Connection& connection, const std::string& why) {
  log::warn("the store refuses {}", why);
  if (refusals_.size() < most_refusals && std::ranges::find(refusals_, why) == refusals_.end())
    refusals_.push_back(why);
  connection.send(Kind::refusal, 0, ErrorCode::mismatch, shared(why));
  close(connection);
}

void Server::handle_request(Connection& connection, Kind kind, const Frame& frame) {
  if (kind == Kind::farewell) return depart(connection, frame);
  // After a failure, requests need no answer: the failure message has been sent to every rank.
  Epoch& epoch = *connection.epoch();
  if (epoch.failure) return;
  Unpacker in(frame.body);
  if (kind == Kind::fail) {
    return declare(
        epoch, ErrorCode::aborted,
        fmt::format("{}: {}", epoch.roster.named(connection.rank()), in.text(max_request_bytes)));
  }
  const milliseconds timeout(in.number());
  const Waiter waiter{&connection, frame.request, Clock::now() + timeout, timeout};
  if (kind == Kind::get) return handle_get(waiter, in);
  std::string key(in.text(max_key_bytes));
  std::string value(in.text(max_value_bytes));
  if (kind == Kind::exchange || kind == Kind::release) {
    const std::vector<Run> runs = unpack_runs(in, epoch.roster.size());
    in.finish();
    if (kind == Kind::release) return epoch.table.release(connection.rank(), key, runs);
    return epoch.table.exchange(waiter, connection.rank(), key, std::move(value), runs);
  }
  in.finish();
  if (kind == Kind::ask) return ask_all(waiter, key, value);
  if (kind == Kind::reply) {
    return epoch.table.answer(frame.request, connection.rank(), std::move(value));
  }
  if (kind == Kind::cancel) return epoch.table.cancel(connection.rank(), key, value);
  if (kind == Kind::announce) return announce(waiter, key, std::move(value));
  epoch.table.put(key, std::move(value));
  reply(waiter, std::nullopt, shared(""));
}

void Server::handle_get(const Waiter& waiter, Unpacker& in) {
  const std::uint32_t count = in.number();
  require(count <= std::min(max_keys, in.left() / 4), ErrorCode::bad_data,
          "store message: {} keys do not fit into it", count);
  std::vector<std::string> keys;
  keys.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) keys.emplace_back(in.text(max_key_bytes));
  in.finish();
  waiter.connection->epoch()->table.get(waiter, std::move(keys));
}

void Server::ask_all(const Waiter& waiter, std::string_view name, std::string_view detail) {
  Epoch* const joined = waiter.connection->epoch();
  Epoch& epoch = joined ? *joined : newest();  // an observer asks the newest epoch
  const std::uint64_t number = epoch.table.ask(waiter);
  tell_all(epoch, Kind::question, number, std::nullopt,
           shared(Packer().text(name).text(detail).take()));
}

void Server::tell_all(const Epoch& epoch, Kind kind, std::uint64_t request,
                      std::optional<ErrorCode> problem, const Table::Body& body) {
  for (auto& [id, connection] : members_) {
    if (connection.is_open() && connection.epoch() == &epoch)
      connection.send(kind, request, problem, body);
  }
}

void Server::announce(const Waiter& waiter, const std::string& name, std::string value) {
  Epoch& epoch = *waiter.connection->epoch();
  const auto [first, is_new] = epoch.table.claim(name, std::move(value));
  if (is_new) {
    tell_all(epoch, Kind::question, 0, std::nullopt,
             shared(Packer().text(name).text(*first).take()));
  }
  reply(waiter, std::nullopt, first);
}

void Server::depart(Connection& connection, const Frame& frame) {
  Unpacker in(frame.body);
  const bool told = in.number() != 0;
  in.finish();
  const int rank = connection.rank();
  if (connection.epoch()->roster[rank].state != Peer::State::present) return;
  go(*connection.epoch(), rank, Peer::State::departed, told);
  reply({&connection, frame.request, {}, {}}, std::nullopt, shared(""));
}

void Server::reply(const Waiter& waiter, std::optional<ErrorCode> problem,
                   const Table::Body& body) {
  waiter.connection->send(Kind::answer, waiter.request, problem, body);
}

// Observers learn the failure of the newest epoch.
void Server::declare(Epoch& epoch, ErrorCode code, const std::string& reason) {
  if (epoch.failure) return;
  epoch.failure.emplace(code, reason);
  epoch.failed_at = Clock::now();
  epoch.table.forget_all();
  for (auto& [id, connection] : members_) {
    const bool is_concerned = connection.epoch() == &epoch ||
                              (connection.is_observer() && epoch.number == newest().number);
    if (connection.is_open() && is_concerned) notify(connection, *epoch.failure);
  }
}

void Server::notify(Connection& connection, const Error& failure) {
  connection.send(Kind::failure, 0, failure.code(), shared(failure.what()));
}

}  // namespace atoll_v1::atoll::store
