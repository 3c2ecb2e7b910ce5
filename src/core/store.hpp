// The key-value store of a job, as World uses it: one object per rank, over TCP (store_client.hpp)
// or alone (make_solo_store). Any thread may call. Requests throw the failure of the job once there is
// one.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/failure.hpp"

namespace atoll_v1::atoll::store {

// What came of asking one rank.
struct Answered {
  enum class How : std::uint32_t {
    answered,
    silent,    // it did not answer in time
    departed,  // it has said farewell
  };
  How how = How::silent;
  std::string text{};
};

using Answerer = std::function<std::string(std::string_view question)>;

class Store {
 public:
  virtual ~Store() = default;

  virtual void put(std::string_view key, std::string_view value) = 0;
  // Waits for the key; Error(timeout).
  virtual std::string get(std::string_view key, std::chrono::milliseconds timeout) = 0;
  // Waits for every rank to bring its value for `key`, and returns all by rank. Error(timeout)
  // names the absent ranks; Error(peer_lost) those that have said farewell. The key "" is a
  // barrier's.
  virtual std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                            std::chrono::milliseconds timeout) = 0;
  // Asks every rank, and waits for at most `timeout`: what its answerer says, by rank. A rank
  // answers from the thread that reads its connection, "" while it has no answerer.
  virtual std::vector<Answered> ask(std::string_view question,
                                    std::chrono::milliseconds timeout) = 0;
  // Must not block, nor call the store; an empty one ends it, after a call under way has returned.
  virtual void answer_with(Answerer answerer) = 0;
  // Declares the job failed, for this reason, on every rank.
  virtual void fail(std::string_view reason) noexcept = 0;
  // This rank needs the others no more; their loss of it is not a failure.
  virtual void farewell() noexcept = 0;
};

// The store of a job of one process: a map.
std::unique_ptr<Store> make_solo_store(std::shared_ptr<Failure> failure);

}  // namespace atoll_v1::atoll::store
