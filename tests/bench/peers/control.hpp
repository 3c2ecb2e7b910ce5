// The memory that the driver shares with the ranks of one job: what to measure, what came out, and
// the barrier in front of a batch. The same for every implementation, so none times itself.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "row.hpp"

namespace atoll_bench {

constexpr int most_ranks = 16;
constexpr int most_batches = 16;

// Variants of an implementation; which ones there are is a matter of its program.
enum class Variant : std::int32_t {
  usual,
  plain_memory,  // atoll: buffers that are not from atoll::allocate
  waited,        // atoll: every operation is waited for
  streaming,     // limit: stores past the caches
  in_turns,      // limit: after each pass a rank leaves its core to another
  streaming_in_turns,
  library,  // limit: copies by memcpy
  library_in_turns,
};

enum class Order : std::int32_t {
  measure,
  quit
};

struct Request {
  Order order = Order::quit;
  Variant variant = Variant::usual;
  Row row;
  std::int64_t operations = 0;  // of a batch; 0: as many as take `batch_seconds`
  std::int32_t batches = 1;
  double batch_seconds = 0.02;
};

struct Answer {
  std::int64_t operations = 0;
  std::int32_t batches = 0;
  std::array<double, most_batches> seconds{};  // of a batch, the slowest rank
};

// Lies in the shared memory. Zero is the state at the start.
struct Control {
  std::atomic<std::uint32_t> requests;  // counts; ranks sleep on it
  std::atomic<std::uint32_t>
      answers;  // counts, the first: all ranks are there; the driver sleeps on it
  std::atomic<std::uint32_t> failed;    // 1: `error` says why; 2: it is being written
  std::atomic<std::uint32_t> wrong;     // 1: `difference` says which result is; 2: as above
  std::atomic<std::uint32_t> arrived;   // at the barrier
  std::atomic<std::uint32_t> released;  // counts barriers
  std::atomic<std::int64_t> released_ns;
  std::array<std::atomic<std::int64_t>, most_ranks> ended_ns;
  Request request;
  Answer answer;
  std::array<char, 1024> error;
  std::array<char, 1024> difference;
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

// A mapping of a Control, made by the driver, opened by ranks through its path.
class SharedControl {
 public:
  static SharedControl make();
  static SharedControl open(const std::string& path);

  Control& operator*() const { return *control_; }
  Control* operator->() const { return control_.get(); }
  // Good as long as the driver lives; nothing is left behind when it ends.
  const std::string& path() const { return path_; }

 private:
  struct Unmap {
    void operator()(Control* control) const;
  };
  SharedControl(int fd, std::string path);
  std::unique_ptr<Control, Unmap> control_;
  std::string path_;
};

// Wakes after a change of `word` from `seen`, or after the time, or for no reason.
void wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                     std::chrono::milliseconds time);
void wake_all(std::atomic<std::uint32_t>& word);

void fail(Control& control, const std::string& reason);
void report_wrong(Control& control, const std::string& difference);
inline void check(const Control& control) {
  if (control.failed.load() == 1) throw std::runtime_error(control.error.data());
}

// Nanoseconds of the clock that all processes of a machine share.
std::int64_t now_ns();

// Returns when all ranks are here, with the time at which the last one came.
std::int64_t meet(Control& control, int ranks);

}  // namespace atoll_bench
