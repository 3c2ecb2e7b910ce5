// The connection of one rank to the store.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/socket.hpp"
#include "store/protocol.hpp"
#include "store/regroup.hpp"
#include "store/store.hpp"

namespace atoll_v1::atoll::store {

// The data with which a process enters a job. The process first proves to the store that it knows
// `token`. Then it sends one message: `candidacy` asks for a rank in the next epoch; without it,
// `join` states the rank that the process has in the first epoch.
struct Application {
  std::string token;
  Join join{};
  std::optional<Candidacy> candidacy{};
};

struct Message {
  Kind kind{};
  std::uint64_t request = 0;
  std::string body{};
};
// Receives one message of the store, whose body must have at most `most` bytes. Setting `*stop`
// ends the wait, as in net::wait_for().
Message receive_message(int socket, std::size_t most, net::Clock::time_point deadline,
                        const std::atomic<bool>* stop = nullptr);
// Proves to the store that this process knows the token, and checks the proof of the store.
void shake_hands(int socket, std::string_view token, net::Clock::time_point deadline);

// A connection that the store has accepted.
struct Admission {
  net::Fd socket;
  // The answer to a join: the secret of a store on a local socket, for ranks without a token. The
  // answer to a candidacy: an encoded Seat.
  std::string answer;
};

// Tries all addresses in turn, with backoff, until a store accepts this rank. The store proves that
// it knows the token before it learns who this rank is. A new process waits for its seat without a
// limit. Throws Error(timeout) with the last problem at the deadline, and Error(mismatch) or
// Error(aborted) if the store refuses this process or runs another version.
Admission connect(const std::vector<net::Address>& addresses, const Application& application,
                  net::Clock::time_point deadline);

// This rank and the store prove to each other on a new connection that they know the token, before
// `proven_by`. Then the rank joins the job before `joined_by`; returns Admission::answer. Throws
// Error(peer_lost) or Error(timeout) if the connection fails, Error(bad_data) if the peer does not
// know the token, and Error(mismatch) or Error(aborted) if the store refuses this rank.
std::string apply(int socket, const Application& application, net::Clock::time_point proven_by,
                  net::Clock::time_point joined_by);

// A thread of the client reads the connection. It records the failure of the job when the store
// reports one or is lost, records the ranks that leave, and runs the callbacks.
class Client final : public Store {
 public:
  // The process that serves the store, for errors.
  enum class Server {
    rank_0,
    atoll_store
  };
  Client(net::Fd socket, int rank, int size, std::shared_ptr<Failure> failure,
         std::shared_ptr<Departures> departures = std::make_shared<Departures>(),
         Server server = Server::rank_0);
  ~Client() override;

  void put(std::string_view key, std::string_view value,
           std::chrono::milliseconds timeout) override;
  std::vector<std::string> get_all(std::span<const std::string> keys,
                                   std::chrono::milliseconds timeout) override;
  void release(std::string_view prefix, std::span<const int> ranks) override;
  using Store::exchange;
  std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                    std::chrono::milliseconds timeout,
                                    std::span<const int> ranks) override {
    return exchange(key, mine, timeout, ranks, {}, "");
  }
  std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                    std::chrono::milliseconds timeout, std::span<const int> ranks,
                                    const std::stop_token& stop, std::string_view why) override;
  void interrupt(std::string_view prefix) override;
  std::vector<Answered> ask(std::string_view name, std::string_view detail,
                            std::chrono::milliseconds timeout) override;
  std::string announce(std::string_view name, std::string_view value,
                       std::chrono::milliseconds timeout) override;
  void answer_with(Answerer answerer) override;
  void fail(std::string_view reason) noexcept override;
  void farewell(bool told = false) noexcept override;
  void end(const Error& why) override { lose(why); }

 private:
  struct Call {
    std::string_view key{};  // key of an exchange, or first key of a get; "" for other requests
    bool done = false;
    std::optional<ErrorCode> problem;
    std::string payload;
  };

  std::string request(Kind kind, std::string_view key, std::string_view value,
                      std::chrono::milliseconds timeout);
  // When a stop is requested, sends a message that cancels the exchange `key` because of `why`.
  std::string call(Kind kind, std::string_view body, std::chrono::milliseconds patience,
                   std::string_view key = "", const std::stop_token& stop = {},
                   std::string_view why = "");
  void interrupt(Call& call) const;
  bool send(std::string_view frame, net::Clock::time_point deadline, net::Clock::time_point last);
  void read() noexcept;
  void read_messages();
  void dispatch(const Message& message);
  void respond(std::uint64_t number, std::string_view question) noexcept;
  void lose(const Error& error);

  // The errors of a lost connection, made early: the reader must be able to report that it is out
  // of memory. They do not count as the newest error of the thread that makes them.
  struct EarlyErrors {
    NewestError newest = newest_error;
    Error lost, unread;
    Error closed_here{ErrorCode::io,
                      "the program has closed a descriptor of atoll; close only descriptors that "
                      "you opened"};
    Error out_of_memory{ErrorCode::out_of_memory, "out of memory for a message of the store"};
    explicit EarlyErrors(Server server)
        : lost(ErrorCode::peer_lost, server == Server::rank_0
                                         ? "rank 0 (which serves the store) was lost"
                                         : "atoll-store was lost"),
          unread(ErrorCode::timeout,
                 std::string(name_of(server)) + " did not read the whole of a message in time") {
      newest_error = newest;
    }
  };

  static const char* name_of(Server server) {
    return server == Server::rank_0 ? "the store on rank 0" : "atoll-store";
  }

  const Server server_;
  const EarlyErrors early_;
  net::Fd socket_;
  int rank_;
  int size_;
  std::shared_ptr<Failure> failure_;
  std::shared_ptr<Departures> departures_;

  std::mutex answering_;
  Answerer answerer_;  // function that answers questions; guarded by answering_
  std::mutex mutex_;   // guards all members below
  std::condition_variable changed_;
  std::map<std::uint64_t, Call*> calls_;  // requests that wait for an answer
  std::uint64_t next_request_ = 1;
  std::vector<std::string> interrupted_;  // prefixes of interrupt() that are not released yet
  std::optional<Error> broken_;      // reason why calls cannot be answered; empty while connected
  std::optional<Error> why_closed_;  // error if the connection closes; empty: the store was lost
  bool is_sending_ = false;          // true while a thread sends; others wait for sent_
  std::condition_variable sent_;
  bool silent_ = false;  // true if the store left a request unanswered and has sent nothing since
  bool leaving_ = false;
  // Ends the reader, which shutdown() cannot reach if another file has the number of the socket.
  std::atomic<bool> closing_{false};
  std::jthread reader_;
};

}  // namespace atoll_v1::atoll::store
