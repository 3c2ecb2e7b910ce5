#include "simulation/timeline.hpp"

#include <algorithm>
#include <limits>

#include "core/errors.hpp"

namespace atoll_v1::atoll::simulated {
namespace {

// Remaining times of a task below this, in seconds, are rounding errors.
constexpr double nothing = 1e-13;
constexpr double polling = 1e-6;  // CPU time of one call of poll(), in seconds
constexpr double never = std::numeric_limits<double>::infinity();

bool runs(const TimedTask& task) { return task.start && !task.end; }

// Whether work occupies a fixed fraction of the compute units while it runs.
bool holds_units(const Use& use) { return use.compute > 0 && use.compute < 1; }

// The sum of Use over all running tasks. Work that occupies only a fraction of the compute units
// counts in `held`; `total.compute` sums the other work.
struct Load {
  Use total{};
  double held = 0;  // fraction of the compute units that is occupied
};

// Sums the use of the tasks whose latency is over.
Load load_of(const std::vector<std::shared_ptr<Queue>>& queues) {
  Load load;
  for (const auto& queue : queues) {
    if (queue->tasks.empty()) continue;
    const TimedTask& task = *queue->tasks.front();
    if (!runs(task) || task.latency_left > nothing) continue;
    const Use& use = task.work.use;
    (holds_units(use) ? load.held : load.total.compute) += use.compute;
    load.total.memory += use.memory;
    load.total.intra += use.intra;
    load.total.inter += use.inter;
  }
  return load;
}

// Returns the compute speed of a task beside others, as a fraction of its speed when it runs alone.
double compute_speed(const TimedWork& work, const Load& load) {
  if (work.use.compute <= 0) return 1;
  if (holds_units(work.use)) return load.held > 1 ? 1 / load.held : 1;
  double left = std::max(0.0, 1 - load.held);
  if (load.held > 0) left = std::min(left, work.crowded_speed);
  return left / std::max(1.0, load.total.compute);
}

// Returns the speed of a task among others: tasks share each other resource in proportion to their
// use of it.
double speed(const TimedWork& work, const Load& load) {
  double speed = compute_speed(work, load);
  const auto limit = [&](double mine, double all) {
    if (mine > 0 && all > 1) speed = std::min(speed, 1 / all);
  };
  limit(work.use.memory, load.total.memory);
  limit(work.use.intra, load.total.intra);
  limit(work.use.inter, load.total.inter);
  return speed;
}

}  // namespace

std::shared_ptr<Queue> Timeline::add_queue() {
  const std::lock_guard lock(mutex_);
  return queues_.emplace_back(std::make_shared<Queue>());
}

void Timeline::remove_queue(const std::shared_ptr<Queue>& queue) {
  const std::lock_guard lock(mutex_);
  if (!queue->tasks.empty()) advance_to(*queue->tasks.back());
  std::erase(queues_, queue);
}

std::shared_ptr<TimedTask> Timeline::push(Queue& queue, TimedTask task, bool launches) {
  const std::lock_guard lock(mutex_);
  if (launches) host_ += launch_;
  task.enqueued = host_;
  task.latency_left = task.work.latency;
  task.left = task.work.seconds;
  std::erase_if(task.after, [](const auto& other) { return other->end.has_value(); });
  return queue.tasks.emplace_back(std::make_shared<TimedTask>(std::move(task)));
}

bool Timeline::poll(const TimedTask& task) {
  const std::lock_guard lock(mutex_);
  host_ += polling;
  while (!task.end && now_ < host_) {
    if (!start_and_end_ready()) advance(host_);
  }
  return task.end.has_value();
}

std::optional<double> Timeline::end_of(const TimedTask& task) const {
  const std::lock_guard lock(mutex_);
  return task.end;
}

void Timeline::await(const TimedTask& task) {
  const std::lock_guard lock(mutex_);
  advance_to(task);
}

double Timeline::exposed(const Queue& queue) const {
  const std::lock_guard lock(mutex_);
  return queue.exposed;
}

double Timeline::host_time() const {
  const std::lock_guard lock(mutex_);
  return host_;
}

void Timeline::spend(double seconds) {
  const std::lock_guard lock(mutex_);
  host_ += seconds;
}

void Timeline::advance_to(const TimedTask& task) {
  while (!task.end) {
    if (!start_and_end_ready()) advance(never);
  }
  host_ = std::max(host_, now_);
}

// Starts the first task of each stream if it may start now, and ends the tasks that are done.
// Returns whether a task has ended, so that others may start.
bool Timeline::start_and_end_ready() {
  bool ended = false;
  for (const auto& queue : queues_) {
    while (settle(*queue)) ended = true;
  }
  return ended;
}

bool Timeline::settle(Queue& queue) {
  if (queue.tasks.empty()) return false;
  TimedTask& task = *queue.tasks.front();
  if (!task.start) {
    const auto waits = [](const std::shared_ptr<TimedTask>& other) { return !other->end; };
    if (task.enqueued > now_ || std::ranges::any_of(task.after, waits)) return false;
    task.ready = std::max(queue.ended, task.enqueued);
    task.start = now_;
    if (task.counts_as_exposed) queue.exposed += now_ - task.ready;
    task.after.clear();
  }
  if (task.latency_left > nothing || task.left > nothing) return false;
  task.end = queue.ended = now_;
  queue.tasks.pop_front();
  return true;
}

// Advances the clock to the next moment at which a task ends, its latency is over, or the CPU has
// enqueued a task; at most to `limit`.
void Timeline::advance(double limit) {
  const Load load = load_of(queues_);
  double step = limit - now_;
  for (const auto& queue : queues_) {
    if (queue->tasks.empty()) continue;
    const TimedTask& task = *queue->tasks.front();
    if (!task.start) {
      if (task.enqueued > now_) step = std::min(step, task.enqueued - now_);
    } else if (task.latency_left > nothing) {
      step = std::min(step, task.latency_left);
    } else {
      step = std::min(step, task.left / speed(task.work, load));
    }
  }
  require(step < never, ErrorCode::internal,
          "simulated device: streams wait for each other in a cycle");
  for (const auto& queue : queues_) {
    if (queue->tasks.empty() || !runs(*queue->tasks.front())) continue;
    TimedTask& task = *queue->tasks.front();
    if (task.latency_left > nothing) {
      task.latency_left -= step;
    } else {
      task.left -= step * speed(task.work, load);
    }
  }
  now_ += step;
}

}  // namespace atoll_v1::atoll::simulated
