#include "comm/backend_communicator.hpp"

#include <chrono>

#include "comm/explain.hpp"
#include "comm/registry/backend_choice.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/operation_label.hpp"
#include "flight/flight.hpp"
#include "world/introduction.hpp"

namespace atoll_v1::atoll {
namespace {

// An operation in the queue of a CPU stream. Its execution begins with take(). A failed stream
// destroys its queued operations without running them; if take() has not been called, the
// destructor fails the operation and its group.
class Queued {
 public:
  Queued(BackendCommunicator& group, std::shared_ptr<Work::State> state) noexcept
      : group_(&group), state_(std::move(state)) {}
  Queued(Queued&& other) noexcept
      : group_(std::exchange(other.group_, nullptr)), state_(std::move(other.state_)) {}
  Queued& operator=(Queued&&) = delete;
  ~Queued() {
    if (group_) group_->operation_dropped(*state_);
  }
  BackendCommunicator& take() noexcept { return *std::exchange(group_, nullptr); }
  Work::State& state() const noexcept { return *state_; }

 private:
  BackendCommunicator* group_;
  std::shared_ptr<Work::State> state_;
};

// Sets the marker of the World, which an axis that the caller has filled in may lack.
Axis axis_of(Axis axis) {
  axis.hold = WorldInternals::hold(*axis.world);
  return axis;
}

std::uint64_t collectives_among(std::span<const Operation> operations) {
  return static_cast<std::uint64_t>(std::ranges::count(operations, false, &Operation::is_message));
}

}  // namespace

BackendCommunicator::BackendCommunicator(const Axis& axis, CommunicatorOptions options, Use use)
    : world_(*axis.world),
      axis_(axis_of(axis)),
      name_(options.name.empty() ? axis.name : options.name),
      device_(std::move(options.device)),
      services_(core_services(world())),
      settings_(options, world().config()),
      shape_{static_cast<std::uint64_t>(axis.index), static_cast<std::uint64_t>(axis.size()),
             device_.kind()},
      fallback_scratch_(device_),
      scaled_source_(device_),
      use_(use) {}

BackendCommunicator::~BackendCommunicator() {
  on_failure_ = {};
  on_departure_ = {};
  if (flight_) flight_->questions().remove(end_name());
  watchdog_.reset();
  if (WorldInternals::is_over(axis_.hold)) {
    // The backend cannot close without the World.
    log::error(
        "communicator {} ends after its World: destroy communicators, engines and optimizers "
        "before the World",
        name_);
    return;
  }
  if (track_) track_->closed = true;
  if (id_.empty()) return;
  if (comm_) {
    deregister_retired();
    // The backend must be closed before the destructor of retired_ frees memory that the backend
    // still has registered.
    plugin_->table.close(comm_);
  }
  // A backend may read keys of other ranks until it is closed, for example when it first connects
  // to a rank.
  try {
    std::vector<int> ranks = axis_.ranks;
    std::ranges::sort(ranks);
    WorldInternals::store(world()).release(id_ + "/", ranks);
  } catch (const std::exception&) {
    // Either the job has failed and its store ends soon, or there is no memory for the message, and
    // the keys stay in the store.
  }
}

void BackendCommunicator::opened() {
  ask_what_backend_performs();
  use(world(), *plugin_);
  track_ = flight_->recorder().open({.id = id_,
                                     .name = name_,
                                     .backend = plugin_->name,
                                     .rank = axis_.index,
                                     .ranks = axis_.ranks});
  track_->completes_in_parallel = use_ == Use::tags;
  shape_.levels = levels_of(hosts_of(axis_), shape_.block);
  if (device_.kind() == DeviceKind::cuda) {
    watchdog_ = std::make_unique<LaunchWatchdog>(*this, flight_->recorder(), *track_);
  }
  on_failure_ = world().on_failure([this](const Error& error) {
    if (watchdog_) watchdog_->fail(error);
    plugin_->table.abort(comm_);
  });
  bool is_over = false;  // true if another rank has ended the group while this rank opened it
  {
    const std::lock_guard lock(ending_);
    is_open_ = true;
    is_over = ended_by_.has_value();
  }
  if (is_over) stop();
  log::debug("opened communicator {} of {} ranks on backend {}", name_, axis_.size(),
             plugin_->name);
}

void BackendCommunicator::join_split() {
  if (plugin_->table.split == nullptr) return;
  wait_until_idle();
  atoll_comm* nothing = nullptr;
  const atoll_status status = plugin_->table.split(comm_, nullptr, &nothing);
  check(status, fmt::format("take part in the split of communicator {}", name_));
}

void BackendCommunicator::check(atoll_status status, const std::string& what) {
  if (status == ATOLL_OK) return;
  check_ended();
  if (status == ATOLL_ABORTED) {  // the consequence of a failure on another rank
    await_cause();
    check_ended();
    world().check();
  }
  throw fail_all(make_error(static_cast<ErrorCode>(status), "rank {}: cannot {}: {}",
                            world().rank(), what, last_error(*plugin_, comm_)));
}

void BackendCommunicator::ask_what_backend_performs() {
  const auto capability = plugin_->table.capability;
  const std::int32_t memory = memory_of(device_.kind());
  for (std::size_t k = 0; k < atoll_abi::kinds.size(); ++k) {
    const auto kind = static_cast<std::int32_t>(k);
    for (std::size_t d = 0; d < atoll_abi::dtypes.size(); ++d) {
      const auto dtype = static_cast<std::int32_t>(d);
      // Fallbacks compute sums whose order the backend does not keep.
      if (atoll_abi::reduces(kind) && !backend_orders_sums_ && !atoll_abi::is_integer(dtype)) {
        continue;
      }
      for (std::size_t op = 0; op < atoll_abi::ops.size(); ++op) {
        const auto answer = capability(kind, dtype, static_cast<std::int32_t>(op), memory);
        performed_[k][d][op] = answer == 1;
        native_[k][d][op] = answer == 2;
      }
    }
  }
}

std::shared_ptr<Work::State> BackendCommunicator::begin(Stream& stream) {
  require(!WorldInternals::is_over(axis_.hold),
          "communicator {}: its World has been destroyed, but must outlive it", name_);
  world().check();
  check_ended();
  require(
      kind_of(stream) == device_.kind(),
      "rank {}: communicator {}: the stream {} is not a stream of the communicator's device {}: "
      "take streams from Communicator::device()",
      world().rank(), name_, stream.name(), device_.name());
  if (use_ == Use::tags && order_.is_idle()) retired_.free();
  order_.enter(stream);
  auto state = std::make_shared<Work::State>();
  if (watchdog_) state->watchdog = watchdog_->watchdog();
  return state;
}

void BackendCommunicator::declare_use(const Operation& operation, Stream& stream) const {
  if (!stream.backend().checks_lifetimes()) return;
  const bool broadcast = operation.kind == ATOLL_BROADCAST, root = operation.peer == axis_.index;
  const std::string_view what = atoll_abi::kind_name(operation.kind);
  if (operation.kind != ATOLL_RECV && !(broadcast && !root)) {
    stream.use(operation.src, Access::read, what);
  }
  if (operation.kind != ATOLL_SEND && !(broadcast && root)) {
    stream.use(operation.dst, Access::write, what);
  }
}

Work BackendCommunicator::finish(std::shared_ptr<Work::State> state, Stream& stream) {
  state->event = stream.record();
  order_.leave(stream, state->event);
  return Work(std::move(state));
}

void BackendCommunicator::submit(std::vector<Operation> operations,
                                 const std::shared_ptr<Work::State>& state, Stream& stream) {
  const std::uint64_t first = take_sequence(operations.size());
  std::vector<FlightCall> calls;
  calls.reserve(operations.size());
  for (Operation& operation : operations) operation.label = OperationLabel::of_this_thread();
  for (const Operation& operation : operations) calls.push_back(operation.flight_call());
  const std::uint64_t number = flight_->recorder().enqueue(*track_, calls, first);
  if (device_.kind() != DeviceKind::cpu) {
    return launch(std::move(operations), first, number, stream, state);
  }
  auto queued = std::make_shared<Queued>(*this, state);
  stream.enqueue([self = shared_from_this(), queued = std::move(queued),
                  operations = std::move(operations), first,
                  number] { queued->take().run(operations, first, number, queued->state()); });
}

Work BackendCommunicator::submit(Operation&& operation, Stream& stream) {
  auto state = begin(stream);
  declare_use(operation, stream);
  operation.label = OperationLabel::of_this_thread();
  const std::uint64_t first = take_sequence(1);
  const FlightCall call = operation.flight_call();
  const std::uint64_t number = flight_->recorder().enqueue(*track_, {&call, 1}, first);
  if (device_.kind() == DeviceKind::cpu) {
    state->operation = std::move(operation);
    // The queued task holds no reference to the group, because the group is destroyed only after
    // its operations are complete.
    state->event = Event(stream.backend().enqueue_and_record(
        [queued = Queued(*this, state), first, number]() mutable {
          Work::State& own = queued.state();
          queued.take().run({&*own.operation, 1}, first, number, own);
        }));
  } else {
    launch({std::move(operation)}, first, number, stream, state);
    state->event = stream.record();
  }
  order_.leave(stream, state->event);
  return Work(std::move(state));
}

void BackendCommunicator::run(std::span<const Operation> operations, std::uint64_t sequence,
                              std::uint64_t number, Work::State& state) {
  track_->executor.store(this_thread(), std::memory_order_relaxed);
  flight_->recorder().started(number, operations.size());
  call_backend(operations, sequence, number, nullptr, state);
  flight_->recorder().completed(*track_, number, operations.size(), collectives_among(operations));
}

void BackendCommunicator::launch(std::vector<Operation> operations, std::uint64_t sequence,
                                 std::uint64_t number, Stream& stream,
                                 const std::shared_ptr<Work::State>& state) {
  if (device_.kind() == DeviceKind::simulated) {
    return simulate(operations, sequence, number, stream, *state);
  }
  Event reached = stream.record();
  const Range range(stream.backend(), {atoll_abi::kind_name(operations.front().kind), name_});
  stream.backend().launch(
      [&](void* native) { call_backend(operations, sequence, number, native, *state); });
  try {
    const std::uint64_t collectives = collectives_among(operations);
    const auto timeout = timeout_of(operations.front());
    watchdog_->add({std::move(operations), collectives, sequence, number, timeout, state,
                    std::move(reached), stream.record()});
  } catch (const std::exception& error) {
    // The operation has been launched, but the watchdog cannot observe it, so a failure could go
    // unnoticed.
    fail_all(Error(ErrorCode::internal, text_of(error)));
    throw;
  }
}

void BackendCommunicator::simulate(std::span<const Operation> operations, std::uint64_t sequence,
                                   std::uint64_t number, Stream& stream, Work::State& state) {
  std::vector<atoll_cost> costs(operations.size(), atoll_cost{sizeof(atoll_cost), 0, 0, 0, 0, 0});
  call_backend(operations, sequence, number, nullptr, state, costs);
  flight_->recorder().started(number, operations.size());
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const atoll_cost& cost = costs[i];
    stream.backend().take_time({.name = atoll_abi::kind_name(operations[i].kind),
                                .latency = cost.latency_s,
                                .seconds = cost.seconds,
                                .compute = cost.compute,
                                .intra = cost.intra,
                                .inter = cost.inter});
  }
  flight_->recorder().completed(*track_, number, operations.size(), collectives_among(operations));
}

void BackendCommunicator::call_backend(std::span<const Operation> operations,
                                       std::uint64_t sequence, std::uint64_t number, void* stream,
                                       Work::State& state, std::span<atoll_cost> costs) {
  // Nearly every call has one operation, which needs no vector.
  std::array<atoll_operation, 1> one;
  std::array<atoll_operation*, 1> one_pointer;
  std::vector<atoll_operation> several(operations.size() > 1 ? operations.size() : 0);
  std::vector<atoll_operation*> several_pointers(several.size());
  auto* const table = several.empty() ? one.data() : several.data();
  auto** const pointers = several.empty() ? one_pointer.data() : several_pointers.data();
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Operation& operation = operations[i];
    atoll_operation& entry = table[i];
    entry = {};
    entry.size = sizeof(atoll_operation);
    entry.kind = operation.kind;
    entry.dtype = static_cast<std::int32_t>(operation.dtype);
    entry.op = static_cast<std::int32_t>(operation.reduction.op);
    entry.peer = operation.peer;
    entry.memory = memory_of(device_.kind());
    entry.src = operation.src.data;
    entry.dst = operation.dst.data;
    entry.count = operation.count;
    entry.sequence = sequence++;
    entry.stream = stream;
    entry.timeout_ns = std::chrono::nanoseconds(timeout_of(operation)).count();
    entry.counts = operation.counts.empty() ? nullptr : operation.counts.data();
    entry.recv_counts = operation.recv_counts.empty() ? nullptr : operation.recv_counts.data();
    entry.factor = operation.reduction.factor;
    entry.cost = costs.empty() ? nullptr : &costs[i];
    entry.label = operation.label.empty() ? nullptr : operation.label.c_str();
    entry.tag = operation.tag;
    entry.arrived = operations.size() == 1 ? &state.arrived : nullptr;
    pointers[i] = &entry;
  }
  if (device_.kind() == DeviceKind::cpu && use_ == Use::all) {
    retired_.deregister(*plugin_, comm_, name_, table[0].sequence);
  }
  const atoll_status status =
      plugin_->table.submit(comm_, pointers, static_cast<std::int32_t>(operations.size()));
  if (status != ATOLL_OK) {
    throw fail(status, last_error(*plugin_, comm_), operations, number, state);
  }
}

void BackendCommunicator::operation_dropped(Work::State& state) noexcept {
  try {
    const std::optional<Error> over = ended();  // then the other ranks do not wait for it
    state.fail(
        over ? *over
             : fail_all(make_error(ErrorCode::aborted,
                                   "rank {}: communicator {}: an operation was dropped, because {}",
                                   world().rank(), name_, reason_of_drop())));
  } catch (const std::exception& error) {
    log::error("communicator {}: {}", name_, error.what());
  }
}

Error BackendCommunicator::fail(atoll_status status, const std::string& why,
                                std::span<const Operation> operations, std::uint64_t number,
                                Work::State& state) {
  const Error own(
      static_cast<ErrorCode>(status),
      fmt::format("rank {}: communicator {}: {}", world().rank(), name_, without_name(why, name_)));
  // An abort follows from a failure on another rank, and so does a lost peer in most cases. Then
  // the failure of the other rank is reported.
  const Cause cause =
      status == ATOLL_ABORTED || status == ATOLL_PEER_LOST ? Cause::elsewhere : Cause::here;
  if (cause == Cause::elsewhere) await_cause();
  if (const std::optional<Error> error = ended()) {
    flight_->recorder().failed(number, operations.size(), error->what());
    if (is_failure(*error)) flight_->await_written();
    state.fail(*error);
    return *error;
  }
  const ExplainedError explained = explain({world(), axis_, *track_, operations}, own);
  flight_->recorder().failed(number, operations.size(), explained.error.what());
  const Error first = fail_all(explained.error);
  const Error error = fails_job() ? explained.to_report(world().failure(), cause) : first;
  if (fails_job() || is_failure(error)) flight_->await_written();
  state.fail(error);
  return error;
}

void BackendCommunicator::disagree(const std::string& finding, Work::State& state) {
  const Error own(ErrorCode::mismatch,
                  fmt::format("rank {}: communicator {}: {}", world().rank(), name_, finding));
  const Error first = fail_all(own);
  const Error error =
      fails_job() ? ExplainedError{own, finding}.to_report(world().failure(), Cause::here) : first;
  if (fails_job() || is_failure(error)) flight_->await_written();
  state.fail(error);
  throw error;
}

std::pair<atoll_status, std::string> BackendCommunicator::async_error() {
  const auto ask = plugin_->table.async_error;
  const atoll_status status = ask ? ask(comm_) : ATOLL_OK;
  return {status, status == ATOLL_OK ? "" : last_error(*plugin_, comm_)};
}

void BackendCommunicator::launch_failed(atoll_status status, const std::string& why,
                                        const LaunchWatchdog::Launch* launch) {
  if (has_ended_) return;  // end() has failed the operations in flight
  if (launch == nullptr) {
    fail_all(make_error(static_cast<ErrorCode>(status), "rank {}: communicator {}: {}",
                        world().rank(), name_, why));
    return;
  }
  const Operation& first = launch->operations.front();
  const std::string text =
      fmt::format("{} {} ({} x {}): {}", atoll_abi::kind_name(first.kind), launch->sequence,
                  first.count, atoll::name(first.dtype), why);
  try {
    fail(status, text, launch->operations, launch->number, *launch->state);
  } catch (const std::exception& error) {
    log::error("communicator {}: {}", name_, error.what());
    const Error failed(static_cast<ErrorCode>(status), text);
    launch->state->fail(failed);
    fail_all(failed);
  }
}

}  // namespace atoll_v1::atoll
