// The inside of a Communicator: one open group of one backend, and the order of its operations.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/plugin.h"
#include "comm/registry/registry.hpp"

namespace atoll_v1::atoll {

// One operation of the plugin table, in the terms of this side of it.
struct Request {
  std::int32_t kind;
  ConstView src;
  View dst;
  std::uint64_t count;  // as plugin.h counts for this kind
  DType dtype;
  Reduction reduction = ReduceOp::sum;
  int peer = 0;
  std::vector<std::uint64_t> counts{};  // of the _v forms
  std::int32_t part_of =
      -1;  // kind of the collective that was called, when core builds that of this
};

// Complete when `event` has happened; `error` is set before that, if at all.
struct Work::State {
  Event event;
  std::optional<Request> request;  // where there is one, and until it has run
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::optional<Error> error;

  void fail(const Error& reason);
  void check();  // throws the error, if it is known
};

// Sums of an axis in two levels, inside each host and then across them, that are the same tree as
// in one.
struct Levels {
  int inner;        // ranks of a host, neighbours on the axis
  int inner_block;  // block of the tree inside the host, and of the one across; 0: none
  int outer_block;
};

// Memory that operations of a communicator use one after the other.
class Scratch {
 public:
  View take(const Device& device, std::uint64_t count, DType dtype) {
    const std::uint64_t bytes = count * size_of(dtype);
    const std::uint64_t before = buffers_.empty() ? 0 : buffers_.back().bytes();
    if (before < bytes) buffers_.push_back(device.allocate(std::max(bytes, 2 * before)));
    return buffers_.back().view(dtype).part(0, count);
  }

 private:
  std::vector<Buffer> buffers_;  // the last is the largest; the others may still be in use
};

class Flight;       // flight.hpp
struct FlightLane;  // flight_recorder.hpp
class Launched;     // launched.hpp
class TwoLevel;     // two_level.hpp

struct Communicator::Impl : std::enable_shared_from_this<Communicator::Impl> {
  Impl(const Axis& axis, CommunicatorOptions options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Enqueues the requests as one group of the backend, behind every earlier operation of this
  // communicator. A failure is stored in `state`, fails the World and the stream.
  void submit(std::vector<Request> requests, const std::shared_ptr<Work::State>& state,
              Stream& stream);
  // True when the backend does this itself, and in the order of sums that was asked for.
  bool takes(std::int32_t kind, DType dtype, ReduceOp op) const;
  // Starts an operation on `stream`: argument and World are fine, order with other streams is made.
  std::shared_ptr<Work::State> begin(Stream& stream);
  // Tells a checker what the request, which `stream` will run next, does to memory.
  void tell_use(const Request& request, Stream& stream) const;
  Work finish(std::shared_ptr<Work::State> state, Stream& stream);
  // begin(), submit() of one request and finish().
  Work perform(Request request, Stream& stream);

  // Scratch of the composed reductions: at least `bytes`, the same for all of them, since
  // operations of a communicator run in order.
  View scratch(std::uint64_t count, DType dtype);

  // Registered memory that is gone: any thread, also one that executes a stream, may say so. The
  // backend, which takes one caller at a time, hears of it before the next operation, or, where it
  // does not want to, when it is closed. The memory is kept until then: NCCL wants windows to go
  // first, and nothing else is met at the same address.
  void retire(std::shared_ptr<void> memory);
  void deregister_retired();

  // `parent`: as CommunicatorOptions has it.
  void open_backend(const Impl* parent = nullptr);
  atoll_status open_group(atoll_group& group);
  // The part of a rank that gets none, where the backend splits.
  void watch_split() const;
  atoll_status split_group(const Impl& parent, atoll_group& group);
  // False where the order of sums that was asked for is not a backend's, and core has to make it.
  bool leaves_order(const atoll_group& group) const;
  // Until everything that was enqueued is done, however it ended.
  void wait_until_idle() const;
  // Once `comm` is open on `plugin`, however: from here on it is used, recorded and aborted.
  void opened();
  // `number` is the flight recorder's. On a host backend that is all of it.
  void run(std::span<const Request> requests, std::uint64_t first_sequence, std::uint64_t number,
           void* stream, Work::State& state);
  // The same where it only begins here, and is watched until its end.
  void launch(std::vector<Request> requests, std::uint64_t first_sequence, std::uint64_t number,
              Stream& stream, const std::shared_ptr<Work::State>& state);
  void call_backend(std::span<const Request> requests, std::uint64_t first_sequence,
                    std::uint64_t number, void* stream, Work::State& state);
  // Operations that a stream passes over, because it has failed: the other ranks would wait for
  // them.
  void passed_over() noexcept;
  // Of an operation that is enqueued; one that goes without having been taken was passed over.
  class Turn {
   public:
    explicit Turn(Impl& impl) noexcept : impl_(&impl) {}
    Turn(Turn&& other) noexcept : impl_(std::exchange(other.impl_, nullptr)) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (impl_) impl_->passed_over();
    }
    Impl& take() noexcept { return *std::exchange(impl_, nullptr); }

   private:
    Impl* impl_;
  };
  // Tells Work, World and flight recorder of a failure, whose reasons the other ranks are asked
  // for; returns what there is to throw.
  Error fail(atoll_status status, const std::string& why, std::span<const Request> requests,
             std::uint64_t number, Work::State& state);

  World& world;
  Axis axis;
  std::string name;
  std::string id;  // unique to this communicator in the job, equal on its ranks
  std::string wanted_backend;
  Device device;
  const Plugin* plugin = nullptr;
  atoll_host services{};
  atoll_comm* comm = nullptr;
  bool orders_sums = true;  // false: a deterministic order was asked for, and core has to make it
  int block = 0;            // of that order: Axis::block where it is another tree than without
  std::optional<Levels> levels;         // of composed sums
  std::unique_ptr<TwoLevel> two_level;  // of a backend without levels, on an axis that has them
  std::uint64_t sequence = 0;
  Scratch composing;  // of scratch()
  Scratch scaled;     // src, multiplied with a factor
  const StreamBackend* last_stream = nullptr;
  std::vector<Event> earlier;  // of other streams than the last: a failed stream waits for nobody
  std::mutex retired_mutex;
  std::vector<std::shared_ptr<void>> retired;
  std::atomic<bool> any_retired{false};
  Event last_event;
  std::unique_ptr<Launched> launched;  // of a GPU
  World::Subscription subscription;
  std::shared_ptr<Flight> flight;
  std::shared_ptr<FlightLane> lane;  // of flight
};

}  // namespace atoll_v1::atoll
