// The clock of a simulated device: work on its streams takes modelled time, and no work is done.
//
// Each stream is a queue of tasks. A task starts when the task before it on its stream has ended,
// the events that it waits for have happened, and the CPU has enqueued it. Tasks that run at the
// same time slow each other down as far as they share a resource (Use). The timeline advances only
// when the CPU waits or polls, so all tasks that run at a point in time have been enqueued when the
// timeline reaches it.
//
// Times are seconds from the creation of the timeline.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "atoll/planner.hpp"

namespace atoll_v1::atoll::simulated {

class Timeline;

// One task of a stream, and the event that it ends with.
struct TimedTask {
  TimedWork work{};
  double enqueued = 0;                              // time at which the CPU had enqueued the task
  std::vector<std::shared_ptr<TimedTask>> after{};  // tasks of other streams that must end first
  bool counts_as_exposed = false;                   // the wait for `after` is exposed communication
  // Seconds of the latency and of the work after it that are left, if the task runs alone.
  double latency_left = 0, left = 0;
  double ready = 0;  // time at which the task before this one on the stream ends
  std::optional<double> start{}, end{};
};

// The tasks of one stream that have not ended.
struct Queue {
  std::deque<std::shared_ptr<TimedTask>> tasks{};
  double ended = 0;    // time at which the last task ended
  double exposed = 0;  // seconds of exposed communication
};

// Any thread may call any function.
class Timeline : public std::enable_shared_from_this<Timeline> {
 public:
  explicit Timeline(double launch_seconds) : launch_(launch_seconds) {}

  std::shared_ptr<Queue> add_queue();
  void remove_queue(const std::shared_ptr<Queue>& queue);
  // Appends a task. If `launches` is true, the CPU first spends the launch time of the device.
  std::shared_ptr<TimedTask> push(Queue& queue, TimedTask task, bool launches);
  // Advances to the time of the CPU and returns whether the task has ended by that time. Each call
  // takes a microsecond of simulated CPU time, so that a loop that polls ends.
  bool poll(const TimedTask& task);
  // Returns the time at which the task ends, if the timeline has reached it.
  std::optional<double> end_of(const TimedTask& task) const;
  // Advances the time of the simulated CPU to the end of a task.
  void await(const TimedTask& task);
  double exposed(const Queue& queue) const;
  double host_time() const;
  // Adds seconds of other work to the time of the simulated CPU.
  void spend(double seconds);

 private:
  void advance_to(const TimedTask& task);
  bool start_and_end_ready();
  bool settle(Queue& queue);
  void advance(double limit);

  mutable std::mutex mutex_;
  double launch_;
  double now_ = 0;   // time up to which tasks have been simulated; at most host_ between calls
  double host_ = 0;  // time of the CPU, which enqueues and waits
  std::vector<std::shared_ptr<Queue>> queues_;
};

}  // namespace atoll_v1::atoll::simulated
