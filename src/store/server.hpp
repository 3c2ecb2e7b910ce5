// The server of the store: a thread of rank 0 that serves all ranks. Only the server decides that
// the job has failed, so all ranks get the same first reason.
//
// Any process may connect, as often as it likes. The server accepts a bounded number of connections
// per turn of its loop, so that it always returns to ranks, deadlines and failures; it works on a
// connection only when epoll reports it; and it limits the connections that have not proved that
// they know the token, never the proven ones. A proven connection must join, or become an observer,
// within the rendezvous timeout.
//
// After a loss, a job can go on with a new World (World::regroup); each World of a job is an epoch.
// The connections of one server belong to the epoch that their ranks have joined; what ranks store,
// and a failure, stay in their epoch. ServerOptions::size is the number of ranks of the first one.
//
// Observers (store/observer.hpp) are members without a rank. The server sends them the failure or
// the end of the job, but never waits for them.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/socket.hpp"
#include "store/protocol.hpp"
#include "store/regroup.hpp"
#include "store/table.hpp"

namespace atoll_v1::atoll::store {

// Limits for connections without a proof: their number, and the time that each one may stay. If
// there are too many, a new connection replaces the oldest. The number is smaller if the process
// may not open enough descriptors.
constexpr std::size_t max_strangers = 4096;
constexpr std::chrono::seconds handshake_timeout{3};

// Largest number of observers that may be connected at a time.
constexpr std::size_t max_observers = 8;

struct ServerOptions {
  std::vector<net::Fd> listeners;
  std::string token;
  // A secret that the store gives to each rank that joins. Only for listeners on local sockets,
  // where nobody else can read it.
  std::string secret{};
  int size = 0;
  std::chrono::milliseconds rendezvous_timeout{60'000};
  // After this time, and then whenever the wait has doubled, the store logs which ranks are absent.
  std::chrono::milliseconds first_reminder{10'000};
  std::chrono::seconds cut_timeout{10};
  // If the job goes on after a loss, a rank counts as lost when its process has sent nothing for
  // this time. 0: silence alone never makes a rank lost.
  std::chrono::milliseconds heartbeat{10'000};
  bool loss_fails_job =
      true;  // false: the store informs the other ranks of a loss, and the job goes on
  const char* server = "rank 0, which serves the store,";  // the process of the store, for errors
  bool raises_descriptor_limit = true;  // raises the soft limit of the process to the hard limit
  std::size_t strangers = max_strangers;
};

class Connection;
struct Frame;

// The ranks that form one World together, what they have stored, and why their World has failed.
struct Epoch {
  Epoch(std::uint32_t number_, int size, Table::Reply reply)
      : number(number_), roster(size), table(roster, std::move(reply)) {}

  const std::uint32_t number;  // 0 for the World that the launcher starts
  Roster roster;
  Table table;
  std::optional<Error> failure{};
  net::Clock::time_point failed_at{};
};

// A process that waits for the next epoch.
struct Candidate {
  Connection* connection = nullptr;
  std::uint64_t request = 0;
  Candidacy wish;
};

class Server {
 public:
  // Raises the soft limit of descriptors of this process to its hard limit.
  explicit Server(ServerOptions options);
  ~Server();  // calls finish(), with a limit of 1 s

  // Returns when every rank has joined and has left or is lost, at the latest after `patience` (1 s
  // once the job has failed). Ranks that remain are told that the store has ended.
  void finish(std::chrono::milliseconds patience);

  // Returns "; the store's process had no file descriptor ..." if a connection had to wait for a descriptor, or
  // another one was closed for it; otherwise "".
  std::string lack_of_descriptors() const;

 private:
  // Connections by id. Ids ascend, so the first is the oldest, and a map never moves its elements.
  using Connections = std::map<std::uint64_t, Connection>;

  void run() noexcept;  // body of the server's thread
  void run_until_done();
  bool done(net::Clock::time_point now) const;
  bool is_over(const Epoch& epoch, net::Clock::time_point now) const;
  Epoch& newest() noexcept { return epochs_.back(); }
  const Epoch& newest() const noexcept { return epochs_.back(); }
  bool waits_for_absent() const;
  void remind(net::Clock::time_point now);
  net::Clock::time_point next_deadline() const;
  net::Clock::time_point finish_deadline() const;
  void expire(net::Clock::time_point now);
  void beat(net::Clock::time_point now);
  void turn(net::Clock::time_point until);
  void accept_some(const net::Fd& listener);
  void admit(net::Fd socket);
  bool make_room();
  void pause_accepting();
  void listen(std::uint32_t events);
  void serve(std::uint64_t id, std::uint32_t events);
  void serve(Connection& connection, std::uint32_t events);
  std::size_t observers() const;
  void close(Connection& connection);
  void end();

  void handle(Connection& connection, const Frame& frame);
  void handle_hello(Connection& connection, const Frame& frame);
  void handle_proof(Connection& connection, const Frame& frame);
  void handle_join(Connection& connection, const Frame& frame);
  void admit_observer(Connection& connection, const Frame& frame);
  void handle_observe(Connection& connection, const Frame& frame);
  void handle_request(Connection& connection, Kind kind, const Frame& frame);
  void handle_get(const Waiter& waiter, Unpacker& in);
  void ask_all(const Waiter& waiter, std::string_view name, std::string_view detail);
  void depart(Connection& connection, const Frame& frame);
  void announce(const Waiter& waiter, const std::string& name, std::string value);
  void tell_all(const Epoch& epoch, Kind kind, std::uint64_t request,
                std::optional<ErrorCode> problem, const Table::Body& body);
  void go(Epoch& epoch, int rank, Peer::State state, bool told);

  // server_epochs.cpp
  void handle_regroup(Connection& connection, const Frame& frame);
  std::string why_not(const Candidacy& wish) const;
  void withdraw(const Connection& connection);
  bool a_rank_waits() const;
  void refuse_misfits();
  void begin_epoch();
  void seat(const std::vector<Candidate>& chosen);
  void turn_away(ErrorCode code, const std::string& why, bool ends = false);
  void forget_epochs();

  void refuse(Connection& connection, const std::string& why);
  void note(std::string& place, std::string text);
  std::string notes() const;
  static void reply(const Waiter& waiter, std::optional<ErrorCode> problem,
                    const Table::Body& body);
  void declare(Epoch& epoch, ErrorCode code, const std::string& reason);
  static void notify(Connection& connection, const Error& failure);

  ServerOptions options_;
  net::Fd epoll_;
  net::Fd wake_;
  net::Clock::time_point begin_ = net::Clock::now();
  net::Clock::time_point rendezvous_deadline_;
  net::Clock::time_point next_reminder_;
  net::Clock::time_point next_beat_;
  std::atomic<net::Clock::rep> finish_deadline_{0};  // when finish() must end; 0 before finish()
  std::deque<Epoch> epochs_;  // the newest is the last; an old one stays while a rank may be in it
  std::vector<Candidate> candidates_;
  // Deadline after which the next epoch begins without absent ranks; set while a rank waits.
  std::optional<net::Clock::time_point> epoch_deadline_;
  std::size_t stranger_limit_ = max_strangers;
  std::uint64_t next_id_;
  Connections strangers_;  // connections that have not proved that they know the token
  Connections joining_;    // connections with a proof that are neither ranks nor observers yet
  Connections members_;    // connections of ranks, candidates and observers
  std::optional<net::Clock::time_point> accepts_again_;  // set while no descriptor is free
  bool has_warned_of_descriptors_ = false;
  std::atomic<bool> lacked_descriptors_ = false;
  // Why processes could not join, one text for each reason. The error that reports absent ranks
  // contains them.
  std::vector<std::string> refusals_;
  std::string other_version_;
  std::string other_token_;
  std::jthread thread_;
};

}  // namespace atoll_v1::atoll::store
