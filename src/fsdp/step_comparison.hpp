// Compares the values of a step between the ranks of an engine: collectives succeed even if ranks
// use different values.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/rank_set.hpp"
#include "flight/flight.hpp"

namespace atoll_v1::atoll::fsdp {

// Compares the number of micro batches of each step.
//
// A rank that keeps its number compares nothing and does not wait. A rank that changes its number
// waits until all ranks have changed theirs, and meanwhile asks the other ranks for their numbers.
// Ranks answer on the thread that reads their connection to the store.
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
  int agreed_ = 0;         // the last number of micro batches that all ranks have compared
  std::mutex mutex_;       // guards the members below, which respond() uses on another thread
  Record record_;
  std::optional<Heard> heard_;  // record of the last rank that asked
};

// The values that ranks pass to Optimizer::step().
struct StepValues {
  float learning_rate, gradient_scale;
};

// Different values would make replicas diverge without an error. An exchange in every step would
// cost too much, so the steps 1, 2, 4, ..., 1024 and then every 1024th step compare the values of
// all steps since the last comparison. With ATOLL_CHECK every step compares.
class StepComparison {
 public:
  // `ranks` must outlive this object.
  explicit StepComparison(const RankSet& ranks);

  // Calls `check`, which throws if this rank cannot make the step, and adds the values of the step.
  // In a step that compares, blocks until all ranks have called add(). If `check` has thrown on a
  // rank, every rank throws that error; if values differ, every rank throws Error(mismatch). After
  // an error the step does not count, so ranks that try again compare again.
  void add(const StepValues& values, const std::function<void()>& check);

 private:
  bool is_due(std::uint64_t step) const noexcept;

  const RankSet& ranks_;
  const bool every_step_;
  std::uint64_t steps_ = 0;        // number of steps so far
  std::vector<StepValues> since_;  // values of the steps after the last comparison
};

}  // namespace atoll_v1::atoll::fsdp
