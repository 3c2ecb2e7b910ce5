// Compares the number of micro batches of each step between the ranks of an engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flight/flight.hpp"
#include "world/rank_set.hpp"

namespace atoll_v1::atoll::fsdp {

// A rank that keeps its number compares nothing and does not wait. A rank that changes its number
// waits until all ranks have changed theirs, and meanwhile asks the other ranks for their numbers.
// They answer on the thread that reads their connection to the store.
//
// A rank waits in each step that changes its number until every rank has begun that step. So a rank
// can be at most one change ahead of another, and one earlier number is enough to derive the number
// of each step that another rank asks about.
class MicroCount {
 public:
  explicit MicroCount(const RankSet& ranks);
  ~MicroCount();
  MicroCount(const MicroCount&) = delete;
  MicroCount& operator=(const MicroCount&) = delete;

  // Begins the next step, with `number` micro batches. All ranks must make this call. Throws
  // Error(mismatch) with two ranks and their numbers if the numbers differ. If only some ranks have
  // changed theirs, the job fails with the same text, because the other ranks wait in a collective
  // of the step. Throws Error(timeout) or Error(peer_lost) if ranks do not begin the step.
  void begin_step(int number);

 private:
  // The numbers of a rank. Before the step `changed` it had `before` micro batches, and `number`
  // from then on. Steps count from 1.
  struct Record {
    std::uint64_t step = 0;
    int number = 0;
    std::uint64_t changed = 0;
    int before = 0;

    int number_in(std::uint64_t step_) const { return step_ < changed ? before : number; }
    std::string encode(int rank) const;
  };
  // A record that another rank has sent with its question or answer.
  struct Heard {
    int rank;
    Record record;
  };
  static std::optional<Heard> decode(std::string_view text);

  std::string respond(std::string_view question);
  void compare_first(int number);
  void compare_change(const Record& mine);
  // Returns true when all ranks have changed to the same number; false if some have not arrived
  // within `pause`.
  bool meet(const Record& mine, std::chrono::milliseconds pause);
  // Asks every rank for its record. Returns the ranks that have not begun the step. Fails if a rank
  // has begun it with another number.
  std::vector<int> ask(const Record& mine);
  // Fails the job and throws, because another rank has another number in the same step.
  [[noreturn]] void fail(const Record& mine, int other_rank, int other_number);

  const RankSet ranks_;  // the ranks of the engine
  const std::shared_ptr<Flight> flight_;
  const std::string key_;  // a store key that is equal on the ranks of this engine, and only there
  int agreed_ = 0;         // the last number that all ranks have compared
  std::mutex mutex_;       // guards the members below, which respond() uses on another thread
  Record record_;
  std::optional<Heard> heard_;  // the last rank that asked
};

}  // namespace atoll_v1::atoll::fsdp
