#include "store/client.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "core/errors.hpp"
#include "core/limits.hpp"
#include "core/log.hpp"

namespace atoll_v1::atoll::store {
namespace {

using net::Clock;
using std::chrono::milliseconds;

// The store itself enforces the timeout of a request. A client waits longer, so that the answer can
// arrive: the extra time equals the timeout, within these limits. A client needs its own limit,
// because a stopped rank 0 answers nothing.
constexpr milliseconds least_grace{5'000}, most_grace{10'000};
milliseconds grace(milliseconds timeout) { return std::clamp(timeout, least_grace, most_grace); }
// The extra wait for a question to all ranks. A short time is enough, because the store ends
// questions on time.
constexpr milliseconds ask_grace{1'000};
// The longest wait for an answer if the store is silent already. A caller can handle one timeout
// and try something else; without this limit, its waits for a stopped rank 0 would add up.
constexpr milliseconds silent_patience{1'000};
constexpr milliseconds fail_patience{2'000};
constexpr milliseconds farewell_patience{2'000};
// Time limit for sending a message that gets no answer. An announcement whose caller does not wait
// for the answer waits only if the store reads nothing or another thread sends a large value.
constexpr milliseconds send_patience{10'000};
constexpr milliseconds brief_patience{2'000};

// Requests carry the timeout as a u32 in milliseconds, at most 49 days.
milliseconds sendable(milliseconds timeout) {
  return std::clamp(timeout, milliseconds(0),
                    milliseconds(std::numeric_limits<std::uint32_t>::max()));
}

Error no_store() { return {ErrorCode::bad_data, "the process there is not an atoll store"}; }

// Receives the proof of the store. `hint` names a difference of versions that the store, which has
// not proved itself yet, claims.
void check_store(int socket, const Handshake& handshake, const std::string& hint,
                 Clock::time_point deadline) {
  Message message;
  try {
    message = receive_message(socket, max_unproven_bytes, deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_lost) throw;
    throw make_error(
        ErrorCode::bad_data,
        "the store there does not accept this token; is ATOLL_TOKEN equal on all ranks?{}", hint);
  }
  if (message.kind != Kind::proved || !handshake.accepts(decode_answer(message.body).payload)) {
    throw make_error(ErrorCode::bad_data,
                     "the process there does not know the token of the job; it is not its store{}",
                     hint);
  }
}

// Describes why an attempt to reach the store at `address` has failed. If the peer ends or does not
// answer, returns `earlier`, the text of an earlier attempt there, because it may say more.
std::string explained(const Error& error, const net::Address& address, const std::string& earlier) {
  if (error.code() == ErrorCode::io && net::is_local_socket(address)) {
    return fmt::format(
        "{}; without ATOLL_TOKEN the ranks of one host and one user meet there: is "
        "the variable set on rank 0?",
        error.what());
  }
  if (error.code() == ErrorCode::io) return error.what();
  const std::string place = net::name_of(address);
  if (error.code() == ErrorCode::bad_data) return fmt::format("{}: {}", place, error.what());
  if (earlier.starts_with(place)) return earlier;
  return fmt::format(
      "{} accepts the connection, but does not answer like a store; does another program use "
      "this port, or does rank 0 run another version of atoll?",
      place);
}

}  // namespace

// Allocates memory as bytes arrive, so that a header with a false length cannot claim much of it.
Message receive_message(int socket, std::size_t most, Clock::time_point deadline,
                        const std::atomic<bool>* stop) {
  constexpr std::size_t first_piece = std::size_t{1} << 20;
  std::array<char, header_bytes> bytes{};
  net::receive_all(socket, bytes, deadline, stop);
  const Header header = decode_header({bytes.data(), bytes.size()});
  if (header.length < 4 || header.length > most) throw no_store();
  Message message{Kind{header.kind}, header.request};
  std::string& body = message.body;
  while (body.size() < header.length) {
    const std::size_t begin = body.size();
    body.resize(begin + std::min(header.length - begin, std::max(begin, first_piece)));
    net::receive_all(socket, std::span(body).subspan(begin), deadline, stop);
  }
  return message;
}

void shake_hands(int socket, std::string_view token, Clock::time_point deadline) {
  Handshake handshake(Side::rank, token);
  net::send_all(socket, encode_frame(Kind::hello, 0, handshake.greeting()), deadline);
  const Message challenge = receive_message(socket, max_unproven_bytes, deadline);
  if (challenge.kind != Kind::challenge) throw no_store();
  handshake.hear(decode_answer(challenge.body).payload);
  const Greeting& peer = handshake.peer();
  const std::string versions =
      fmt::format("rank 0 runs {}, this rank runs {}", described(peer), described(own_greeting()));
  if (peer.protocol < first_version_with_proofs) throw Error(ErrorCode::bad_data, versions);
  net::send_all(socket, encode_frame(Kind::proof, 0, handshake.proof()), deadline);
  const std::string hint =
      is_compatible(peer) ? "" : fmt::format(" (by its greeting, {})", versions);
  check_store(socket, handshake, hint, deadline);
  require(is_compatible(peer), ErrorCode::mismatch, "{}: use one version on all hosts", versions);
}

std::string apply(int socket, const Application& application, Clock::time_point proven_by,
                  Clock::time_point joined_by) {
  shake_hands(socket, application.token, proven_by);
  const std::optional<Candidacy>& candidacy = application.candidacy;
  net::send_all(socket,
                candidacy ? encode_frame(Kind::regroup, 0, encode(*candidacy))
                          : encode_frame(Kind::join, 0, encode(application.join)),
                joined_by);
  const bool is_new = candidacy && candidacy->is_new();
  Message message;
  try {
    message = receive_message(socket, candidacy ? max_answer_bytes : max_join_bytes,
                              is_new ? Clock::time_point::max() : joined_by);
  } catch (const Error& error) {
    if (!candidacy || error.code() != ErrorCode::peer_lost) throw;
    throw make_error(ErrorCode::aborted,
                     "{}: the store was lost while this process waited for the next epoch",
                     named(*candidacy));
  }
  const Answer answer = decode_answer(message.body);
  if (message.kind == Kind::refusal) {
    throw Error(answer.problem.value_or(ErrorCode::mismatch), std::string(answer.payload));
  }
  const bool fits = candidacy || answer.payload.size() <= max_secret_bytes;
  if (message.kind != Kind::welcome || !fits) throw no_store();
  return std::string(answer.payload);
}

Admission connect(const std::vector<net::Address>& addresses, const Application& application,
                  Clock::time_point deadline) {
  constexpr milliseconds slowest{500};
  std::string last = "no address";
  for (milliseconds pause{10};; pause = std::min(2 * pause, slowest)) {
    for (const net::Address& address : addresses) {
      try {
        const auto attempt = std::min(deadline, Clock::now() + std::chrono::seconds(5));
        net::Fd socket = net::connect_to(address, attempt);
        require(!net::is_local_socket(address) || net::peer_has_own_user(socket.get()),
                ErrorCode::bad_data,
                "a process of another user has taken it: set ATOLL_TOKEN on every rank");
        // A rank that has asked to join must not ask again on another connection: a store that
        // stood still would find both requests, and refuse the rank as a duplicate.
        std::string answer = apply(socket.get(), application, attempt, deadline);
        return {std::move(socket), std::move(answer)};
      } catch (const Error& error) {
        if (error.code() == ErrorCode::mismatch || error.code() == ErrorCode::aborted) throw;
        last = explained(error, address, last);
      }
    }
    if (Clock::now() + pause >= deadline) break;
    std::this_thread::sleep_for(pause);
  }
  const std::string name = application.candidacy
                               ? named(*application.candidacy)
                               : fmt::format("rank {} (host {}, pid {})", application.join.rank,
                                             application.join.host, application.join.pid);
  const bool is_nobody_there = last.starts_with("cannot connect to");
  throw make_error(ErrorCode::timeout, "{} cannot reach the store of the job: {}{}", name, last,
                   is_nobody_there
                       ? "; does rank 0 (or atoll-store) run, and can this host reach that address?"
                       : "");
}

Client::Client(net::Fd socket, int rank, int size, std::shared_ptr<Failure> failure,
               std::shared_ptr<Departures> departures, Server server)
    : server_(server),
      early_(server),
      socket_(std::move(socket)),
      rank_(rank),
      size_(size),
      failure_(std::move(failure)),
      departures_(std::move(departures)),
      reader_(start_thread([this] { read(); })) {}

Client::~Client() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  closing_ = true;
  ::shutdown(socket_.get(), SHUT_RDWR);
}

void Client::put(std::string_view key, std::string_view value, milliseconds timeout) {
  request(Kind::put, key, value, timeout);
}

std::vector<std::string> Client::get_all(std::span<const std::string> keys, milliseconds timeout) {
  timeout = sendable(timeout);
  Packer packer;
  packer.number(static_cast<std::uint32_t>(timeout.count()))
      .number(static_cast<std::uint32_t>(keys.size()));
  for (const std::string& key : keys) packer.text(key);
  const std::string_view first = keys.empty() ? std::string_view() : std::string_view(keys.front());
  std::string payload = call(Kind::get, packer.take(), timeout + grace(timeout), first);
  if (keys.size() == 1) return {std::move(payload)};
  Unpacker in(payload);
  std::vector<std::string> values;
  for (std::size_t i = 0; i < keys.size(); ++i) values.emplace_back(in.text(max_value_bytes));
  in.finish();
  return values;
}

// No answer follows: a caller that has read its keys need not wait until they are deleted.
void Client::release(std::string_view prefix, std::span<const int> ranks) {
  failure_->check();
  Packer packer;
  packer.number(0).text(prefix).text("");
  pack(packer, runs_of(ranks));
  const std::string body = packer.take();
  const Clock::time_point deadline = Clock::now() + send_patience;
  require(send(encode_frame(Kind::release, 0, body), deadline, deadline), ErrorCode::timeout,
          "rank {}: {} does not answer", rank_, name_of(server_));
  const std::string also = titled("", prefix);
  const std::lock_guard lock(mutex_);
  std::erase_if(interrupted_, [&](const std::string& one) {
    return one.starts_with(prefix) || one.starts_with(also);
  });
}

std::vector<std::string> Client::exchange(std::string_view key, std::string_view mine,
                                          milliseconds timeout, std::span<const int> ranks,
                                          const std::stop_token& stop, std::string_view why) {
  timeout = sendable(timeout);
  Packer packer;
  packer.number(static_cast<std::uint32_t>(timeout.count())).text(key).text(mine);
  pack(packer, runs_of(ranks));
  const std::string payload =
      call(Kind::exchange, packer.take(), timeout + grace(timeout), key, stop, why);
  return decode_values(payload, ranks.empty() ? static_cast<std::size_t>(size_) : ranks.size());
}

void Client::interrupt(std::string_view prefix) {
  const std::lock_guard lock(mutex_);
  interrupted_.emplace_back(prefix);
  for (const auto& [number, waiting] : calls_) interrupt(*waiting);
  changed_.notify_all();
}

void Client::interrupt(Call& call) const {
  const bool ends = std::ranges::any_of(
      interrupted_, [&](const std::string& prefix) { return call.key.starts_with(prefix); });
  if (!ends || call.done) return;
  call.done = true;
  call.problem = ErrorCode::aborted;
  call.payload = fmt::format("the wait for \"{}\" was interrupted", call.key);
}

std::vector<Answered> Client::ask(std::string_view name, std::string_view detail,
                                  milliseconds timeout) {
  require(name.size() <= max_key_bytes && detail.size() <= max_value_bytes,
          "a question with a name of {} bytes and details of {}; at most {} and {} are allowed",
          name.size(), detail.size(), max_key_bytes, max_value_bytes);
  return decode_answers(request(Kind::ask, name, detail, timeout));
}

std::string Client::announce(std::string_view name, std::string_view value, milliseconds timeout) {
  if (timeout > milliseconds(0)) return request(Kind::announce, name, value, timeout);
  const std::string body = Packer().number(0).text(name).text(value).take();
  const Clock::time_point now = Clock::now();
  if (!send(encode_frame(Kind::announce, 0, body), now + brief_patience, now + send_patience))
    log::warn("rank {}: {} did not accept an announcement in time", rank_, name_of(server_));
  return std::string(value);
}

void Client::answer_with(Answerer answerer) {
  const std::lock_guard lock(answering_);
  answerer_ = std::move(answerer);
}

void Client::respond(std::uint64_t number, std::string_view question) noexcept {
  try {
    Unpacker in(question);
    const std::string_view name = in.text(max_key_bytes), detail = in.text(max_value_bytes);
    in.finish();
    std::string text;
    {
      const std::lock_guard lock(answering_);
      if (answerer_) text = answerer_(name, detail);
    }
    if (number == 0) return;  // an announcement
    const std::string body = Packer().number(0).text("").text(text).take();
    const Clock::time_point deadline = Clock::now() + send_patience;
    if (!send(encode_frame(Kind::reply, number, body), deadline, deadline))
      log::debug("cannot answer a question: the store takes no data");
  } catch (const std::exception& problem) {
    log::debug("cannot answer a question: {}", problem.what());
  }
}

// Returns false if nothing was sent by the deadline, because the store reads nothing or another
// thread sends. A partly sent message must be complete by `last`; otherwise send() closes the
// connection, and the reader thread reports why.
bool Client::send(std::string_view frame, Clock::time_point deadline, Clock::time_point last) {
  std::unique_lock lock(mutex_);
  if (!sent_.wait_until(lock, deadline, [&] { return !is_sending_; })) return false;
  is_sending_ = true;
  lock.unlock();
  std::size_t sent = 0;
  bool is_lost = false;
  try {
    sent = net::send_some(socket_.get(), frame, deadline);
    if (sent > 0) sent += net::send_some(socket_.get(), frame.substr(sent), last);
  } catch (const Error&) {
    is_lost = true;
  }
  const bool is_cut = sent > 0 && sent < frame.size();
  lock.lock();
  is_sending_ = false;
  sent_.notify_one();
  if (is_cut || is_lost) {
    closing_ = true;
    ::shutdown(socket_.get(), SHUT_RDWR);
  }
  if (is_cut && !is_lost && !why_closed_) why_closed_ = early_.unread;
  return sent > 0 || is_lost;
}

std::string Client::request(Kind kind, std::string_view key, std::string_view value,
                            milliseconds timeout) {
  timeout = sendable(timeout);
  Packer packer;
  packer.number(static_cast<std::uint32_t>(timeout.count())).text(key).text(value);
  return call(kind, packer.take(), timeout + (kind == Kind::ask ? ask_grace : grace(timeout)));
}

std::string Client::call(Kind kind, std::string_view body, milliseconds patience,
                         std::string_view key, const std::stop_token& stop, std::string_view why) {
  Call call;
  call.key = key;
  const std::stop_callback wakes(stop, [this] {
    const std::lock_guard lock(mutex_);  // prevents a wake-up between a check and its wait
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  const Clock::time_point last = Clock::now() + patience;
  if (silent_) patience = std::min(patience, silent_patience);
  const Clock::time_point deadline = Clock::now() + patience;
  if (broken_) throw Error(*broken_);
  interrupt(call);
  if (call.done) throw Error(*call.problem, fmt::format("rank {}: {}", rank_, call.payload));
  const std::uint64_t number = next_request_++;
  const std::string frame = encode_frame(kind, number, body);
  const std::string cancel =
      stop.stop_possible()
          ? encode_frame(Kind::cancel, 0, Packer().number(0).text(key).text(why).take())
          : std::string();
  calls_.emplace(number, &call);
  lock.unlock();
  send(frame, deadline, last);  // if the frame was not sent, the deadline has passed
  lock.lock();
  const auto is_over = [&] { return call.done || broken_; };
  changed_.wait_until(lock, deadline, [&] { return is_over() || stop.stop_requested(); });
  if (!is_over() && stop.stop_requested()) {
    lock.unlock();
    send(cancel, deadline, last);
    lock.lock();
    changed_.wait_until(lock, deadline, is_over);
  }
  calls_.erase(number);
  if (call.done && !call.problem) return std::move(call.payload);
  if (call.done) throw Error(*call.problem, fmt::format("rank {}: {}", rank_, call.payload));
  if (broken_) throw Error(*broken_);
  silent_ = true;
  throw make_error(ErrorCode::timeout, "rank {}: {} does not answer", rank_, name_of(server_));
}

void Client::fail(std::string_view reason) noexcept {
  try {
    milliseconds patience = fail_patience;
    {
      const std::lock_guard lock(mutex_);
      if (broken_) return;
      if (silent_) patience = milliseconds(0);
      // The process of the store learns of the failure first and may end before it confirms, so
      // this reason is set before the message is sent.
      why_closed_.emplace(ErrorCode::aborted, fmt::format("rank {}: {}", rank_, reason));
    }
    const Clock::time_point deadline = Clock::now() + patience;
    send(encode_frame(Kind::fail, 0, Packer().text(reason.substr(0, max_value_bytes)).take()),
         deadline, deadline);
    std::unique_lock lock(mutex_);
    if (changed_.wait_until(lock, deadline, [&] { return broken_.has_value(); })) return;
    // The store did not confirm the failure. This rank stops anyway.
    ::shutdown(socket_.get(), SHUT_RDWR);
    changed_.wait_for(lock, fail_patience, [&] { return broken_.has_value(); });
  } catch (const std::exception& problem) {
    log::error("cannot report the failure \"{}\" to the other ranks: {}", reason, problem.what());
    ::shutdown(socket_.get(), SHUT_RDWR);  // tells the other ranks that this rank is lost
  }
}

void Client::farewell(bool told) noexcept {
  {
    // Set before the request, because the store may end as soon as it has answered.
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  try {
    call(Kind::farewell, Packer().number(told ? 1 : 0).take(), farewell_patience);
  } catch (const std::exception& problem) {
    log::debug("the store did not confirm that this rank leaves: {}", problem.what());
  }
}

void Client::dispatch(const Message& message) {
  {
    const std::lock_guard lock(mutex_);
    silent_ = false;
  }
  const Answer answer = decode_answer(message.body);
  if (message.kind == Kind::failure) {
    return lose(Error(answer.problem.value_or(ErrorCode::internal), std::string(answer.payload)));
  }
  if (message.kind == Kind::question) return respond(message.request, answer.payload);
  if (message.kind == Kind::departure) {
    return departures_->record(
        static_cast<int>(message.request),
        Error(answer.problem.value_or(ErrorCode::internal), std::string(answer.payload)));
  }
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(message.request);
  if (found == calls_.end()) return;  // ignores a late answer: the caller has timed out
  Call& call = *found->second;
  call.problem = answer.problem;
  call.payload = answer.payload;
  call.done = true;
  changed_.notify_all();
}

void Client::read() noexcept {
  try {
    read_messages();
  } catch (const std::exception& error) {
    // The other ranks must learn that this rank no longer listens.
    ::shutdown(socket_.get(), SHUT_RDWR);
    log::error("the connection to the store is closed: {}", text_of(error));
    const std::lock_guard lock(mutex_);
    const auto* const known = dynamic_cast<const Error*>(&error);
    why_closed_.emplace(known ? *known : early_.out_of_memory);
  }
  const bool is_closed_here = ::fcntl(socket_.get(), F_GETFD) < 0;
  std::unique_lock lock(mutex_);
  const Error reason = why_closed_      ? *why_closed_
                       : is_closed_here ? early_.closed_here
                                        : early_.lost;
  if (leaving_ && !broken_) broken_ = reason;
  const bool leaving = leaving_;
  lock.unlock();
  changed_.notify_all();
  if (!leaving) lose(reason);
}

void Client::read_messages() {
  for (;;) {
    Message message;
    try {
      message =
          receive_message(socket_.get(), max_answer_bytes, Clock::time_point::max(), &closing_);
    } catch (const Error&) {
      return;  // the connection has ended; read() reports why
    }
    dispatch(message);
  }
}

// The failure is recorded before waiting callers wake up, so that code that catches their exception
// can read it. Callbacks run last, because they may be slow.
void Client::lose(const Error& error) {
  if (!failure_->record(error)) return;
  {
    const std::lock_guard lock(mutex_);
    broken_ = error;
  }
  changed_.notify_all();
  failure_->announce();
}

}  // namespace atoll_v1::atoll::store
