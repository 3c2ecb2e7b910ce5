// The flight recorder of one World: what it records, when it writes, what it tells other ranks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "atoll/world.hpp"
#include "core/socket.hpp"
#include "flight/recorder.hpp"
#include "flight/signal.hpp"

namespace atoll_v1::atoll {

class Flight {
 public:
  // That of the World; made when its first communicator opens, dropped when the World ends.
  static std::shared_ptr<Flight> of(World& world);

  explicit Flight(World& world);
  ~Flight();
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  FlightRecorder& recorder() noexcept { return recorder_; }
  FlightLog log(std::string_view reason) const;
  // Throws Error(io), and Error(invalid_argument) without Config::flight.
  void write(std::string_view reason);
  // After a failure: returns when its file is written, at once without Config::flight, at the
  // latest after a second. A program may end without a further word when its collective has thrown.
  void await_written();

 private:
  void serve();  // a thread, with Config::flight only
  void wake(std::uint64_t value) const noexcept;

  const int rank_;
  const int size_;
  const std::string host_;
  const std::string path_;  // "": nothing is written
  FlightRecorder recorder_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::string failure_;
  bool failure_written_ = false;
  bool ending_ = false;
  std::mutex writing_;
  net::Fd event_;
  std::unique_ptr<FlightSignal> signal_;
  std::jthread thread_;
  World::Subscription subscription_;
};

}  // namespace atoll_v1::atoll
