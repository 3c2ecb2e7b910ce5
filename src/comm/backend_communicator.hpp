// One open group of ranks on one backend: submits operations in order, records them in the flight
// recorder and turns a failure of the backend into a failure of the group or of the World.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bitset>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/group_shape.hpp"
#include "comm/launch_watchdog.hpp"
#include "comm/operation.hpp"
#include "comm/registered_memory.hpp"
#include "comm/settings.hpp"
#include "comm/tuning.hpp"
#include "device/backend.hpp"
#include "world/process_failure.hpp"
#include "world/world_internals.hpp"

namespace atoll_v1::atoll {

class Flight;

// Orders the operations of one communicator. With `in_order` they run in the order of their calls,
// even on different streams. Otherwise those on different streams run at the same time.
class StreamOrder {
 public:
  explicit StreamOrder(bool in_order) : in_order_(in_order) {}
  // Call this before an operation is enqueued on `stream`. If the previous operation is on another
  // stream, `stream` waits for it.
  void enter(Stream& stream) {
    if (!in_order_ || !last_stream_ || last_stream_ == &stream.backend()) return;
    std::erase_if(earlier_, happened);
    earlier_.push_back(last_event_);
    stream.wait(last_event_);
  }
  // Call this after an operation is enqueued. `event` happens when the operation is complete.
  void leave(Stream& stream, const Event& event) {
    if (!in_order_) {
      std::erase_if(earlier_, happened);
      earlier_.push_back(event);
    }
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

  bool in_order_;
  const StreamBackend* last_stream_ = nullptr;
  Event last_event_;
  // The last events on earlier streams. wait_until_idle() needs them because a failed stream does
  // not wait for the events of other streams.
  std::vector<Event> earlier_;
};

// Scratch memory that the operations of one communicator share, because they run one after the
// other.
class Scratch {
 public:
  explicit Scratch(Device device) : device_(std::move(device)) {}

  // Adds memory that take() may return.
  void add(Buffer memory) { buffers_.push_back(std::move(memory)); }
  // Returns memory that every later call may return again. When the memory is too small, allocates
  // at least twice its size.
  View take(std::uint64_t count, DType dtype) {
    const std::uint64_t bytes = count * size_of(dtype);
    const std::uint64_t before = buffers_.empty() ? 0 : buffers_.back().bytes();
    if (before < bytes) buffers_.push_back(device_.allocate(std::max(bytes, 2 * before)));
    return buffers_.back().view(dtype).part(0, count);
  }

 private:
  Device device_;
  // Buffers in ascending size; operations in flight may still use the smaller buffers.
  std::vector<Buffer> buffers_;
};

// Thread-safe only where a comment says so: a caller holds calling() during its call. Functions
// that CPU streams execute for the group run one at a time.
class BackendCommunicator : public std::enable_shared_from_this<BackendCommunicator> {
 public:
  enum class Use {
    all,
    tags  // only sends and receives with tags; its streams do not wait for each other
  };
  // Collective over the axis. A non-null `parent` is split if its backend supports that. Throws
  // Error and fails as fail_all() does when the backend cannot open.
  static std::shared_ptr<BackendCommunicator> open(const Axis& axis, CommunicatorOptions options,
                                                   const BackendCommunicator* parent = nullptr,
                                                   Use use = Use::all);
  // Callers must use open() instead.
  BackendCommunicator(const Axis& axis, CommunicatorOptions options, Use use);
  ~BackendCommunicator();
  BackendCommunicator(const BackendCommunicator&) = delete;
  BackendCommunicator& operator=(const BackendCommunicator&) = delete;

  // Serialises the callers of this group. A communicator and its two-level groups share one mutex.
  std::mutex& calling() const noexcept { return *calling_; }
  // Number of Communicator::group() calls of this group that collect operations now.
  std::atomic<int>& groupings() noexcept { return groupings_; }
  World& world() const { return world_.get(); }  // throws if the World has been destroyed
  const Axis& axis() const noexcept { return axis_; }
  const std::string& name() const noexcept { return name_; }
  // id that is unique in the job and equal on all ranks
  const std::string& id() const noexcept { return id_; }
  const Device& device() const noexcept { return device_; }
  const Plugin& plugin() const noexcept { return *plugin_; }
  atoll_comm* handle() const noexcept { return comm_; }
  const GroupShape& shape() const noexcept { return shape_; }
  const Settings& settings() const noexcept { return settings_; }
  std::uint64_t sequence() const noexcept { return sequence_; }  // number of the next operation
  // The tuning lines that choose between one level (over all ranks) and two levels (inside hosts,
  // then across hosts). Empty if the backend implements levels itself: the backend then receives
  // these lines.
  const LevelChoice& level_choice() const noexcept { return level_choice_; }
  bool lacks_levels() const noexcept { return plugin_->table.has_levels == 0; }

  // Returns true when the backend supports this kind of operation for `dtype` and `op`, and adds in
  // the requested order. With `native` its arithmetic may be less accurate (capability() == 2).
  bool supports(std::int32_t kind, DType dtype, ReduceOp op, bool native = false) const noexcept {
    const auto k = static_cast<std::size_t>(kind), type = static_cast<std::size_t>(dtype);
    const auto o = static_cast<std::size_t>(op);
    return type < atoll_abi::dtypes.size() &&
           (performed_[k][type][o] || (native && native_[k][type][o]));
  }

  // A call of the user consists of begin(), any number of submit(), and finish(). begin() throws if
  // the group or the World has failed, and makes `stream` wait for the previous call.
  std::shared_ptr<Work::State> begin(Stream& stream);
  // Passes the operations to the backend as one group, in stream order. A failure is stored in
  // `state`, fails the stream, and fails as fail_all() does.
  void submit(std::vector<Operation> operations, const std::shared_ptr<Work::State>& state,
              Stream& stream);
  Work finish(std::shared_ptr<Work::State> state, Stream& stream);
  // Performs one operation: begin(), submit() and finish(), with fewer allocations for CPU memory.
  Work submit(Operation&& operation, Stream& stream);
  // Reports to the lifetime checker, if ATOLL_CHECK=lifetimes has enabled it, which memory the next
  // operation on `stream` reads and writes.
  void declare_use(const Operation& operation, Stream& stream) const;

  Scratch& fallback_scratch() noexcept { return fallback_scratch_; }
  Scratch& scaled_source() noexcept { return scaled_source_; }
  RegisteredRanges& registered() noexcept { return registered_; }
  const RegisteredRanges& registered() const noexcept { return registered_; }

  // Fails the World, or with Config::failure_scope "communicator" this group on all its ranks.
  // Returns the error that all these ranks report: that of the first rank that failed.
  Error fail_all(const Error& own) noexcept;
  // Unless `status` is ATOLL_OK, calls fail_all() and throws an error that names what the backend
  // cannot do and its reason.
  void check(atoll_status status, const std::string& what);
  // Call this when the ranks called different operations, which `finding` describes. Calls
  // fail_all() and throws.
  [[noreturn]] void disagree(const std::string& finding, Work::State& state);
  // Keeps memory alive until the operations called so far are complete. Any thread may call it.
  void retire(RetiredMemory::List& memory) noexcept {
    memory.front().next = sequence_;
    retired_.add(memory);
  }
  // Deregisters and frees retired memory. No operation may be in flight.
  void deregister_retired() { retired_.deregister(*plugin_, comm_, name_, sequence_); }
  // Ends this group on every rank of it, as Communicator::abort() describes. Any thread may call
  // it.
  void abort(std::string_view reason);
  // Attaches groups (of two-level collectives, or of tags): they end with this group and share its
  // calling().
  void adopt(const std::vector<std::shared_ptr<BackendCommunicator>>& parts);
  void check_ended() const;  // throws the error with which this group has ended on any rank
  // Takes part in a split of this group as a rank that joins none of the new groups.
  void join_split();
  bool is_idle() const { return order_.is_idle(); }  // true when all operations have ended
  void wait_until_idle() const { order_.wait_until_idle(); }
  // Waits until all operations have ended. Holds calling() only while nothing is in flight, because
  // callbacks of operations may call the group. Returns the held mutex.
  std::unique_lock<std::mutex> call_when_idle() const {
    while (true) {
      std::unique_lock lock(*calling_);
      if (is_idle()) return lock;
      const StreamOrder order = order_;
      lock.unlock();
      order.wait_until_idle();
    }
  }
  void wait_for_last() const { order_.last().synchronize(); }
  // Call this when a failed stream drops an operation of this group. Calls fail_all(), because the
  // other ranks would wait for the operation.
  void operation_dropped(Work::State& state) noexcept;
  // Runs the operations on CPU memory, where the backend returns when they are complete.
  // `sequence` and `number` are the numbers of the first operation on the communicator and in the
  // flight recorder.
  void run(std::span<const Operation> operations, std::uint64_t sequence, std::uint64_t number,
           Work::State& state);
  // For the watchdog's thread: returns a failure that the backend noticed after a launch, and its
  // reason. The status is ATOLL_OK when there is no failure.
  std::pair<atoll_status, std::string> async_error();
  // Calls fail_all() because of `launch`, or because of the device when `launch` is null.
  void launch_failed(atoll_status status, const std::string& why,
                     const LaunchWatchdog::Launch* launch);

 private:
  // Returns the number of the next operation, and advances it past `count` operations. Its caller
  // holds calling(), so the atomic object needs no locked instruction.
  std::uint64_t take_sequence(std::uint64_t count) noexcept {
    const std::uint64_t first = sequence_.load(std::memory_order_relaxed);
    sequence_.store(first + count, std::memory_order_release);
    return first;
  }
  // Call this when all ranks have agreed to open the group. From then on, aborts and failures of
  // any rank end it.
  void take_id();
  void open_backend(const BackendCommunicator* parent);
  atoll_status open_group(atoll_group& group);
  atoll_status split_group(const BackendCommunicator& parent, atoll_group& group);
  // Returns true when backends cannot add in the requested order, so that a fallback must compute
  // the sums.
  bool order_needs_fallback(const atoll_group& group) const;
  void opened();
  void ask_what_backend_performs();
  // Name under which ranks announce why the group ends.
  std::string end_name() const { return id_ + "/end"; }
  std::chrono::milliseconds timeout_of(const Operation& operation) const {
    return operation.timeout.count() < 0 ? settings_.timeout : operation.timeout;
  }
  bool fails_job() const { return world().config().failure_scope != "communicator"; }
  // Returns false if the group ends by an abort() or because a rank leaves the job. Then the ranks
  // write no flight file.
  static bool is_failure(const Error& end) { return end.code() != ErrorCode::aborted; }
  // Ends this group on this rank. Operations that are enqueued may complete until `deadline`: a
  // rank that leaves the job has done its part of them.
  void end(const Error& why, std::chrono::steady_clock::time_point deadline = {},
           bool may_be_replaced = false);
  // Ends this group with the error that the store has announced first. This error also replaces
  // that of a later abort() on this rank.
  void announced(const Error& why);
  // The two parts of end(): mark() returns false after an earlier end(), and stop() aborts the
  // backend.
  bool mark(const Error& why, bool may_be_replaced = false);
  void stop();
  // Returns the error with which the group has ended, or nothing.
  std::optional<Error> ended() const;
  // Waits up to a second for the store to report why the group ended or the job's first failure,
  // which may have caused the failure on this rank.
  void await_cause() const;
  // Launches the operations on a device other than the host. The watchdog observes them until they
  // end.
  void launch(std::vector<Operation> operations, std::uint64_t sequence, std::uint64_t number,
              Stream& stream, const std::shared_ptr<Work::State>& state);
  // On a simulated device, lets the operations take the time that the backend gives them.
  void simulate(std::span<const Operation> operations, std::uint64_t sequence, std::uint64_t number,
                Stream& stream, Work::State& state);
  // `costs` has an entry for each operation on a simulated device, and is empty on others.
  void call_backend(std::span<const Operation> operations, std::uint64_t sequence,
                    std::uint64_t number, void* stream, Work::State& state,
                    std::span<atoll_cost> costs = {});
  // Stores a failure in the Work and the flight recorder, adds what other ranks report about the
  // failure, and fails as fail_all() does. Returns the error to throw.
  Error fail(atoll_status status, const std::string& why, std::span<const Operation> operations,
             std::uint64_t number, Work::State& state);

  WorldLink world_;
  std::shared_ptr<std::mutex> calling_ = std::make_shared<std::mutex>();
  Axis axis_;
  std::string name_;
  std::string id_;
  Device device_;
  const Plugin* plugin_ = nullptr;
  atoll_core services_;
  atoll_comm* comm_ = nullptr;
  bool backend_orders_sums_ = true;  // false when fallbacks must compute ordered sums
  // What the backend performs, by kind, dtype and op. Set by ask_what_backend_performs().
  std::array<std::array<std::bitset<atoll_abi::ops.size()>, atoll_abi::dtypes.size()>,
             atoll_abi::kinds.size()>
      performed_{}, native_{};
  Settings settings_;
  GroupShape shape_;
  LevelChoice level_choice_;
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<int> groupings_{0};
  Scratch fallback_scratch_, scaled_source_;
  Use use_;
  StreamOrder order_{use_ == Use::all};
  RetiredMemory retired_;
  RegisteredRanges registered_;
  std::unique_ptr<LaunchWatchdog> watchdog_;  // observes operations on a GPU; null on CPU memory
  World::Subscription on_failure_, on_departure_;
  std::shared_ptr<Flight> flight_;
  std::shared_ptr<FlightTrack> track_;
  std::atomic<bool> has_ended_{false};
  mutable std::mutex ending_;      // guards the members below
  bool is_open_ = false;           // true when the backend has opened the group
  std::optional<Error> ended_by_;  // argument of the first end()
  // The error that all ranks report in place of ended_by_, which stays: threads may read its text.
  std::optional<Error> announced_;
  bool may_be_replaced_ = false;  // true while ended_by_ is that of an abort() on this rank, which
                                  // the store has not announced
  std::vector<std::weak_ptr<BackendCommunicator>> parts_;
  std::weak_ptr<BackendCommunicator> whole_;  // the group of which this one is a part
};

}  // namespace atoll_v1::atoll
