#include "atoll/world.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "core/errors.hpp"
#include "core/failure.hpp"
#include "core/host.hpp"
#include "core/log.hpp"
#include "core/parse.hpp"
#include "core/settings.hpp"
#include "core/socket.hpp"
#include "core/terminal_safe.hpp"
#include "store/client.hpp"
#include "store/protocol.hpp"
#include "store/server.hpp"
#include "store/store.hpp"
#include "world/endpoint.hpp"
#include "world/introduction.hpp"
#include "world/launch.hpp"
#include "world/parent.hpp"
#include "world/process_failure.hpp"
#include "world/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

using net::Clock;
using std::chrono::milliseconds;

constexpr milliseconds farewell_patience{10'000};
// Extra time for the exchange of placements, so that the store times out first and its error names
// the ranks that never joined.
constexpr milliseconds placement_grace{10'000};
constexpr std::size_t token_bytes = 16;

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

struct World::Impl {
  Impl(Config config_, std::string launcher_, int rank_, int size_)
      : config(std::move(config_)), launcher(std::move(launcher_)), rank(rank_), size(size_) {
    require_valid(config);
  }

  static World start(Config config, launch::Job job);
  void fail(std::string_view reason) noexcept;
  // Ends the membership of this rank. `alone`: the other ranks go on, and learn that it has left.
  void leave(bool alone) noexcept;
  void check_movable() const {
    if (holds.use_count() > 1)
      throw Error(ErrorCode::invalid_argument,
                  "a World cannot be moved while a mesh or an axis of it exists: they keep its "
                  "address; move it before, or keep it in a std::unique_ptr");
  }
  // Removes the last callback and returns it; an empty function without one. A callback may
  // register another one, which runs next.
  std::function<void(bool)> take_exit_callback();
  void use_store(std::unique_ptr<store::Store> made);
  void stay_alone();
  void simulate(const SimulatedJob& job);
  void join(launch::Job job);
  launch::Endpoint serve(const launch::Job& job, Clock::time_point deadline);
  store::Admission enter(const launch::Endpoint& endpoint, const store::Join& identity,
                         Clock::time_point deadline) const;
  std::string local_address(const net::Fd& socket, const launch::Endpoint& endpoint) const;
  Introduction introduction(std::vector<std::string> addresses) const;
  std::string encoded_process() const;  // encodes the Process of this rank
  void place(const std::vector<std::string>& introductions,
             const std::vector<std::string>& processes);
  std::optional<ParentProcess> parent_to_watch() const;

  Config config;
  std::string launcher;
  int rank;
  int size;
  int exceptions = std::uncaught_exceptions();
  std::vector<HostInfo> hosts;
  std::vector<Placement> placements;
  std::shared_ptr<Failure> failure = std::make_shared<Failure>();
  std::shared_ptr<Departures> departures = std::make_shared<Departures>();
  std::optional<launch::Rendezvous> rendezvous;
  std::unique_ptr<store::Server> server;  // serves the store; exists only on rank 0
  std::unique_ptr<store::Store> store;
  std::optional<ProcessFailureHook> hook;  // declared after `store`, so that it is destroyed first
  std::optional<ParentWatch> parent;
  int process = static_cast<int>(::getpid());  // the process that joined the job
  ProcessMark mark{};                          // mark of that process

  std::mutex mutex;  // guards all members below
  std::map<std::string, std::uint64_t, std::less<>> tickets;
  std::vector<std::function<void(bool)>> exit_callbacks;
  // Objects that other rooms have attached, the oldest first. Made under another mutex: to make
  // one, a room may call this World.
  std::vector<std::pair<std::string, std::shared_ptr<void>>> companions;
  std::mutex making;  // guards `companions`
  // Copied by WorldInternals::hold(); becomes true when the World is destroyed.
  std::shared_ptr<std::atomic<bool>> holds = std::make_shared<std::atomic<bool>>(false);
};

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
  if (server) server->finish(farewell_patience);
}

std::function<void(bool)> World::Impl::take_exit_callback() {
  const std::lock_guard lock(mutex);
  if (exit_callbacks.empty()) return {};
  std::function<void(bool)> last = std::move(exit_callbacks.back());
  exit_callbacks.pop_back();
  return last;
}

void World::Impl::use_store(std::unique_ptr<store::Store> made) {
  store = std::move(made);
  hook.emplace(
      [this](std::string_view reason) {
        if (failure->get()) return false;
        if (mark.is_here()) fail(reason);
        return true;
      },
      config.owns_process != 0);
}

void World::Impl::stay_alone() {
  use_store(store::make_solo_store(failure));
  place({encode(introduction(net::rail_addresses(config.interface)))}, {encoded_process()});
}

void World::Impl::simulate(const SimulatedJob& job) {
  use_store(store::make_solo_store(failure, size));
  for (int host = 0; host < job.hosts; ++host) {
    HostInfo& info = hosts.emplace_back();
    info.name = info.id = fmt::format("host{}", host);
    for (int local = 0; local < job.ranks_per_host; ++local) {
      const int number = host * job.ranks_per_host + local;
      info.ranks.push_back(number);
      Placement& place = placements.emplace_back();
      place.rank = number;
      place.host = host;
      place.local_rank = local;
    }
  }
}

launch::Endpoint World::Impl::serve(const launch::Job& job, Clock::time_point deadline) {
  launch::Endpoint endpoint;
  store::ServerOptions options;
  if (job.agreed) {
    endpoint = *job.agreed;
    options.listeners = store::listen_as_rank_0(endpoint, size);
    if (endpoint.token.empty()) options.secret = net::random_token(token_bytes);
  } else {
    endpoint.host_id = own_host_id(config);
    endpoint.addresses = {store::address_for(config.interface)};
    endpoint.token = net::random_token(token_bytes);
    options.listeners = store::listen_anywhere(endpoint);
  }
  options.token = endpoint.token;
  options.size = size;
  options.rendezvous_timeout = config.rendezvous_timeout;
  options.cut_timeout = config.cut_timeout;
  options.loss_fails_job = config.failure_scope != "communicator";
  server = std::make_unique<store::Server>(std::move(options));
  if (rendezvous) rendezvous->publish(launch::to_text(endpoint), deadline);
  return endpoint;
}

// Connects with the store. On failure, adds the lack of descriptors (rank 0) or a hint for torchrun
// to the error.
store::Admission World::Impl::enter(const launch::Endpoint& endpoint, const store::Join& identity,
                                    Clock::time_point deadline) const {
  try {
    return store::connect(store::addresses_of(endpoint), {endpoint.token, identity}, deadline);
  } catch (const Error& problem) {
    std::string more = server ? server->lack_of_descriptors() : "";
    if (!server && launcher == "torchrun" && problem.code() == ErrorCode::timeout)
      more = store::torchrun_remedy;
    if (more.empty()) throw;
    throw Error(problem.code(), problem.what() + more);
  }
}

void World::Impl::join(launch::Job job) {
  const Clock::time_point deadline = Clock::now() + config.rendezvous_timeout;
  rendezvous = std::move(job.rendezvous);
  launch::Endpoint endpoint;
  if (rank == 0) {
    try {
      endpoint = serve(job, deadline);
    } catch (const std::exception& problem) {
      if (rendezvous && rendezvous->withdraw) rendezvous->withdraw(problem.what());
      throw;
    }
  } else {
    endpoint = job.agreed ? *job.agreed : launch::endpoint_from_text(rendezvous->look_up(deadline));
  }
  const std::string host_id = own_host_id(config);
  if (endpoint.host_id == host_id)
    endpoint.addresses.insert(endpoint.addresses.begin(), "127.0.0.1");

  const store::Join identity{rank, size, net::host_name(), static_cast<int>(::getpid())};
  store::Admission admission = enter(endpoint, identity, deadline);
  net::notice_cut(admission.socket.get(), config.cut_timeout);
  // The secret of the job also authenticates the connections of backends.
  config.token = admission.secret.empty() ? endpoint.token : admission.secret;
  std::string mine;
  try {
    std::vector<std::string> addresses{local_address(admission.socket, endpoint)};
    if (addresses.front().empty()) addresses = net::rail_addresses(config.interface);
    mine = encode(introduction(std::move(addresses)));
  } catch (const Error& problem) {
    mine = encode(problem);
  }
  use_store(std::make_unique<store::Client>(std::move(admission.socket), rank, size, failure,
                                            departures));
  const milliseconds timeout = config.rendezvous_timeout + placement_grace;
  const auto introductions =
      store->exchange(store::titled("joining the job", "placement"), mine, timeout);
  const auto processes =
      store->exchange(store::titled("joining the job", "pid"), encoded_process(), timeout);
  try {
    place(introductions, processes);
  } catch (const Error&) {
    // All ranks have the same values, so all of them throw this error. A rank that vanished without
    // a farewell would replace it on the others.
    store->farewell();
    throw;
  }
}

// Returns the best guess for an address at which other hosts reach this rank: the local address of
// the connection to rank 0, or the address of the endpoint if the socket is local. Returns "" if
// Config::interface is set or if this rank connects over loopback; the caller then takes the
// addresses of the interfaces.
std::string World::Impl::local_address(const net::Fd& socket,
                                       const launch::Endpoint& endpoint) const {
  const net::Address local = net::local_address(socket.get());
  if (net::is_local_socket(local) && config.interface.empty()) {
    return net::numeric_host(net::resolve(endpoint.addresses.front(), endpoint.port).front());
  }
  const bool is_guess = config.interface.empty() && !net::is_loopback(local);
  return is_guess ? net::numeric_host(local) : std::string();
}

Introduction World::Impl::introduction(std::vector<std::string> addresses) const {
  // If an initialiser in the braces threw, g++ 12 could destroy the earlier members twice.
  std::string host = net::host_name(), id = own_host_id(config);
  return {std::move(host), std::move(id), std::move(addresses),
          config.timeout,  config.check,  config.failure_scope};
}

std::string World::Impl::encoded_process() const {
  return encode(Process{static_cast<int>(::getpid()), config.local_rank});
}

void World::Impl::place(const std::vector<std::string>& introductions,
                        const std::vector<std::string>& processes) {
  Layout layout = lay_out(introductions, processes);
  hosts = std::move(layout.hosts);
  placements = std::move(layout.placements);
  const bool is_first_of_host = placements[static_cast<std::size_t>(rank)].local_rank == 0;
  if (is_first_of_host) warn_of_unusable_folders(config);
}

std::optional<ParentProcess> World::Impl::parent_to_watch() const {
  if (config.parent == "ignore") return std::nullopt;
  const bool by_launcher =
      launcher == "pmix" || launcher == "pmi" || launcher == "torchrun" || launcher == "slurm";
  return find_parent(by_launcher || config.parent == "parent" ? WithoutLauncher::watch_parent
                                                              : WithoutLauncher::watch_nothing);
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
  // A forked child is no rank. Its copy is not destroyed either, because it has no threads to join.
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
  static_cast<void>(impl_.release());  // a thread of the World runs this callback
}

World World::from_env(Config config) {
  log::set_level(log::level_from_name(config.log));
  return Impl::start(config, store::find_job(config));
}

World World::from_ranks(int rank, int size, const Broadcast& broadcast, Config config) {
  log::set_level(log::level_from_name(config.log));
  return Impl::start(std::move(config), launch::from_broadcast(rank, size, broadcast));
}

World World::from_exchange(int rank, int size, Put put, Get get, Config config) {
  log::set_level(log::level_from_name(config.log));
  return Impl::start(std::move(config),
                     launch::from_exchange(rank, size, std::move(put), std::move(get)));
}

void World::leave() {
  Impl& world = joined();
  require(world.rank != 0 || world.size == 1,
          "World::leave: rank 0 serves the store of the job, so it cannot leave before the others");
  require(world.holds.use_count() == 1,
          "World::leave: destroy the meshes, axes, communicators and engines of this World before");
  *world.holds = true;
  world.leave(true);
}

World World::Impl::start(Config config, launch::Job job) {
  log::set_rank(job.rank);
  auto impl = std::make_unique<Impl>(std::move(config), job.launcher, job.rank, job.size);
  // Looks for the launcher first, because a rank cannot find a launcher that has already ended.
  std::optional<ParentProcess> watched = impl->parent_to_watch();
  if (job.size == 1) {
    impl->stay_alone();
  } else {
    impl->join(std::move(job));
  }
  if (watched) {
    impl->parent.emplace(*std::move(watched), impl->config.owns_process != 0,
                         [all = impl.get()](std::string_view reason) { all->store->fail(reason); });
  }
  log::debug("rank {} of {}, started by {}", impl->rank, impl->size, impl->launcher);
  return World(std::move(impl));
}

World World::single(Config config) {
  auto impl = std::make_unique<Impl>(std::move(config), "single", 0, 1);
  impl->stay_alone();
  return World(std::move(impl));
}

World World::simulated(const SimulatedJob& job, Config config) {
  constexpr int most = 1 << 20;  // maximum number of ranks
  require(job.hosts >= 1 && job.ranks_per_host >= 1 && job.hosts <= most / job.ranks_per_host,
          "World::simulated: {} hosts with {} ranks each: at least 1 of both, and at most {} ranks",
          job.hosts, job.ranks_per_host, most);
  const int size = job.hosts * job.ranks_per_host;
  require(job.rank >= 0 && job.rank < size, "World::simulated: rank {} is not in a job of {} ranks",
          job.rank, size);
  auto impl = std::make_unique<Impl>(std::move(config), "simulated", job.rank, size);
  impl->simulate(job);
  return World(std::move(impl));
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
