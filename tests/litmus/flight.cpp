// Slots of the flight recorder: a reader gets either no record, or a record whose fields all belong
// to one operation. Targets of the signal handler: the handler writes to a descriptor only while
// the descriptor is open, and writes the value of that descriptor.
#include "litmus.hpp"
// Must follow litmus.hpp, which includes relacy.
#include "flight/signal_targets.hpp"
#include "flight/slot.hpp"

namespace {

using atoll_v1::atoll::FlightCallRecord;
using atoll_v1::atoll::FlightRecord;
using atoll_v1::atoll::FlightSlotOf;
using atoll_v1::atoll::FlightState;
using atoll_v1::atoll::SignalTargetsOf;
using litmus::Atomic;

// Returns the call of operation `number`. The number follows from each field.
FlightCallRecord call_of(std::uint64_t number) {
  const auto n = static_cast<std::int16_t>(number + 1);
  return {number + 1, n, number + 1, n, static_cast<std::uint32_t>(n), n, n, n, n, n};
}

void check_record(const FlightRecord& record) {
  LITMUS_CHECK(record.call == call_of(record.number));
}

// One thread records two operations in the same slot, a second thread records their progress, and a
// third thread reads.
struct SlotTest : litmus::Test<SlotTest, 3> {
  FlightSlotOf<Atomic> slot;
  Atomic<unsigned> called;

  void thread(unsigned index) {
    if (index == 0) {
      call();
    } else if (index == 1) {
      perform();
    } else {
      for (int i = 0; i < 2; ++i) read();
    }
  }
  void call() {
    for (unsigned number = 0; number < 2; ++number) {
      slot.enqueue(number, call_of(number));
      called.store(number + 1, std::memory_order_release);
    }
  }
  // Operations start and end in order. The times follow from the number of the operation.
  void perform() {
    for (unsigned number = 0; number < 2; ++number) {
      while (called.load(std::memory_order_acquire) <= number) litmus::yield();
      slot.start(number, number * 10 + 1);
      slot.finish(number, number * 10 + 2, FlightState::completed);
    }
  }
  void read() {
    const auto record = slot.read();
    if (!record) return;
    check_record(*record);
    LITMUS_CHECK((record->state == FlightState::enqueued) == (record->started == 0));
    LITMUS_CHECK((record->state == FlightState::completed) == (record->finished != 0));
  }
};

// Two threads record operations in the same slot, which in the end has a complete record.
struct WritersTest : litmus::Test<WritersTest, 3> {
  FlightSlotOf<Atomic> slot;

  void thread(unsigned index) {
    if (index < 2) {
      slot.enqueue(index, call_of(index));
    } else if (const auto record = slot.read()) {
      check_record(*record);
    }
  }
  void after() {
    const auto record = slot.read();
    LITMUS_CHECK(record.has_value());
    check_record(*record);
  }
};

// One thread opens and closes two descriptors in turn, while handlers run on two threads.
struct TargetsTest : litmus::Test<TargetsTest, 3> {
  static constexpr std::size_t descriptors = 2;

  SignalTargetsOf<Atomic, 1> targets;
  std::array<litmus::Plain<bool>, descriptors> open;

  void thread(unsigned index) {
    if (index == 0) {
      for (std::size_t fd = 0; fd < descriptors; ++fd) change(fd);
    } else {
      targets.handle([this](int fd, std::uint64_t value) {
        LITMUS_CHECK(value == static_cast<std::uint64_t>(fd) + 1);
        LITMUS_CHECK(open[static_cast<std::size_t>(fd)].get());
      });
    }
  }
  void change(std::size_t fd) {
    open[fd].set(true);
    const auto place = targets.add(static_cast<int>(fd), fd + 1);
    LITMUS_CHECK(place.has_value());
    targets.remove(*place, [] { litmus::yield(); });
    open[fd].set(false);
  }
};

void signal_targets(litmus::Runner& run) {
  using enum std::memory_order;
  run.holds<TargetsTest>("signal targets", 50000);
  run.breaks<TargetsTest>("signal targets: descriptor stored with release", [](TargetsTest& t) {
    t.targets.targets[0].eventfd.lower_stores(release);
  });
  run.breaks<TargetsTest>("signal targets: descriptor loaded relaxed", [](TargetsTest& t) {
    t.targets.targets[0].eventfd.lower_loads(relaxed);
  });
  run.breaks<TargetsTest>("signal targets: handler counted with release",
                          [](TargetsTest& t) { t.targets.running.lower_changes(release); });
  run.breaks<TargetsTest>("signal targets: handlers looked for with acquire",
                          [](TargetsTest& t) { t.targets.running.lower_loads(acquire); });
}

// Applies a control to all fields of a slot except `word`, which has controls of its own.
template <class Slot, class Control>
void each_field(Slot& slot, const Control& control) {
  for (auto& field : slot.call) control(field);
  control(slot.started);
  control(slot.finished);
}

template <class Suite>
void fields(litmus::Runner& run, const char* test) {
  using enum std::memory_order;
  const auto name = [&](const char* what) { return std::string(test) + ": " + what; };
  run.breaks<Suite>(name("fields stored relaxed").c_str(), [](Suite& t) {
    each_field(t.slot, [](auto& field) { field.lower_stores(relaxed); });
  });
  run.breaks<Suite>(name("fields loaded relaxed").c_str(), [](Suite& t) {
    each_field(t.slot, [](auto& field) { field.lower_loads(relaxed); });
  });
  run.breaks<Suite>(name("`word` stored relaxed").c_str(),
                    [](Suite& t) { t.slot.word.lower_stores(relaxed); });
}

}  // namespace

int main() {
  using enum std::memory_order;
  litmus::Runner run;
  run.holds<SlotTest>("slot", 200000);
  fields<SlotTest>(run, "slot");
  run.breaks<SlotTest>("slot: state exchanged relaxed",
                       [](SlotTest& t) { t.slot.word.lower_changes(relaxed); });
  run.holds<WritersTest>("two writers", 200000);
  fields<WritersTest>(run, "two writers");
  run.breaks<WritersTest>("two writers: claimed in two steps",
                          [](WritersTest& t) { t.slot.word.tear_changes(); });
  signal_targets(run);
  return run.status();
}
