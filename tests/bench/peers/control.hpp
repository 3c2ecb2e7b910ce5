// Memory that the driver shares with the ranks of one job: the request, the answer, and the barrier
// in front of a batch. All implementations use it, so none times itself.
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

// Variants of an implementation. Each rank program supports only its own.
enum class Variant : std::int32_t {
  usual,
  plain_memory,  // atoll: buffers that are not from atoll::allocate
  waited,        // atoll: waits for every operation
  streaming,     // limit: non-temporal stores
  in_turns,      // limit: each rank yields its core after every pass
  streaming_in_turns,
  library,  // limit: copies with memcpy
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
  std::int64_t operations = 0;  // operations per batch; 0 means enough to fill `batch_seconds`
  std::int32_t batches = 1;
  double batch_seconds = 0.02;
};

struct Answer {
  std::int64_t operations = 0;
  std::int32_t batches = 0;
  std::array<double, most_batches> seconds{};  // time of each batch on the slowest rank
};

// The contents of the shared memory. All zero is the initial state.
struct Control {
  std::atomic<std::uint32_t> requests;  // number of requests; ranks sleep until it changes
  // Number of answers; the driver sleeps until it changes. The first answer means that all ranks
  // are ready.
  std::atomic<std::uint32_t> answers;
  std::atomic<std::uint32_t> failed;    // 1 when `error` holds the reason, 2 while it is written
  std::atomic<std::uint32_t> wrong;     // 1 when `difference` holds a wrong result, 2 as above
  std::atomic<std::uint32_t> arrived;   // ranks that have arrived at the barrier
  std::atomic<std::uint32_t> released;  // number of completed barriers
  std::atomic<std::int64_t> released_ns;
  std::array<std::atomic<std::int64_t>, most_ranks> ended_ns;
  Request request;
  Answer answer;
  std::array<char, 1024> error;
  std::array<char, 1024> difference;
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

// A mapping of a Control. The driver creates it, and ranks open it through its path.
class SharedControl {
 public:
  static SharedControl make();
  static SharedControl open(const std::string& path);

  Control& operator*() const { return *control_; }
  Control* operator->() const { return control_.get(); }
  // Valid while the driver lives. Nothing remains when the driver ends.
  const std::string& path() const { return path_; }

 private:
  struct Unmap {
    void operator()(Control* control) const;
  };
  SharedControl(int fd, std::string path);
  std::unique_ptr<Control, Unmap> control_;
  std::string path_;
};

// Returns after `word` changes from `seen`, after `time`, or spuriously.
void wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                     std::chrono::milliseconds time);
void wake_all(std::atomic<std::uint32_t>& word);

void fail(Control& control, const std::string& reason);
void report_wrong(Control& control, const std::string& difference);
inline void check(const Control& control) {
  if (control.failed.load() == 1) throw std::runtime_error(control.error.data());
}

// Nanoseconds of the monotonic clock, which all processes of a machine share.
std::int64_t now_ns();

// Returns when all ranks have arrived, with the arrival time of the last one.
std::int64_t meet(Control& control, int ranks);

}  // namespace atoll_bench
