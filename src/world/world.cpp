#include "atoll/world.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/log.hpp"
#include "core/terminal_safe.hpp"
#include "store/protocol.hpp"
#include "world/world_impl.hpp"
#include "world/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds farewell_patience{10'000};

void check_key(std::string_view key) {
  require(!key.empty() && key.size() <= store::max_key_bytes,
          "a key of the store must have 1 to {} bytes, not {}", store::max_key_bytes, key.size());
}

void check_value(std::string_view key, std::string_view value) {
  require(value.size() <= store::max_value_bytes,
          "key \"{}\": a value of {} bytes; at most {} are allowed", key, value.size(),
          store::max_value_bytes);
}

}  // namespace

// Messages are single lines, so the reason becomes one line.
void World::Impl::fail(std::string_view reason) noexcept {
  try {
    const std::string line = one_line(reason);
    store->fail(line.empty() ? "World::fail() was called without a reason" : line);
  } catch (const std::exception&) {
    store->fail(reason);  // there was no memory for `line`
  }
}

// If an exception destroys the World, peers may wait for this rank, so it declares a failure
// instead of leaving normally.
void World::Impl::leave(bool alone) noexcept {
  const bool unwinding = std::uncaught_exceptions() > exceptions;
  if (unwinding) {
    const char* const text = newest_error.text.data();
    fail(*text == 0
             ? "an exception ended this rank, but it is not an atoll::Error of this thread, so its "
               "text is only in the output of this rank; use World::run() to send the text to all "
               "ranks"
             : fmt::format("ended by an exception; the newest error of this thread: {}", text));
  }
  bool failed = alone || failure->get().has_value() || !departures->all().empty();
  if (!exit_callbacks.empty() && !failed) {
    // Callbacks may shut down libraries that wait for all ranks without a timeout, so all ranks
    // first meet here, where an absent rank is named.
    try {
      store->exchange("", "", config.timeout);
    } catch (const std::exception& problem) {
      log::warn("the barrier at the end of the job failed: {}", problem.what());
      failed = true;
    }
  }
  while (const std::function<void(bool)> callback = take_exit_callback()) {
    try {
      callback(failed);
    } catch (const std::exception& problem) {
      log::error("a callback registered with at_exit() threw: {}", text_of(problem));
    } catch (...) {
      log::error("a callback registered with at_exit() threw: {}", foreign_exception);
    }
  }
  store->answer_with({});
  while (!companions.empty()) companions.pop_back();
  hook.reset();
  parent.reset();
  if (!unwinding) store->farewell(alone);
  store.reset();
  // The World of a later epoch may still need the server.
  if (server && server.use_count() == 1) server->finish(farewell_patience);
  server.reset();
}

std::function<void(bool)> World::Impl::take_exit_callback() {
  const std::lock_guard lock(mutex);
  if (exit_callbacks.empty()) return {};
  std::function<void(bool)> last = std::move(exit_callbacks.back());
  exit_callbacks.pop_back();
  return last;
}

World::World(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
World::World(World&& other) {
  if (other.impl_) other.impl_->check_movable();
  impl_ = std::move(other.impl_);
}
World& World::operator=(World&& other) {
  if (this != &other && impl_) impl_->check_movable();
  World old(std::move(other));
  std::swap(impl_, old.impl_);
  return *this;  // the destructor of `old` leaves the job of the overwritten World
}
World::~World() {
  if (!impl_) return;
  // A forked child is no rank. Leaks its copy: the threads to join do not exist in the child.
  if (!impl_->mark.is_here()) {
    static_cast<void>(impl_.release());
    return;
  }
  if (!impl_->store) return;  // leave() was called
  *impl_->holds = true;
  if (!impl_->failure->is_calling()) {
    impl_->leave(false);
    return;
  }
  log::error(
      "a callback of on_failure() destroyed its World, whose threads go on until the process ends: "
      "destroy a World outside its callbacks");
  static_cast<void>(impl_.release());  // its destructor would wait for this thread
}

void World::leave() {
  Impl& world = joined();
  require(!world.server || world.size == 1,
          "World::leave: rank 0 serves the store of the job, so it cannot leave before the others");
  require(world.holds.use_count() == 1,
          "World::leave: destroy the meshes, axes, communicators and engines of this World before");
  *world.holds = true;
  world.leave(true);
}

World::Impl& World::impl() const {
  require(impl_ != nullptr, "this World has been moved: use the World that it was moved to");
  return *impl_;
}

// Returns impl() in the process that joined the job, which alone has the threads and connections.
World::Impl& World::joined() const {
  Impl& world = impl();
  require(
      world.mark.is_here(),
      "this process was forked from rank {} (pid {}), so it cannot use the World, communicators "
      "or engines of that rank: use them before fork(), or start this process as a rank",
      world.rank, world.process);
  require(world.store != nullptr, "rank {} has left the job: World::leave() was called",
          world.rank);
  return world;
}

int World::rank() const { return impl().rank; }
int World::size() const { return impl().size; }
int World::local_rank() const {
  if (impl().config.local_rank >= 0) return impl().config.local_rank;
  return impl().placements[static_cast<std::size_t>(impl().rank)].local_rank;
}
int World::local_size() const {
  const int host = impl().placements[static_cast<std::size_t>(impl().rank)].host;
  return static_cast<int>(impl().hosts[static_cast<std::size_t>(host)].ranks.size());
}
std::string_view World::launcher() const { return impl().launcher; }
const Config& World::config() const { return impl().config; }
const std::vector<HostInfo>& World::hosts() const { return impl().hosts; }
const std::vector<Placement>& World::placements() const { return impl().placements; }
int World::epoch() const { return static_cast<int>(impl().epoch); }
const std::vector<int>& World::former_ranks() const { return impl().former_ranks; }

void World::put(std::string_view key, std::string_view value) {
  check_key(key);
  check_value(key, value);
  joined().store->put(key, value, impl().config.timeout);
}

std::string World::get(std::string_view key, milliseconds timeout) {
  check_key(key);
  return joined().store->get(key, timeout);
}

std::vector<std::string> World::exchange(std::string_view key, std::string_view mine) {
  check_key(key);
  check_value(key, mine);
  return joined().store->exchange(key, mine, impl().config.timeout);
}

void World::barrier() { joined().store->exchange("", "", impl().config.timeout); }

std::uint64_t World::ticket(std::string_view key) {
  const std::lock_guard lock(impl().mutex);
  return impl().tickets.try_emplace(std::string(key)).first->second++;
}

void World::at_exit(std::function<void(bool failed)> callback) {
  const std::lock_guard lock(impl().mutex);
  impl().exit_callbacks.push_back(std::move(callback));
}

void World::fail(std::string_view reason) noexcept {
  if (impl_ && impl_->mark.is_here()) return impl_->fail(reason);
  log::error("World::fail(\"{}\") has no effect, because {}", reason,
             impl_ ? "this process was forked from a rank" : "this World has been moved");
}

void World::fail_by(const std::exception* error) noexcept {
  const char* const text = error ? text_of(*error) : foreign_exception;
  fail(*text == 0 ? "an exception without a text" : text);
}

std::optional<Error> World::failure() const { return impl().failure->get(); }
void World::check() const { joined().failure->check(); }

std::shared_ptr<void> WorldInternals::companion(
    World& world, std::string_view name, const std::function<std::shared_ptr<void>()>& make) {
  World::Impl& impl = world.impl();
  const std::lock_guard lock(impl.making);
  for (const auto& [other, object] : impl.companions)
    if (other == name) return object;
  return impl.companions.emplace_back(name, make()).second;
}

std::shared_ptr<const void> WorldInternals::hold(const World& world) { return world.impl().holds; }
bool WorldInternals::is_over(const std::shared_ptr<const void>& hold) noexcept {
  return hold && static_cast<const std::atomic<bool>*>(hold.get())->load();
}
store::Store& WorldInternals::store(World& world) { return *world.joined().store; }
std::chrono::steady_clock::time_point WorldInternals::departure_time(const World& world, int rank) {
  return world.impl().departures->time_of(rank);
}

World::Subscription World::on_departure(std::function<void(int rank, const Error& why)> callback) {
  const std::shared_ptr<Departures> departures = impl().departures;
  const std::uint64_t id = departures->subscribe(std::move(callback));
  Subscription result;
  result.registration_ =
      std::shared_ptr<void>(nullptr, [departures, id](void*) { departures->unsubscribe(id); });
  return result;
}

std::vector<int> World::departed() const {
  std::vector<int> ranks;
  for (const auto& [rank, why] : impl().departures->all()) ranks.push_back(rank);
  return ranks;
}

World::Subscription World::on_failure(std::function<void(const Error&)> callback) {
  const std::shared_ptr<Failure> failure = impl().failure;  // the callback may move the World
  const std::uint64_t id = failure->subscribe(std::move(callback));
  Subscription result;
  result.registration_ =
      std::shared_ptr<void>(nullptr, [failure, id](void*) { failure->unsubscribe(id); });
  return result;
}

}  // namespace atoll_v1::atoll
