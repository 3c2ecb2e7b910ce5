#include "atoll/communicator.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <thread>
#include <utility>

#include "comm/registry/backend_choice.hpp"
#include "comm/communicator_impl.hpp"
#include "comm/composed.hpp"
#include "flight/flight.hpp"
#include "flight/inquiry.hpp"
#include "comm/registry/host_services.hpp"
#include "comm/launched.hpp"
#include "comm/tuning.hpp"
#include "comm/two_level.hpp"
#include "core/hash.hpp"
#include "core/log.hpp"
#include "device/backend.hpp"

namespace atoll_v1::atoll {

namespace {

bool is_floating(DType dtype) {
  return dtype != DType::i32 && dtype != DType::i64 && dtype != DType::u8;
}

bool lacks_levels(const Plugin& plugin) { return plugin.table.has_levels == 0; }

// Gives the store a moment to bring the failure that may stand behind one seen here.
void await_failure(const World& world) {
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (!world.failure() && std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace

void Work::State::fail(const Error& reason) {
  const std::lock_guard lock(mutex);
  if (!error) error = reason;
  failed = true;
}

void Work::State::check() {
  if (!failed) return;
  const std::lock_guard lock(mutex);
  throw *error;
}

void Work::wait(Stream& stream) const {
  if (!state_) return;
  state_->check();
  stream.wait(state_->event, WaitReason::communication);
}

void Work::synchronize() const {
  if (!state_) return;
  try {
    state_->event.synchronize();
  } catch (...) {
    state_->check();  // the operation's own error, if it has one, says more than its stream's
    throw;
  }
  state_->check();
}

bool Work::done() const { return !state_ || state_->event.happened(); }

Work Work::local_copy(ConstView src, View dst, Stream& stream) {
  if (src.dtype != dst.dtype || src.count != dst.count) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a collective of one rank: {} elements of {} into {} of {}", src.count,
                            atoll::name(src.dtype), dst.count, atoll::name(dst.dtype)));
  }
  const auto from = reinterpret_cast<std::uintptr_t>(src.data),
             to = reinterpret_cast<std::uintptr_t>(dst.data);
  if (from != to && from < to + dst.bytes() && to < from + src.bytes()) {
    throw Error(ErrorCode::invalid_argument,
                "a collective of one rank: src and dst overlap in part");
  }
  if (src.data != dst.data) stream.copy(dst.data, src.data, dst.bytes());
  auto state = std::make_shared<State>();
  state->event = stream.record();
  return Work(std::move(state));
}

Communicator::Impl::Impl(const Axis& axis_, CommunicatorOptions options)
    : world(*axis_.world),
      axis(axis_),
      name(options.name.empty() ? axis_.name : options.name),
      wanted_backend(options.backend.empty() ? world.config().backend : options.backend),
      device(std::move(options.device)),
      services(host_services(world)) {}

Communicator::Impl::~Impl() {
  subscription = {};
  launched.reset();
  if (lane) lane->closed = true;
  if (!comm) return;
  deregister_retired();
  plugin->table.close(comm);  // what is still retired goes behind it
}

void Communicator::Impl::open_backend(const Impl* parent) {
  if (parent && parent->plugin->table.split == nullptr) parent = nullptr;
  const std::string base =
      fmt::format("comm/{}/{:016x}", name, fnv1a(fmt::format("{}", fmt::join(axis.ranks, ","))));
  id = fmt::format("{}/{}", base, world.ticket(base));
  flight = Flight::of(world);  // before anything can fail
  std::string tuning = tuning_lines(world.config());
  plugin = parent ? parent->plugin : &choose_backend(*this, tuning);
  LevelChoice choice;
  if (lacks_levels(*plugin)) choice = LevelChoice::take_from(tuning);
  GroupDescription group(world, axis, id, name, device.kind(), tuning, device.backend()->ordinal());
  const atoll_status status = parent ? split_group(*parent, group.group) : open_group(group.group);
  if (status != ATOLL_OK) {
    comm = nullptr;
    const Error error(static_cast<ErrorCode>(status),
                      fmt::format("rank {}: cannot open communicator {} on backend {}: {}",
                                  world.rank(), name, plugin->name, last_error(*plugin, nullptr)));
    await_failure(world);
    world.check();  // when another rank failed first, its reason is the one to report
    world.fail(error.what());
    throw error;
  }
  opened();
  if (lacks_levels(*plugin)) two_level = TwoLevel::open(*this, std::move(choice));
}

void Communicator::Impl::opened() {
  retain(*plugin);
  world.at_exit([plugin = plugin](bool failed) { release(*plugin, failed); });
  if (!flight) flight = Flight::of(world);
  lane = flight->recorder().open(
      {.id = id, .name = name, .backend = plugin->name, .rank = axis.index, .ranks = axis.ranks});
  std::vector<int> hosts;
  for (const int rank : axis.ranks) {
    hosts.push_back(world.placements()[static_cast<std::size_t>(rank)].host);
  }
  levels = levels_of(hosts, block);
  if (device.kind() != DeviceKind::host) launched = std::make_unique<Launched>(*this);
  subscription = world.on_failure([this](const Error& error) {
    if (launched) launched->fail(error);
    plugin->table.abort(comm);
  });
  log::debug("opened communicator {} of {} ranks on backend {}", name, axis.size(), plugin->name);
}

// A backend that cannot order its sums returns ATOLL_UNSUPPORTED.
atoll_status Communicator::Impl::open_group(atoll_group& group) {
  orders_sums = true;
  if (leaves_order(group)) {
    block = axis.block;
    orders_sums = false;
    group.deterministic = 0;
  }
  const atoll_status status = plugin->table.open(&services, &group, &comm);
  if (status != ATOLL_UNSUPPORTED || group.deterministic == 0) return status;
  group.deterministic = 0;
  orders_sums = false;
  return plugin->table.open(&services, &group, &comm);
}

// Backends know nothing of meshes. A tree over blocks of a power of two is part of the one over
// all.
bool Communicator::Impl::leaves_order(const atoll_group& group) const {
  const bool in_blocks = axis.block > 0 && axis.block < axis.size() &&
                         !std::has_single_bit(static_cast<unsigned>(axis.block));
  return group.deterministic != 0 && in_blocks;
}

atoll_status Communicator::Impl::split_group(const Impl& parent, atoll_group& group) {
  if (leaves_order(group)) block = axis.block;
  orders_sums = group.deterministic == 0 || (parent.orders_sums && block == 0);
  if (!orders_sums) group.deterministic = 0;
  parent.wait_until_idle();
  return plugin->table.split(parent.comm, &group, &comm);
}

void Communicator::Impl::watch_split() const {
  if (plugin->table.split == nullptr) return;
  wait_until_idle();
  atoll_comm* nothing = nullptr;
  const atoll_status status = plugin->table.split(comm, nullptr, &nothing);
  if (status == ATOLL_OK) return;
  const Error error(static_cast<ErrorCode>(status),
                    fmt::format("rank {}: split of communicator {}: {}", world.rank(), name,
                                last_error(*plugin, comm)));
  world.fail(error.what());
  throw error;
}

void Communicator::Impl::wait_until_idle() const {
  const auto wait = [](const Event& event) {
    try {
      event.synchronize();
    } catch (...) {
      // Whoever waited for the operation has been told.
    }
  };
  for (const Event& event : earlier) wait(event);
  wait(last_event);
}

bool Communicator::Impl::takes(std::int32_t kind, DType dtype, ReduceOp op) const {
  const bool sums = kind == ATOLL_REDUCE_SCATTER || kind == ATOLL_ALL_REDUCE ||
                    kind == ATOLL_REDUCE || kind == ATOLL_REDUCE_SCATTER_V;
  if (sums && !orders_sums && is_floating(dtype)) return false;
  return plugin->table.capability(kind, static_cast<std::int32_t>(dtype),
                                  static_cast<std::int32_t>(op), memory_of(device.kind())) != 0;
}

std::shared_ptr<Work::State> Communicator::Impl::begin(Stream& stream) {
  world.check();
  if (last_stream && last_stream != &stream.backend()) {
    std::erase_if(earlier,
                  [](const Event& event) { return !event.backend() || event.backend()->peek(); });
    earlier.push_back(last_event);
    stream.wait(last_event);
  }
  return std::make_shared<Work::State>();
}

void Communicator::Impl::tell_use(const Request& request, Stream& stream) const {
  const bool broadcast = request.kind == ATOLL_BROADCAST, root = request.peer == axis.index;
  const std::string_view what = atoll_abi::kind_name(request.kind);
  if (request.kind != ATOLL_RECV && !(broadcast && !root)) {
    stream.use(request.src, Access::read, what);
  }
  if (request.kind != ATOLL_SEND && !(broadcast && root)) {
    stream.use(request.dst, Access::write, what);
  }
}

Work Communicator::Impl::finish(std::shared_ptr<Work::State> state, Stream& stream) {
  state->event = stream.record();
  last_event = state->event;
  last_stream = &stream.backend();
  return Work(std::move(state));
}

void Communicator::Impl::submit(std::vector<Request> requests,
                                const std::shared_ptr<Work::State>& state, Stream& stream) {
  const std::uint64_t first = sequence;
  sequence += requests.size();
  const std::uint64_t number = flight->recorder().enqueue(*lane, requests, first);
  if (device.kind() != DeviceKind::host) {
    return launch(std::move(requests), first, number, stream, state);
  }
  auto turn = std::make_shared<Turn>(*this);
  stream.enqueue([self = shared_from_this(), turn = std::move(turn), requests = std::move(requests),
                  first, number,
                  state] { turn->take().run(requests, first, number, nullptr, *state); });
}

Work Communicator::Impl::perform(Request request, Stream& stream) {
  auto state = begin(stream);
  tell_use(request, stream);
  const std::uint64_t first = sequence++;
  const std::uint64_t number = flight->recorder().enqueue(*lane, {&request, 1}, first);
  if (device.kind() == DeviceKind::host) {
    state->request = std::move(request);
    // The communicator waits for its operations before it goes.
    state->event = Event(
        stream.backend().enqueue_and_record([turn = Turn(*this), state, first, number]() mutable {
          turn.take().run({&*state->request, 1}, first, number, nullptr, *state);
        }));
  } else {
    launch({std::move(request)}, first, number, stream, state);
    state->event = stream.record();
  }
  last_event = state->event;
  last_stream = &stream.backend();
  return Work(std::move(state));
}

View Communicator::Impl::scratch(std::uint64_t count, DType dtype) {
  return composing.take(device, count, dtype);
}

void Communicator::Impl::retire(std::shared_ptr<void> memory) {
  const std::lock_guard lock(retired_mutex);
  retired.push_back(std::move(memory));
  any_retired = true;
}

void Communicator::Impl::deregister_retired() {
  if (!any_retired.load(std::memory_order_acquire)) return;
  if (plugin->table.deregister_memory == nullptr) return;  // until it is closed
  std::vector<std::shared_ptr<void>> memories;             // freed without the lock
  {
    const std::lock_guard lock(retired_mutex);
    memories.swap(retired);
    any_retired = false;
  }
  std::erase_if(memories, [&](const auto& memory) {
    const atoll_status status = plugin->table.deregister_memory(comm, memory.get());
    if (status != ATOLL_OK && status != ATOLL_ABORTED) {
      log::warn("communicator {}: memory that is gone stays registered: {}", name,
                last_error(*plugin, comm));
    }
    return status == ATOLL_OK;
  });
  if (memories.empty()) return;
  const std::lock_guard lock(retired_mutex);
  retired.insert(retired.end(), memories.begin(), memories.end());  // until the backend is closed
}

void Communicator::Impl::run(std::span<const Request> requests, std::uint64_t first_sequence,
                             std::uint64_t number, void* stream, Work::State& state) {
  flight->recorder().started(number, requests.size());
  call_backend(requests, first_sequence, number, stream, state);
  flight->recorder().completed(*lane, number, requests);
}

void Communicator::Impl::launch(std::vector<Request> requests, std::uint64_t first_sequence,
                                std::uint64_t number, Stream& stream,
                                const std::shared_ptr<Work::State>& state) {
  Event reached = stream.record();
  const Range range(stream.backend(), {atoll_abi::kind_name(requests.front().kind), name});
  call_backend(requests, first_sequence, number, stream.backend().native(), *state);
  try {
    launched->add(
        {std::move(requests), first_sequence, number, state, std::move(reached), stream.record()});
  } catch (const std::exception& error) {  // it is under way, and nobody would watch it
    world.fail(error.what());
    throw;
  }
}

void Communicator::Impl::call_backend(std::span<const Request> requests,
                                      std::uint64_t first_sequence, std::uint64_t number,
                                      void* stream, Work::State& state) {
  // One is the rule, and small ones should not pay for vectors.
  std::array<atoll_operation, 1> one;
  std::array<atoll_operation*, 1> one_pointer;
  std::vector<atoll_operation> several(requests.size() > 1 ? requests.size() : 0);
  std::vector<atoll_operation*> several_pointers(several.size());
  auto* operations = several.empty() ? one.data() : several.data();
  auto** pointers = several.empty() ? one_pointer.data() : several_pointers.data();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Request& request = requests[i];
    operations[i] = {sizeof(atoll_operation),
                     request.kind,
                     static_cast<std::int32_t>(request.dtype),
                     static_cast<std::int32_t>(request.reduction.op),
                     request.peer,
                     memory_of(device.kind()),
                     request.src.data,
                     request.dst.data,
                     request.count,
                     first_sequence++,
                     stream,
                     std::chrono::nanoseconds(world.config().timeout).count(),
                     request.counts.empty() ? nullptr : request.counts.data(),
                     request.reduction.factor};
    pointers[i] = &operations[i];
  }
  deregister_retired();
  const atoll_status status =
      plugin->table.submit(comm, pointers, static_cast<std::int32_t>(requests.size()));
  if (status != ATOLL_OK) {
    throw fail(status, last_error(*plugin, comm), requests, number, state);
  }
}

void Communicator::Impl::passed_over() noexcept {
  try {
    world.fail(
        fmt::format("rank {}: communicator {}: an operation was passed over, because its stream "
                    "had failed before",
                    world.rank(), name));
  } catch (const std::exception& error) {
    log::error("communicator {}: {}", name, error.what());
  }
}

Error Communicator::Impl::fail(atoll_status status, const std::string& why,
                               std::span<const Request> requests, std::uint64_t number,
                               Work::State& state) {
  const Error own(static_cast<ErrorCode>(status),
                  fmt::format("rank {}: communicator {}: {}", world.rank(), name, why));
  // An abort, and mostly a peer that closed as well, is the echo of a failure elsewhere: that one
  // is worth reporting.
  const bool echo = status == ATOLL_ABORTED || status == ATOLL_PEER_LOST;
  if (echo) await_failure(world);
  const Explained explained = explain(*this, own, requests);
  flight->recorder().failed(number, requests.size(), explained.error.what());
  world.fail(explained.error.what());  // the first reason stays
  const Error error = explained.among(world.failure(), echo);
  state.fail(error);
  flight->await_written();
  return error;
}

Communicator::Communicator(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&& other) noexcept {
  Communicator old(std::move(other));
  std::swap(impl_, old.impl_);
  return *this;  // `old` waits for its operations
}

Communicator::~Communicator() {
  if (!impl_) return;
  impl_->wait_until_idle();
}

Communicator Communicator::open(const Axis& axis, CommunicatorOptions options) {
  if (!axis.world || axis.ranks.empty()) {
    throw Error(ErrorCode::invalid_argument, "Communicator::open: the axis is empty");
  }
  axis.world->check();
  const Communicator* const parent = options.parent;
  if (parent) {
    options.backend = std::string(parent->backend());
    options.device = parent->device();
  }
  auto impl = std::make_shared<Impl>(axis, std::move(options));
  impl->open_backend(parent ? parent->impl_.get() : nullptr);
  return Communicator(std::move(impl));
}

}  // namespace atoll_v1::atoll
