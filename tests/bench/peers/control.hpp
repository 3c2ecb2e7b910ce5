// Memory that the driver shares with the ranks of one job: the request, the answer, and the barrier
// before each batch. All implementations are timed by this code, so that no implementation times
// itself.
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

// Variants of an implementation. Each rank program supports only the variants of its
// implementation.
enum class Variant : std::int32_t {
  usual,
  plain_memory,  // variant of atoll: buffers that do not come from atoll::allocate
  waited,        // variant of atoll: waits for every operation
  streaming,     // variant of limit: non-temporal stores
  in_turns,      // variant of limit: each rank yields its core after every pass
  streaming_in_turns,
  library,  // variant of limit: copies by memcpy
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
  // Number of operations per batch. 0 means that the ranks choose a number that takes
  // `batch_seconds`.
  std::int64_t operations = 0;
  std::int32_t batches = 1;
  double batch_seconds = 0.02;
};

struct Answer {
  std::int64_t operations = 0;
  std::int32_t batches = 0;
  std::array<double, most_batches> seconds{};  // time of each batch on the slowest rank
};

// The contents of the shared memory. Initially all bytes are zero.
struct Control {
  std::atomic<std::uint32_t> requests;  // number of requests so far; ranks sleep until it changes
  // Number of answers so far; the driver sleeps until it changes. The first answer means that all
  // ranks are ready.
  std::atomic<std::uint32_t> answers;
  // 1 if `error` holds the reason, 2 while `error` is being written.
  std::atomic<std::uint32_t> failed;
  // 1 if `difference` describes a wrong result, 2 while `difference` is being written.
  std::atomic<std::uint32_t> wrong;
  std::atomic<std::uint32_t> arrived;   // number of ranks that have arrived at the barrier
  std::atomic<std::uint32_t> released;  // number of times that all ranks have passed the barrier
  std::atomic<std::int64_t> released_ns;
  std::array<std::atomic<std::int64_t>, most_ranks> ended_ns;
  Request request;
  Answer answer;
  std::array<char, 1024> error;
  std::array<char, 1024> difference;
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

// Maps a Control into this process. The driver creates the memory, and ranks open it through its
// path.
class SharedControl {
 public:
  static SharedControl make();
  static SharedControl open(const std::string& path);

  Control& operator*() const { return *control_; }
  Control* operator->() const { return control_.get(); }
  // Path through which other processes open the memory. The path is valid while the driver runs,
  // and nothing remains when the driver ends.
  const std::string& path() const { return path_; }

 private:
  struct Unmap {
    void operator()(Control* control) const;
  };
  SharedControl(int fd, std::string path);
  std::unique_ptr<Control, Unmap> control_;
  std::string path_;
};

// Waits until `word` no longer has the value `seen`, but at most for `time`. May also return early
// without a reason.
void wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                     std::chrono::milliseconds time);
void wake_all(std::atomic<std::uint32_t>& word);

void fail(Control& control, const std::string& reason);
void report_wrong(Control& control, const std::string& difference);
inline void check(const Control& control) {
  if (control.failed.load() == 1) throw std::runtime_error(control.error.data());
}

// Returns the time in nanoseconds of the monotonic clock, which all processes of a machine share.
std::int64_t now_ns();

// Waits until all ranks have arrived, and returns the arrival time of the last rank.
std::int64_t meet(Control& control, int ranks);

}  // namespace atoll_bench
