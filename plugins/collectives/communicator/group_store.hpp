// GroupStore is the store of the job as the ranks of a group use it while they open a communicator:
// keys begin with the id of the group, and all waits end at the deadline of the opening.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "atoll/plugin.h"
#include "collectives/exchange.hpp"

namespace atoll_collectives {

// Replaces an infinite time limit; adding it to a time does not overflow.
constexpr std::chrono::hours no_limit{10'000};

// Reads the value of a key of the store, and waits for the key for `limit_ns` at most. Returns the
// status of the store.
atoll_status read(const atoll_core& core, const std::string& key, std::int64_t limit_ns,
                  std::string& value);

class GroupStore {
 public:
  using Clock = std::chrono::steady_clock;

  // Starts the time limit of the group.
  GroupStore(const atoll_core& core, const atoll_group& group, const Team& team);

  Clock::time_point deadline() const noexcept { return deadline_; }
  // Returns a text such as "opening communicator shard on rank 2 (world rank 5)" for errors.
  std::string opening() const;

  void put(const std::string& key, const std::string& value) const;
  // Waits for a key. `what` names the value in an error: "the address of rank 3". Throws Error at
  // the deadline, and as soon as the job has failed. Pass a `grace`, which extends the deadline,
  // for a value whose publisher itself waits for other ranks until the deadline: if a rank is
  // absent, the publisher's error, which names that rank, then comes first.
  std::string get(const std::string& key, const std::string& what,
                  std::chrono::nanoseconds grace = {}) const;
  // Performs get() of several keys in one round trip to the store. `what(i)` names the value of
  // keys[i] in an error.
  std::vector<std::string> get_all(const std::vector<std::string>& keys,
                                   const std::function<std::string(std::size_t)>& what,
                                   std::chrono::nanoseconds grace = {}) const;
  // Returns the value of a key, or nullopt if it does not exist yet. Throws Error if the job has
  // failed.
  std::optional<std::string> find(const std::string& key) const;

 private:
  std::string path(const std::string& key) const;
  std::int64_t left(std::chrono::nanoseconds grace) const;
  std::vector<std::string> get_at_once(const std::vector<std::string>& keys,
                                       std::chrono::nanoseconds grace, atoll_status& status) const;

  const atoll_core& core_;
  const atoll_group& group_;
  const Team& team_;
  Clock::time_point deadline_;
};

}  // namespace atoll_collectives
