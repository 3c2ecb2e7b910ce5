#include "core/store_server.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <utility>

#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/store_protocol.hpp"

namespace atoll_v1::atoll::store {

struct Frame {
  std::uint32_t kind = 0;
  std::uint64_t request = 0;
  std::string body;
};

// One accepted connection: a nonblocking socket, the received part of the next frame, and the
// output that is not yet sent.
class Connection {
 public:
  explicit Connection(net::Fd socket) : socket_(std::move(socket)) {}

  int socket() const noexcept { return socket_.get(); }
  bool is_open() const noexcept { return static_cast<bool>(socket_); }
  void close() noexcept { socket_.reset(); }
  net::Clock::time_point opened() const noexcept { return opened_; }

  // Rank of the peer; -1 until its hello is accepted.
  int rank() const noexcept { return rank_; }
  void authenticate(int rank) noexcept { rank_ = rank; }

  // Reads available data, up to a limit; returns false if the peer has closed the connection.
  bool receive();
  // Extracts one complete frame from the received data, if there is one. Throws Error(bad_data) if
  // the frame is longer than a peer in this state may send.
  bool next(Frame& frame);

  // Sends a frame; all frames of the store have the format of an answer. Bytes that the socket does
  // not accept at once wait for flush(). Bodies are shared, because an exchange sends the same
  // bytes to every rank.
  void send(Kind kind, std::uint64_t request, std::optional<ErrorCode> problem,
            std::shared_ptr<const std::string> body);
  bool has_output() const noexcept { return !output_.empty(); }
  bool flush();  // sends what the socket accepts; false if the peer closed it

 private:
  net::Fd socket_;
  net::Clock::time_point opened_ = net::Clock::now();
  int rank_ = -1;
  std::string input_;
  std::deque<std::shared_ptr<const std::string>> output_;
  std::size_t sent_ = 0;  // bytes of output_.front() that are already sent
};

bool Connection::receive() {
  std::array<char, 64 * 1024> chunk;
  const ssize_t received = ::recv(socket_.get(), chunk.data(), chunk.size(), 0);
  if (received < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (received == 0) return false;
  input_.append(chunk.data(), static_cast<std::size_t>(received));
  return true;
}

bool Connection::next(Frame& frame) {
  if (input_.size() < header_bytes) return false;
  const Header header = decode_header(input_);
  const std::size_t most = rank_ < 0 ? max_hello_bytes : max_request_bytes;
  require(header.length <= most, ErrorCode::bad_data,
          "store message of {} bytes; at most {} are allowed", header.length, most);
  const std::size_t total = header_bytes + header.length;
  if (input_.size() < total) return false;
  frame.kind = header.kind;
  frame.request = header.request;
  frame.body.assign(input_, header_bytes, header.length);
  input_.erase(0, total);
  return true;
}

void Connection::send(Kind kind, std::uint64_t request, std::optional<ErrorCode> problem,
                      std::shared_ptr<const std::string> body) {
  const std::string status =
      Packer().number(problem ? static_cast<std::uint32_t>(*problem) : 0).take();
  const auto length = static_cast<std::uint32_t>(status.size() + body->size());
  output_.push_back(std::make_shared<const std::string>(
      encode_header({length, static_cast<std::uint32_t>(kind), request}) + status));
  if (!body->empty()) output_.push_back(std::move(body));
  flush();  // if the connection is closed, serve() notices it
}

bool Connection::flush() {
  while (!output_.empty()) {
    const std::string& front = *output_.front();
    const ssize_t sent =
        ::send(socket_.get(), front.data() + sent_, front.size() - sent_, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    sent_ += static_cast<std::size_t>(sent);
    if (sent_ == front.size()) {
      output_.pop_front();
      sent_ = 0;
    }
  }
  return true;
}

namespace {

using net::Clock;
using std::chrono::milliseconds;

// Time for the reason of a failure to reach all ranks before the store stops.
constexpr milliseconds failed_patience{1000};

}  // namespace

Server::Server(ServerOptions options)
    : options_(std::move(options)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      rendezvous_deadline_(Clock::now() + options_.rendezvous_timeout),
      roster_(options_.size),
      table_(roster_, &Server::reply) {
  if (!wake_) throw Error(ErrorCode::io, "eventfd failed: no file descriptor for the store");
  thread_ = std::jthread([this] { run(); });
}

Server::~Server() { finish(failed_patience); }

void Server::run() {
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
  return failure_ ? connections_.empty()
                  : !roster_.any(Peer::State::absent) && !roster_.any(Peer::State::present);
}

Clock::time_point Server::next_deadline() const {
  Clock::time_point result = Clock::now() + std::chrono::hours(1);
  result = std::min(result, finish_deadline());
  if (!failure_ && roster_.any(Peer::State::absent))
    result = std::min(result, rendezvous_deadline_);
  for (const Connection& connection : connections_) {
    if (connection.rank() < 0) result = std::min(result, connection.opened() + handshake_timeout);
  }
  return table_.next_deadline(result);
}

void Server::expire(Clock::time_point now) {
  for (Connection& connection : connections_) {
    if (connection.rank() < 0 && connection.opened() + handshake_timeout <= now) close(connection);
  }
  table_.expire(now);
  if (!failure_ && now >= rendezvous_deadline_ && roster_.any(Peer::State::absent)) {
    declare(ErrorCode::timeout,
            fmt::format("{} did not join the job within {} s", roster_.named(Peer::State::absent),
                        std::chrono::duration<double>(options_.rendezvous_timeout).count()));
  }
  connections_.remove_if([](const Connection& connection) { return !connection.is_open(); });
}

void Server::turn(Clock::time_point until) {
  std::vector<pollfd> items{{wake_.get(), POLLIN, 0}};
  for (const net::Fd& listener : options_.listeners) items.push_back({listener.get(), POLLIN, 0});
  const std::size_t first = items.size();
  for (const Connection& connection : connections_) {
    const int events = connection.has_output() ? POLLIN | POLLOUT : POLLIN;
    items.push_back({connection.socket(), static_cast<short>(events), 0});
  }
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  const int ready = ::poll(items.data(), items.size(),
                           static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000)));
  if (ready <= 0) return;
  std::uint64_t ignored = 0;
  if (items[0].revents != 0) {
    [[maybe_unused]] const ssize_t count = ::read(wake_.get(), &ignored, sizeof ignored);
  }
  auto connection = connections_.begin();
  for (std::size_t i = first; i < items.size(); ++i, ++connection) {
    if (items[i].revents != 0 && connection->is_open()) serve(*connection, items[i].revents);
  }
  for (std::size_t i = 1; i < first; ++i) {
    if (items[i].revents != 0) accept_all(items[i].fd);
  }
  connections_.remove_if([](const Connection& item) { return !item.is_open(); });
}

void Server::accept_all(int listener) {
  const auto is_stranger = [](const Connection& c) { return c.is_open() && c.rank() < 0; };
  while (net::Fd socket = net::accept_from(listener)) {
    const auto strangers = std::ranges::count_if(connections_, is_stranger);
    if (static_cast<std::size_t>(strangers) >= max_strangers) {
      close(*std::ranges::find_if(connections_, is_stranger));
    }
    connections_.emplace_back(std::move(socket));
  }
}

void Server::serve(Connection& connection, short events) {
  bool open = true;
  try {
    if ((events & POLLOUT) != 0) open = connection.flush();
    if (open && (events & ~POLLOUT) != 0) open = connection.receive();
    Frame frame;
    while (connection.is_open() && connection.next(frame)) handle(connection, frame);
    if (open && connection.is_open()) open = connection.flush();
  } catch (const Error& error) {
    if (connection.rank() >= 0)
      log::error("{}: {}", roster_.named(connection.rank()), error.what());
    open = false;
  }
  if (!open) close(connection);
}

void Server::close(Connection& connection) {
  if (!connection.is_open()) return;
  connection.close();
  table_.forget(connection);
  if (connection.rank() < 0) return;
  Peer& peer = roster_[connection.rank()];
  if (peer.state != Peer::State::present) return;
  peer.state = Peer::State::lost;
  declare(ErrorCode::peer_lost, fmt::format("{} was lost", roster_.named(connection.rank())));
}

// Tells connected ranks why the store ends; otherwise they would report a crash of rank 0.
void Server::end() {
  if (roster_.any(Peer::State::present)) {
    declare(ErrorCode::peer_lost, fmt::format("rank 0, which serves the store, ended before {}",
                                              roster_.named(Peer::State::present)));
  }
  const Clock::time_point deadline = Clock::now() + failed_patience / 2;
  while (Clock::now() < deadline &&
         std::ranges::any_of(connections_, [](const Connection& c) { return c.has_output(); })) {
    turn(deadline);
  }
}

void Server::handle(Connection& connection, const Frame& frame) {
  const Kind kind{frame.kind};
  const bool known = connection.rank() >= 0;
  if (kind == Kind::hello && !known) return handle_hello(connection, frame);
  if (kind >= Kind::put && kind <= Kind::reply && known) {
    return handle_request(connection, kind, frame);
  }
  throw make_error(ErrorCode::bad_data,
                   "a store message of kind {} is not allowed at this point of the connection",
                   frame.kind);
}

void Server::handle_hello(Connection& connection, const Frame& frame) {
  const Hello hello = decode_hello(frame.body);
  if (!equal_secrets(options_.token, hello.token)) {
    throw Error(ErrorCode::bad_data, "store message: wrong token");
  }
  if (hello.size != roster_.size() || hello.rank < 0 || hello.rank >= roster_.size()) {
    return refuse(connection, fmt::format("rank {} of {} cannot join a job of {} ranks", hello.rank,
                                          hello.size, roster_.size()));
  }
  Peer& peer = roster_[hello.rank];
  // A rank that has left this job may already join the next one at the same address. Without an
  // answer it tries again, until the next store listens.
  if (peer.state == Peer::State::departed) return close(connection);
  if (peer.state != Peer::State::absent) {
    return refuse(connection,
                  fmt::format("{} has already joined the job", roster_.named(hello.rank)));
  }
  peer = {Peer::State::present, hello.host, hello.pid};
  connection.authenticate(hello.rank);
  connection.send(Kind::welcome, frame.request, std::nullopt, std::make_shared<std::string>());
  if (failure_) notify(connection);
}

void Server::refuse(Connection& connection, const std::string& why) {
  connection.send(Kind::refusal, 0, ErrorCode::mismatch, std::make_shared<std::string>(why));
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
  const std::string key(in.text(max_key_bytes));
  std::string value(in.text(max_value_bytes));
  const std::vector<int> ranks = kind == Kind::exchange ? read_ranks(in) : std::vector<int>();
  in.finish();
  const Waiter waiter{&connection, frame.request, Clock::now() + timeout, timeout};
  if (kind == Kind::put) {
    table_.put(key, std::move(value));
    reply(waiter, std::nullopt, std::make_shared<std::string>());
  } else if (kind == Kind::get) {
    table_.get(waiter, key);
  } else if (kind == Kind::ask) {
    ask_all(waiter, std::move(value));
  } else if (kind == Kind::reply) {
    table_.answer(frame.request, connection.rank(), std::move(value));
  } else {
    table_.exchange(waiter, connection.rank(), key, std::move(value), ranks);
  }
}

// Reads the ranks of an exchange; none means all ranks.
std::vector<int> Server::read_ranks(Unpacker& in) const {
  std::vector<int> ranks;
  for (std::uint32_t left = in.number(); left > 0; --left) {
    const std::uint32_t rank = in.number();
    const auto size = static_cast<std::uint32_t>(roster_.size());
    const auto least = ranks.empty() ? 0 : static_cast<std::uint32_t>(ranks.back()) + 1;
    require(least <= rank && rank < size, ErrorCode::bad_data,
            "store message: the ranks of an exchange are not ascending ranks of the job");
    ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

void Server::ask_all(const Waiter& waiter, std::string question) {
  const std::uint64_t number = table_.ask(waiter);
  const auto body = std::make_shared<const std::string>(std::move(question));
  for (Connection& connection : connections_) {
    if (!connection.is_open() || connection.rank() < 0) continue;
    connection.send(Kind::question, number, std::nullopt, body);
  }
}

void Server::depart(Connection& connection, std::uint64_t request) {
  roster_[connection.rank()].state = Peer::State::departed;
  table_.depart(connection.rank());
  reply({&connection, request, {}, {}}, std::nullopt, std::make_shared<std::string>());
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
  for (Connection& connection : connections_) {
    if (connection.is_open() && connection.rank() >= 0) notify(connection);
  }
}

void Server::notify(Connection& connection) {
  connection.send(Kind::failure, 0, failure_->code(),
                  std::make_shared<std::string>(failure_->what()));
}

}  // namespace atoll_v1::atoll::store
