// The queue of a CPU stream: each task runs once, in order, after it was pushed, by one executor
// at a time, and no task is left while all threads sleep.
#include "litmus.hpp"
// Must follow litmus.hpp, which includes relacy.
#include "device/cpu/task_queue.hpp"

namespace {

using atoll_v1::atoll::cpu::Rest;
using atoll_v1::atoll::cpu::TaskQueueOf;
using litmus::Atomic;
using litmus::Plain;

struct Node {
  Atomic<Node*> next{nullptr};
  Atomic<std::uint32_t> happened;
  Plain<int> number;  // what the task reads
};

// A producer waits for its last task, a worker runs tasks, and if `threads` is 3, another thread
// waits for the first task. If `helps` is true, waiting threads run tasks themselves, as in
// HostEvent.
template <int threads, bool helps>
struct QueueTest : litmus::Test<QueueTest<threads, helps>, threads> {
  static constexpr int tasks = 2;

  std::array<Node, tasks + 1> nodes;
  TaskQueueOf<Atomic, Node> queue{nodes.data()};
  Plain<int> executed;  // number of executed tasks, which only the executor accesses
  Atomic<bool> stopped{false};
  litmus::Futex happening;
  rl::mutex mutex;
  rl::condition_variable_any ready;

  void before() {
    litmus::Test<QueueTest, threads>::before();
    executed.set(0);
  }

  void thread(unsigned index) {
    if (index == 0) {
      produce();
    } else if (index == 1) {
      work();
    } else {
      await(nodes[1]);
    }
  }

  void produce() {
    for (int i = 1; i <= tasks; ++i) {
      Node& node = nodes[static_cast<std::size_t>(i)];
      node.number.set(i);
      if (queue.push(&node)) wake();
    }
    await(nodes[tasks]);
    stopped.store(true, std::memory_order_seq_cst);
    wake();
  }

  void await(Node& node) {
    const auto happened = [&] { return node.happened.load(std::memory_order_acquire) != 0; };
    if (helps && !happened()) {
      queue.help(
          happened, [this] { execute_next(); }, [this] { wake(); });
    }
    while (!happened()) happening.wait(node.happened, 0);
  }

  void execute_next() {
    const int before = executed.get();
    Node& node = queue.take(nodes[static_cast<std::size_t>(before)]);
    LITMUS_CHECK(node.number.get() == before + 1);
    executed.set(before + 1);
    node.happened.store(1, std::memory_order_seq_cst);
    happening.wake();
  }

  void wake() {
    mutex.lock(RL_INFO);
    mutex.unlock(RL_INFO);
    ready.notify_all(RL_INFO);
  }

  void work() {
    const auto has_stopped = [this] { return stopped.load(std::memory_order_seq_cst); };
    while (!has_stopped()) {
      mutex.lock(RL_INFO);
      const auto before = queue.count();
      queue.show(Rest::sleeping);
      while (!queue.ready() && queue.count() == before && !has_stopped()) {
        ready.wait(mutex, RL_INFO);
      }
      queue.show(Rest::none);
      mutex.unlock(RL_INFO);
      queue.help([] { return false; }, [this] { execute_next(); }, [this] { wake(); });
    }
  }

  void after() { LITMUS_CHECK(executed.get() == tasks); }
};

template <class Suite>
void run_test(litmus::Runner& run, const char* test) {
  using enum std::memory_order;
  const auto name = [&](const char* what) { return std::string(test) + ": " + what; };
  run.holds<Suite>(test, 50000);
  run.breaks<Suite>(name("`pushed` stored with release").c_str(),
                    [](Suite& t) { t.queue.pushed.lower_stores(release); });
  run.breaks<Suite>(name("`pushed` stored relaxed").c_str(),
                    [](Suite& t) { t.queue.pushed.lower_stores(relaxed); });
}

}  // namespace

int main() {
  using enum std::memory_order;
  litmus::Runner run;
  using Alone = QueueTest<2, false>;
  run_test<Alone>(run, "worker alone");
  run.breaks<Alone>("worker alone: `rest` stored with release",
                    [](Alone& t) { t.queue.rest.lower_stores(release); });
  run_test<QueueTest<2, true>>(run, "producer helps");
  using Three = QueueTest<3, true>;
  run.holds<Three>("two threads help", 50000);
  run.breaks<Three>("two threads help: role taken in two steps",
                    [](Three& t) { t.queue.executing.tear_changes(); });
  run.breaks<Three>("two threads help: role left with release",
                    [](Three& t) { t.queue.executing.lower_stores(release); });
  run.breaks<Three>("two threads help: role left relaxed",
                    [](Three& t) { t.queue.executing.lower_stores(relaxed); });
  return run.status();
}
