// The control blocks of a host. A reader gets complete adverts (the operation and the buffers that
// a rank publishes at a step), and their owner overwrites them only after all ranks have read them.
// No wake-up is lost. A rank that finishes and then closes does not count as lost. Each job of a
// step runs once, after all ranks have arrived and before the step ends.
#include "litmus.hpp"
// Must follow litmus.hpp, which includes relacy.
#include "collectives/shared_memory/lock_free.hpp"

namespace {

using atoll_collectives::BellOf;
using atoll_collectives::ProgressOf;
using atoll_collectives::SharedWorkOf;
using atoll_collectives::Sleeper;
using litmus::Atomic;
using litmus::Plain;

// Two ranks run steps together. Each has two adverts, which it uses in turn, as in LocalSync.
struct AdvertTest : litmus::Test<AdvertTest, 2> {
  static constexpr unsigned steps = 3;

  std::array<ProgressOf<Atomic>, 2> progress;
  std::array<std::array<Plain<unsigned>, 2>, 2> adverts;

  void thread(unsigned self) {
    for (unsigned step = 1; step <= steps; ++step) {
      adverts[self][step & 1].set(step);
      progress[self].arrive(step, [] {});
      while (progress[1 - self].position() < step) litmus::yield();
      LITMUS_CHECK(adverts[1 - self][step & 1].get() == step);
    }
  }
};

// Two ranks run steps together. A rank that waits sleeps without spinning first.
struct SleepTest : litmus::Test<SleepTest, 2> {
  static constexpr unsigned steps = 2;

  std::array<ProgressOf<Atomic>, 2> progress;
  std::array<BellOf<Atomic>, 2> bells;
  std::array<litmus::Futex, 2> futexes;

  void thread(unsigned self) {
    const unsigned other = 1 - self;
    for (unsigned step = 1; step <= steps; ++step) {
      progress[self].arrive(
          step, [&] { bells[other].ring_sleeper([&](Sleeper) { futexes[other].wake(); }); });
      const auto done = [&] { return progress[other].position() >= step; };
      while (!done()) {
        bells[self].sleep_until(done,
                                [&](auto ticket) { futexes[self].wait(bells[self].rung, ticket); });
      }
    }
  }
};

// A rank waits for bytes in a ring: it takes a ticket, looks for bytes, announces its sleep and
// sleeps.
struct BellTest : litmus::Test<BellTest, 2> {
  static constexpr unsigned events = 2;

  Atomic<unsigned> written;
  BellOf<Atomic> bell;
  litmus::Futex futex;

  void thread(unsigned index) {
    if (index == 0) {
      for (unsigned i = 1; i <= events; ++i) {
        written.store(i, std::memory_order_release);
        bell.ring([&](Sleeper) { futex.wake(); });
      }
      return;
    }
    while (true) {
      const std::uint32_t ticket = bell.ticket();
      if (written.load(std::memory_order_acquire) == events) return;
      if (bell.arm(ticket, Sleeper::futex)) futex.wait(bell.rung, ticket);
      bell.disarm();
    }
  }
};

// A rank arrives and then closes its inbox.
struct ClosingTest : litmus::Test<ClosingTest, 2> {
  ProgressOf<Atomic> progress;
  Atomic<std::uint32_t> closed;

  void thread(unsigned index) {
    if (index == 0) {
      progress.arrive(1, [] {});
      closed.store(1, std::memory_order_seq_cst);
    } else {
      LITMUS_CHECK(!progress.has_left(closed, 1));
    }
  }
};

// Steps whose jobs any rank may perform. A job reads the buffers of all ranks, and after the step
// each rank reads the results and changes its buffer. Ranks that wait for jobs sleep without
// spinning first.
struct JobsTest : litmus::Test<JobsTest, 2> {
  static constexpr unsigned ranks = 2;
  static constexpr unsigned steps = 2;
  static constexpr unsigned jobs = 3;

  std::array<ProgressOf<Atomic>, ranks> progress;
  std::array<BellOf<Atomic>, ranks> bells;
  std::array<litmus::Futex, ranks> futexes;
  SharedWorkOf<Atomic> work;
  std::array<Plain<unsigned>, ranks> buffers;
  std::array<Plain<unsigned>, jobs> results;

  static constexpr std::uint64_t position(unsigned step, unsigned phase) {
    return step * 16 + phase;
  }

  void thread(unsigned self) {
    for (unsigned step = 1; step <= steps; ++step) {
      buffers[self].set(step);
      progress[self].arrive(position(step, 1), [] {});
      while (progress[1 - self].position() < position(step, 1)) litmus::yield();
      perform(step);
      await_jobs(self, step);
      for (const auto& result : results) LITMUS_CHECK(result.get() == ranks * step);
    }
  }

  void perform(unsigned step) {
    while (true) {
      const auto job = work.claim(position(step, 0), position(step, jobs));
      if (job < 0) return;
      results[static_cast<std::size_t>(job)].set(buffers[0].get() + buffers[1].get());
      work.finish(position(step, 0));
    }
  }

  void await_jobs(unsigned self, unsigned step) {
    const auto done = [&] { return work.all_done(position(step, jobs)); };
    while (!done()) {
      bells[self].sleep_until(done,
                              [&](auto ticket) { futexes[self].wait(bells[self].rung, ticket); });
    }
    const unsigned other = 1 - self;
    bells[other].ring_sleeper([&](Sleeper) { futexes[other].wake(); });
  }
};

// A lost wake-up leaves one rank asleep forever, which relacy reports as a deadlock.
template <class Test>
void break_wake_ups(litmus::Runner& run, const char* test) {
  using enum std::memory_order;
  const auto name = [&](const char* what) { return std::string(test) + ": " + what; };
  run.breaks<Test>(name("sleep announced by a release store").c_str(), [](Test& t) {
    for (auto& bell : t.bells) bell.sleeper.lower_stores(release);
  });
}

void adverts(litmus::Runner& run) {
  using enum std::memory_order;
  run.holds<AdvertTest>("adverts", 50000);
  run.breaks<AdvertTest>("adverts: `reached` stored relaxed",
                         [](AdvertTest& t) { t.progress[0].reached.lower_stores(relaxed); });
  run.breaks<AdvertTest>("adverts: `reached` loaded relaxed",
                         [](AdvertTest& t) { t.progress[0].reached.lower_loads(relaxed); });
}

void sleeps(litmus::Runner& run) {
  using enum std::memory_order;
  run.holds<SleepTest>("sleep", 50000);
  break_wake_ups<SleepTest>(run, "sleep");
  run.breaks<SleepTest>("sleep: `reached` stored with release", [](SleepTest& t) {
    for (auto& progress : t.progress) progress.reached.lower_stores(release);
  });
  run.breaks<SleepTest>("sleep: `reached` loaded with acquire", [](SleepTest& t) {
    for (auto& progress : t.progress) progress.reached.lower_loads(acquire);
  });
  run.breaks<SleepTest>("sleep: `sleeper` loaded with acquire", [](SleepTest& t) {
    for (auto& bell : t.bells) bell.sleeper.lower_loads(acquire);
  });
  run.holds<BellTest>("bell", 50000);
  run.breaks<BellTest>("bell: sleep announced by a release store",
                       [](BellTest& t) { t.bell.sleeper.lower_stores(release); });
  run.breaks<BellTest>("bell: rung with acquire and release",
                       [](BellTest& t) { t.bell.rung.lower_changes(acq_rel); });
  run.breaks<BellTest>("bell: checked with acquire before the sleep",
                       [](BellTest& t) { t.bell.rung.lower_loads(acquire); });
}

void closing(litmus::Runner& run) {
  using enum std::memory_order;
  run.holds<ClosingTest>("closing", 50000);
  run.breaks<ClosingTest>("closing: `closed` loaded relaxed and `reached` with acquire",
                          [](ClosingTest& t) {
                            t.closed.lower_loads(relaxed);
                            t.progress.reached.lower_loads(acquire);
                          });
}

void jobs(litmus::Runner& run) {
  using enum std::memory_order;
  run.holds<JobsTest>("jobs", 30000);
  break_wake_ups<JobsTest>(run, "jobs");
  run.breaks<JobsTest>("jobs: claimed in two steps",
                       [](JobsTest& t) { t.work.claimed.tear_changes(); });
  run.breaks<JobsTest>("jobs: counted in two steps",
                       [](JobsTest& t) { t.work.done.tear_changes(); });
  run.breaks<JobsTest>("jobs: `done` counted with acquire and release",
                       [](JobsTest& t) { t.work.done.lower_changes(acq_rel); });
  run.breaks<JobsTest>("jobs: `done` counted relaxed",
                       [](JobsTest& t) { t.work.done.lower_changes(relaxed); });
  run.breaks<JobsTest>("jobs: `done` loaded relaxed",
                       [](JobsTest& t) { t.work.done.lower_loads(relaxed); });
}

}  // namespace

int main() {
  litmus::Runner run;
  adverts(run);
  sleeps(run);
  closing(run);
  jobs(run);
  return run.status();
}
