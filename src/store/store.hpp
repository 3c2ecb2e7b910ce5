// The key-value store of a job, as World uses it. Each rank has one Store object: a TCP client
// (store/client.hpp), or in a job of one process a map (make_solo_store). Any thread may call any
// function. Once the job has failed, requests throw its failure.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/failure.hpp"

namespace atoll_v1::atoll::store {

// Users do not know the keys that the library makes for itself, so messages show a title in their
// place.
inline constexpr char title_end = '\x1f';  // ASCII unit separator, which ends the title of a key

// Returns a key for which errors show `title`. With an empty title, errors name no subject, because
// the text of the caller does.
inline std::string titled(std::string_view title, std::string_view key) {
  return std::string(title) + title_end + std::string(key);
}

// The answer of one rank to a question that went to all ranks, and where the rank runs.
struct Answered {
  enum class How : std::uint32_t {
    answered,
    silent,    // the rank did not answer in time, or has not joined yet
    departed,  // the rank has left the job
  };
  How how = How::silent;
  std::string text{};
  std::string host{};  // host of the rank; empty for a rank that has not joined yet
  int pid = 0;
};

// Answers a question, given its name and its details.
using Answerer = std::function<std::string(std::string_view name, std::string_view detail)>;

class Store {
 public:
  virtual ~Store() = default;

  // Waits until the store has the value. Throws Error(timeout) if the store does not answer in
  // time.
  virtual void put(std::string_view key, std::string_view value,
                   std::chrono::milliseconds timeout) = 0;
  // Waits until a rank has put the key; throws Error(timeout).
  std::string get(std::string_view key, std::chrono::milliseconds timeout) {
    const std::string keys[] = {std::string(key)};
    return std::move(get_all(keys, timeout).front());
  }
  // Waits until every key has a value, and returns the values in the order of the keys. One message
  // to the store and one back, however many keys there are.
  virtual std::vector<std::string> get_all(std::span<const std::string> keys,
                                           std::chrono::milliseconds timeout) = 0;
  // Deletes the keys that begin with `prefix` when each of `ranks` (in ascending order; empty: all)
  // has called this function or is gone. A rank that calls it reads these keys no more. Does not
  // wait for the others.
  virtual void release(std::string_view prefix, std::span<const int> ranks) = 0;
  // Waits until every rank has passed its value for `key`, and returns all values by rank. Throws
  // Error(timeout) with the absent ranks, or Error(peer_lost) with ranks that have left the job.
  // The key "" is reserved for barriers.
  std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                    std::chrono::milliseconds timeout) {
    return exchange(key, mine, timeout, {});
  }
  // Like exchange() above, among `ranks` only. `ranks` is in ascending order, contains this rank,
  // and is equal on all these ranks; empty means all ranks.
  virtual std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                            std::chrono::milliseconds timeout,
                                            std::span<const int> ranks) = 0;
  // The same, until a stop is requested: then the exchange throws Error(aborted) with `why` on all
  // its ranks, also on those that call it later, unless it is complete.
  virtual std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                            std::chrono::milliseconds timeout,
                                            std::span<const int> ranks, const std::stop_token& stop,
                                            std::string_view why) = 0;
  // Ends this rank's exchanges and gets whose (first) key begins with `prefix`, now and until the
  // prefix is released, with Error(aborted). Does not block. Other ranks still wait for this one.
  virtual void interrupt(std::string_view prefix) = 0;
  // Sends a question to every rank, this one included, waits for at most `timeout`, and returns the
  // answers by rank. A rank answers with its answerer, or with "" without one, on the thread that
  // reads its connection, so it answers even while it computes or hangs. A name has at most 256
  // bytes. Throws Error(timeout) if the store does not answer.
  virtual std::vector<Answered> ask(std::string_view name, std::string_view detail,
                                    std::chrono::milliseconds timeout) = 0;
  // Sends `value` to every rank as a question `name` without an answer, unless a rank has announced
  // another value under this name before. Waits until the store has the message, and returns the
  // value that was announced first. Without a `timeout`, returns `value` and does not wait. A name
  // is forgotten as a key is (release()).
  virtual std::string announce(std::string_view name, std::string_view value,
                               std::chrono::milliseconds timeout) = 0;
  // Sets the function that answers questions; it must not block or call the store. An empty
  // function removes it and waits for a call in progress.
  virtual void answer_with(Answerer answerer) = 0;
  // Declares on every rank that the job has failed for this reason.
  virtual void fail(std::string_view reason) noexcept = 0;
  // Leaves the job: from now on, the end of this rank's connection is not a failure. If `told`, the
  // other ranks learn of the departure.
  virtual void farewell(bool told = false) noexcept = 0;
  // Records `why` as the failure of the job on this rank alone, and runs the callbacks on this
  // thread.
  virtual void end(const Error& why) = 0;
};

// Makes the store of a job of one process: a map in memory. The process answers for all ranks of a
// simulated job: exchanges return its value for every rank.
std::unique_ptr<Store> make_solo_store(std::shared_ptr<Failure> failure, int size = 1);

}  // namespace atoll_v1::atoll::store
