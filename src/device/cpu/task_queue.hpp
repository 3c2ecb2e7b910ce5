// The lock-free part of a CPU stream's queue: a linked list with one producer at a time, the thread
// that calls the stream, and one consumer, the thread that is the executor. Counters show whether
// the list is empty.
//
// The producer publishes its task before it checks whether an executor is active. An executor that
// stops publishes this before it checks for tasks, and so does a worker that goes to sleep. All
// these accesses are sequentially consistent, so at least one side sees the other.
//
// The structure is a template over the atomic type, so that tests/litmus can run exactly this code
// on a model of weak memory. `Node` has a member `next`, an Atomic<Node*>.
#pragma once

#include <atomic>
#include <cstdint>

namespace atoll_v1::atoll::cpu {

// State of the worker while it has no tasks.
enum class Rest {
  none,
  dozing,
  sleeping
};

template <template <class> class Atomic, class Node>
struct TaskQueueOf {
  // The list begins with `node`, which counts as a task that has been taken.
  explicit TaskQueueOf(Node* node) : last(node) {}

  // For the producer: appends a task. Returns true if the caller must wake the worker. An active
  // executor needs no wake-up, because it checks the queue again when it stops.
  bool push(Node* node) {
    last->next.store(node, std::memory_order_release);
    last = node;
    pushed.store(pushed.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
    return !executing.load(std::memory_order_seq_cst) &&
           rest.load(std::memory_order_seq_cst) == Rest::sleeping;
  }

  // For the executor: takes the task after `before`, the task that was taken last.
  Node& take(const Node& before) {
    Node& node = *before.next.load(std::memory_order_acquire);
    taken.store(taken.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    return node;
  }
  // Becomes the executor unless there is one, and runs tasks by execute_next() until enough() is
  // true or the queue is empty. wake() wakes the worker for the tasks that remain.
  template <class Enough, class Execute, class Wake>
  void help(const Enough& enough, const Execute& execute_next, const Wake& wake) {
    while (!empty() && take_role()) {
      bool has_enough = false;
      while (!empty() && !(has_enough = enough())) execute_next();
      executing.store(false, std::memory_order_seq_cst);
      if (!has_enough) continue;  // checks again: a new task may have come without a wake-up
      if (!empty()) wake();       // so that the worker runs the remaining tasks
      return;
    }
  }

  // For the worker: publishes its state. The worker calls this before it checks the queue.
  void show(Rest how) { rest.store(how, std::memory_order_seq_cst); }

  std::uint64_t count() const { return pushed.load(std::memory_order_seq_cst); }
  bool empty() const { return taken.load(std::memory_order_seq_cst) == count(); }
  bool has_executor() const { return executing.load(std::memory_order_seq_cst); }
  bool ready() const { return !empty() && !has_executor(); }

  bool take_role() {
    return !executing.load(std::memory_order_relaxed) &&
           !executing.exchange(true, std::memory_order_seq_cst);
  }

  // Only the producer writes the following members. They have their own cache line.
  alignas(64) Atomic<std::uint64_t> pushed{0};
  Node* last;  // the task that was pushed last

  // Only the executor, or a thread that tries to become it, writes the following members. They have
  // their own cache line.
  alignas(64) Atomic<std::uint64_t> taken{0};
  Atomic<bool> executing{false};  // true while some thread is the executor

  alignas(64) Atomic<Rest> rest{Rest::none};
};

}  // namespace atoll_v1::atoll::cpu
