// Shows what a run is doing in phases that take long: loading, evaluating, measuring.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "report/progress.hpp"

namespace train {

// The process of rank 0 has one such object. On a terminal the line "loading weights: 4 s" is
// rewritten each second; a log gets a line after 10 s, and then one a minute.
class PhaseDisplay {
 public:
  struct Intervals {
    std::chrono::milliseconds first, next;  // until the first line of a phase, and between lines
  };
  static Intervals usual(Surface surface);

  // `stream` must outlive this object. With Surface::log, lines go to the log instead. With
  // Surface::terminal, the object replaces the log's sink: a message erases the line, then goes to
  // stderr.
  PhaseDisplay(std::FILE* stream, Surface surface)
      : PhaseDisplay(stream, surface, usual(surface)) {}
  PhaseDisplay(std::FILE* stream, Surface surface, Intervals intervals);
  PhaseDisplay(const PhaseDisplay&) = delete;
  PhaseDisplay& operator=(const PhaseDisplay&) = delete;
  ~PhaseDisplay();

 private:
  friend class Phase;
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::string what;
    Clock::time_point begin, next;  // `next`: when the next line is due
    std::int64_t done = 0, total = 0;
  };
  void run();
  void show(const Entry& entry, Clock::time_point now);
  void erase();

  std::FILE* stream_;
  Surface surface_;
  Intervals intervals_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry> phases_;  // the innermost is last, and is shown
  bool line_open_ = false;     // true while a line of this display is on the terminal
  bool ends_ = false;
  std::thread thread_;
};

// Names what the calling thread does until the end of the scope. Without a display it does nothing,
// as on all ranks but 0. Phases nest. Only one thread of a process may have phases.
class Phase {
 public:
  // A repeated phase, such as a step, waits Intervals::next before its first line too.
  enum class Kind {
    single,
    repeated
  };
  explicit Phase(std::string what, Kind kind = Kind::single);
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;
  ~Phase();
  // `done` of `total` parts are complete.
  void progress(std::int64_t done, std::int64_t total);

 private:
  PhaseDisplay* display_;
};

}  // namespace train
