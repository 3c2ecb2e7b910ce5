// Flight recorder of one World: owns the ring buffer, writes flight files, answers other ranks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "atoll/world.hpp"
#include "core/socket.hpp"
#include "flight/questions.hpp"
#include "flight/recorder.hpp"
#include "flight/signals.hpp"

namespace atoll_v1::atoll {

class Flight {
 public:
  // Returns the flight recorder of the World. The first call creates it; it is destroyed with the
  // World.
  static std::shared_ptr<Flight> of(World& world);

  explicit Flight(World& world);
  ~Flight();
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  FlightRecorder& recorder() noexcept { return recorder_; }
  Questions& questions() noexcept { return questions_; }
  FlightLog log(std::string_view reason) const;
  // Writes the flight file. Throws Error(io); Error(invalid_argument) if Config::flight is empty.
  void write(std::string_view reason);
  // Records the failure of the job or of a communicator, which the thread then writes into the
  // flight file. Ignores a communicator that fails within a second after another failure, because
  // one lost rank ends several communicators.
  void fail(const Error& error, bool of_job = false);
  // Call this after a failure. Waits up to a second until the file is written, because a program
  // may exit as soon as its collective throws. Returns at once when Config::flight is empty.
  void await_written();

 private:
  std::vector<RawStack> take_stacks() const;
  void serve();  // main loop of thread_, which exists only when Config::flight is set
  void wake(std::uint64_t value) const noexcept;

  const int rank_;
  const int size_;
  const std::string host_;
  const std::string path_;  // path of the flight file; empty when no file is written
  const int stack_signal_;
  FlightRecorder recorder_;
  Questions questions_;
  mutable std::mutex mutex_;  // guards the members between this one and writing_
  std::condition_variable changed_;
  std::string failure_;
  std::chrono::steady_clock::time_point failed_at_{};  // time of failure_
  std::vector<RawStack> stacks_;                       // stacks of the threads at the failure
  bool failure_written_ = false;
  bool is_writing_ = false;
  bool ending_ = false;
  std::mutex writing_;  // held while the flight file is written
  net::Fd event_;
  std::unique_ptr<FlightSignal> signal_;
  std::jthread thread_;
  World::Subscription subscription_;
};

}  // namespace atoll_v1::atoll
