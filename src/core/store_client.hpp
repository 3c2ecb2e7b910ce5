// A rank's connection to the store.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/socket.hpp"
#include "core/store.hpp"
#include "core/store_protocol.hpp"

namespace atoll_v1::atoll::store {

// Tries every address again and again until one answers the hello or the deadline passes:
// Error(timeout) with what happened last. Error(mismatch) when the store refuses this rank.
net::Fd connect(const std::vector<net::Address>& addresses, const Hello& hello,
                net::Clock::time_point deadline);

// Its thread reads; it also declares the failure of the job when the store says so or is lost, and
// so runs the callbacks.
class Client final : public Store {
 public:
  Client(net::Fd socket, int rank, std::shared_ptr<Failure> failure);
  ~Client() override;

  void put(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override;
  std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                    std::chrono::milliseconds timeout) override;
  std::vector<Answered> ask(std::string_view question, std::chrono::milliseconds timeout) override;
  void answer_with(Answerer answerer) override;
  void fail(std::string_view reason) noexcept override;
  void farewell() noexcept override;

 private:
  struct Call {
    bool done = false;
    std::optional<ErrorCode> problem;
    std::string payload;
  };

  std::string request(Kind kind, std::string_view key, std::string_view value,
                      std::chrono::milliseconds timeout);
  std::string call(Kind kind, std::string_view body, std::chrono::milliseconds patience);
  void read();
  bool read_frame(Header& header, std::string& body) noexcept;
  void respond(std::uint64_t number, std::string_view question) noexcept;
  void lose(const Error& error);

  net::Fd socket_;
  int rank_;
  std::shared_ptr<Failure> failure_;

  std::mutex sending_;
  std::mutex answering_;
  Answerer answerer_;  // of answering_
  std::mutex mutex_;   // of what follows
  std::condition_variable changed_;
  std::map<std::uint64_t, Call*> calls_;  // each on the stack of its caller
  std::uint64_t next_request_ = 1;
  std::optional<Error> broken_;   // why no call can be answered any more
  std::optional<Error> verdict_;  // what the end of the stream means, if not the loss of rank 0
  bool leaving_ = false;
  std::jthread reader_;
};

}  // namespace atoll_v1::atoll::store
