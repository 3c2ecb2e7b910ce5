// Runs the operations of one communicator in the order of their calls, even on different streams.
#pragma once

#include <algorithm>
#include <vector>

#include "device/backend.hpp"
#include "world/process_failure.hpp"

namespace atoll_v1::atoll {

class StreamOrder {
 public:
  // Call this before an operation is enqueued on `stream`. If the previous operation is on another
  // stream, `stream` waits for it.
  void enter(Stream& stream) {
    if (!last_stream_ || last_stream_ == &stream.backend()) return;
    std::erase_if(earlier_, happened);
    earlier_.push_back(last_event_);
    stream.wait(last_event_);
  }
  // Call this after an operation is enqueued. `event` happens when the operation is complete.
  void leave(Stream& stream, const Event& event) {
    last_event_ = event;
    last_stream_ = &stream.backend();
  }
  const Event& last() const { return last_event_; }
  // Returns true when every operation has ended, successfully or with a failure.
  bool is_idle() const { return happened(last_event_) && std::ranges::all_of(earlier_, happened); }
  // Blocks the host until every operation has ended, successfully or with a failure.
  void wait_until_idle() const {
    const IgnoringErrors ignoring;  // the World has failed, or the operations were aborted
    const auto wait = [](const Event& event) {
      try {
        event.synchronize();
      } catch (...) {
        // A failure is ignored here, because the Work of the failed operation reports it.
      }
    };
    for (const Event& event : earlier_) wait(event);
    wait(last_event_);
  }

 private:
  static bool happened(const Event& event) { return !event.backend() || event.backend()->peek(); }

  const StreamBackend* last_stream_ = nullptr;
  Event last_event_;
  // The last events on earlier streams. wait_until_idle() needs them because a failed stream does
  // not wait for the events of other streams.
  std::vector<Event> earlier_;
};

}  // namespace atoll_v1::atoll
