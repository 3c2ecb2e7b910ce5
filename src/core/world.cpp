#include "atoll/world.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "core/errors.hpp"
#include "core/failure.hpp"
#include "core/host.hpp"
#include "core/launch.hpp"
#include "core/log.hpp"
#include "core/socket.hpp"
#include "core/store.hpp"
#include "core/store_client.hpp"
#include "core/store_protocol.hpp"
#include "core/store_server.hpp"
#include "core/terminate.hpp"
#include "core/text.hpp"
#include "core/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

using net::Clock;
using std::chrono::milliseconds;

constexpr milliseconds farewell_patience{10'000};
// Extra time for the exchange of placements, so that the store times out first and its error names
// the ranks that never joined.
constexpr milliseconds placement_grace{10'000};
constexpr std::size_t token_bytes = 16;
constexpr int port_attempts = 16;

void check_key(std::string_view key) {
  require(!key.empty() && key.size() <= store::max_key_bytes,
          "a key of the store must have 1 to {} bytes, not {}", store::max_key_bytes, key.size());
}

void check_value(std::string_view key, std::string_view value) {
  require(value.size() <= store::max_value_bytes,
          "key \"{}\": a value of {} bytes; at most {} are allowed", key, value.size(),
          store::max_value_bytes);
}

std::vector<net::Address> resolve_all(const std::vector<std::string>& hosts, int port) {
  std::vector<net::Address> result;
  for (const std::string& host : hosts) {
    for (net::Address& address : net::resolve(host, port)) result.push_back(std::move(address));
  }
  return result;
}

// Listens on all addresses of the agreed endpoint that belong to this host; a host name can resolve
// to others as well. Replaces port 0 by a free port.
std::vector<net::Fd> listen_where_agreed(launch::Endpoint& endpoint) {
  std::vector<net::Fd> result;
  std::optional<Error> problem;
  for (const std::string& host : endpoint.addresses) {
    for (const net::Address& address : net::resolve(host, endpoint.port)) {
      if (endpoint.port == 0 && !result.empty()) break;
      try {
        result.push_back(net::listen_on(address));
      } catch (const Error& error) {
        problem = error;
      }
    }
  }
  if (result.empty()) {
    throw Error(problem->code(), fmt::format("rank 0 cannot serve the store: {}", problem->what()));
  }
  if (endpoint.port == 0) {
    const net::Address chosen = net::local_address(result.front().get());
    endpoint.port = net::port_of(chosen);
    endpoint.addresses = {net::numeric_host(chosen)};
    log::info("the store listens at {} port {}: set ATOLL_ADDR={}:{} for the other ranks",
              endpoint.addresses.front(), endpoint.port, endpoint.addresses.front(), endpoint.port);
  }
  return result;
}

// Listens on one free port, both on the address for other hosts and on loopback for this host.
std::vector<net::Fd> listen_anywhere(launch::Endpoint& endpoint) {
  const std::vector<net::Address> outside = resolve_all(endpoint.addresses, 0);
  for (int attempt = 1;; ++attempt) {
    std::vector<net::Fd> result;
    result.push_back(net::listen_on(outside.front()));
    endpoint.port = net::port_of(net::local_address(result.front().get()));
    if (net::is_loopback(outside.front())) return result;
    try {
      result.push_back(net::listen_on(net::resolve("127.0.0.1", endpoint.port).front()));
      return result;
    } catch (const Error&) {
      if (attempt == port_attempts) throw;
    }
  }
}

struct Placed {
  HostInfo host;
  int pid = 0;
  std::vector<std::string> addresses;  // addresses of the rank, one per rail
};

std::string encode(const Placed& placed) {
  return store::Packer()
      .text(placed.host.name)
      .text(placed.host.id)
      .number(static_cast<std::uint32_t>(placed.pid))
      .text(fmt::format("{}", fmt::join(placed.addresses, " ")))
      .take();
}

std::string own_host_id(const Config& config) {
  constexpr std::size_t most = 64;
  const bool plain = std::ranges::all_of(config.host_id, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
  require(plain && config.host_id.size() <= most,
          "ATOLL_HOST_ID=\"{}\": expected at most {} letters, digits, '-', '_' and '.'",
          config.host_id, most);
  const std::string id = net::host_id();
  return config.host_id.empty() ? id : fmt::format("{}/{}", id, config.host_id);
}

Placed decode_placed(std::string_view bytes) {
  constexpr std::size_t most = 512;
  constexpr std::size_t most_addresses = 1024;
  store::Unpacker in(bytes);
  Placed result;
  result.host.name = in.text(most);
  result.host.id = in.text(most);
  result.pid = static_cast<int>(in.number());
  const auto addresses = split(in.text(most_addresses), ' ');
  result.addresses.assign(addresses.begin(), addresses.end());
  in.finish();
  require(!addresses.front().empty(), ErrorCode::bad_data, "a rank has published no address");
  return result;
}

}  // namespace

struct World::Impl {
  Impl(Config config_, std::string launcher_, int rank_, int size_)
      : config(std::move(config_)), launcher(std::move(launcher_)), rank(rank_), size(size_) {}

  static World start(Config config, launch::Job job);
  void leave() noexcept;
  void check_movable() const {
    if (holds.use_count() > 1)
      throw Error(ErrorCode::invalid_argument,
                  "a World cannot be moved while a mesh or an axis of it exists: they keep its "
                  "address; move it before, or keep it in a std::unique_ptr");
  }
  void stay_alone();
  void join(launch::Job job);
  launch::Endpoint serve(const launch::Job& job, Clock::time_point deadline);
  void place(const std::vector<std::string>& encoded);

  Config config;
  std::string launcher;
  int rank;
  int size;
  int exceptions = std::uncaught_exceptions();
  std::vector<HostInfo> hosts;
  std::vector<Placement> placements;
  std::shared_ptr<Failure> failure = std::make_shared<Failure>();
  std::unique_ptr<launch::Rendezvous> rendezvous;
  std::unique_ptr<store::Server> server;  // serves the store; exists only on rank 0
  std::unique_ptr<store::Store> store;
  // Declared after `store`, so that it is destroyed first.
  std::optional<TerminateNotice> on_terminate;

  std::mutex mutex;  // guards all members below
  std::map<std::string, std::uint64_t, std::less<>> tickets;
  std::vector<std::function<void(bool)>> exit_callbacks;
  std::shared_ptr<void> companion;
  std::shared_ptr<const int> holds = std::make_shared<int>();  // copied by WorldInternals::hold()
};

// If an exception destroys the World, peers may wait for this rank, so it declares a failure
// instead of leaving normally.
void World::Impl::leave() noexcept {
  const bool unwinding = std::uncaught_exceptions() > exceptions;
  if (unwinding) {
    const char* const text = newest_error.text.data();
    store->fail(*text == 0 ? "ended by an exception"
                           : fmt::format("ended by an exception: {}", text));
  }
  bool failed = failure->get().has_value();
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
  for (auto callback = exit_callbacks.rbegin(); callback != exit_callbacks.rend(); ++callback) {
    try {
      (*callback)(failed);
    } catch (const std::exception& problem) {
      log::error("a callback registered with at_exit() threw: {}", problem.what());
    }
  }
  exit_callbacks.clear();
  store->answer_with({});
  companion.reset();
  on_terminate.reset();
  if (!unwinding) store->farewell();
  store.reset();
  if (server) server->finish(farewell_patience);
}

void World::Impl::stay_alone() {
  store = store::make_solo_store(failure);
  // The addresses are computed before the braces below. If they were the last initialiser in braces
  // and threw, g++ 12 would destroy the other members twice.
  std::vector<std::string> addresses = net::rail_addresses(config.interface);
  std::string host_id = own_host_id(config);
  place({encode({{net::host_name(), std::move(host_id), {}},
                 static_cast<int>(::getpid()),
                 std::move(addresses)})});
}

launch::Endpoint World::Impl::serve(const launch::Job& job, Clock::time_point deadline) {
  launch::Endpoint endpoint;
  store::ServerOptions options;
  if (job.agreed) {
    endpoint = *job.agreed;
    options.listeners = listen_where_agreed(endpoint);
  } else {
    endpoint.host_id = own_host_id(config);
    endpoint.addresses = {net::rail_addresses(config.interface).front()};
    endpoint.token = net::random_token(token_bytes);
    options.listeners = listen_anywhere(endpoint);
  }
  options.token = endpoint.token;
  options.size = size;
  options.rendezvous_timeout = config.rendezvous_timeout;
  server = std::make_unique<store::Server>(std::move(options));
  if (rendezvous) rendezvous->publish(launch::to_text(endpoint), deadline);
  return endpoint;
}

void World::Impl::join(launch::Job job) {
  const Clock::time_point deadline = Clock::now() + config.rendezvous_timeout;
  rendezvous = std::move(job.rendezvous);
  launch::Endpoint endpoint;
  if (rank == 0) {
    try {
      endpoint = serve(job, deadline);
    } catch (const std::exception& problem) {
      if (rendezvous) rendezvous->withdraw(problem.what());
      throw;
    }
  } else {
    endpoint = job.agreed ? *job.agreed : launch::endpoint_from_text(rendezvous->look_up(deadline));
  }
  const std::string host_id = own_host_id(config);
  if (endpoint.host_id == host_id)
    endpoint.addresses.insert(endpoint.addresses.begin(), "127.0.0.1");

  const int pid = static_cast<int>(::getpid());
  net::Fd socket = store::connect(resolve_all(endpoint.addresses, endpoint.port),
                                  {endpoint.token, rank, size, net::host_name(), pid}, deadline);
  // The local address of the connection to rank 0 is the best guess for an address that others
  // reach.
  const net::Address local = net::local_address(socket.get());
  const bool guess = config.interface.empty() && !net::is_loopback(local);
  Placed mine{{net::host_name(), host_id, {}}, pid, {net::numeric_host(local)}};
  if (!guess) mine.addresses = net::rail_addresses(config.interface);
  store = std::make_unique<store::Client>(std::move(socket), rank, failure);
  on_terminate.emplace([this](std::string_view reason) { store->fail(reason); });
  place(store->exchange("atoll/placement", encode(mine),
                        config.rendezvous_timeout + placement_grace));
}

void World::Impl::place(const std::vector<std::string>& encoded) {
  for (const std::string& bytes : encoded) {
    Placed placed = decode_placed(bytes);
    const int r = static_cast<int>(placements.size());
    auto host = std::ranges::find(hosts, placed.host.id, &HostInfo::id);
    if (host == hosts.end()) host = hosts.insert(hosts.end(), std::move(placed.host));
    placements.push_back({r, static_cast<int>(host - hosts.begin()),
                          static_cast<int>(host->ranks.size()), placed.pid,
                          placed.addresses.front(), placed.addresses});
    host->ranks.push_back(r);
  }
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
  return *this;  // leaves the job of the overwritten World
}
World::~World() {
  if (impl_) impl_->leave();
}

World World::from_env(Config config) {
  log::set_level(log::level_from_name(config.log));
  launch::Job job = launch::find(config);
  return Impl::start(std::move(config), std::move(job));
}

World World::from_ranks(int rank, int size, const Broadcast& broadcast, Config config) {
  log::set_level(log::level_from_name(config.log));
  return Impl::start(std::move(config), launch::from_broadcast(rank, size, broadcast));
}

World World::Impl::start(Config config, launch::Job job) {
  log::set_rank(job.rank);
  auto impl = std::make_unique<Impl>(std::move(config), job.launcher, job.rank, job.size);
  if (job.size == 1) {
    impl->stay_alone();
  } else {
    impl->join(std::move(job));
  }
  log::debug("rank {} of {}, started by {}", impl->rank, impl->size, impl->launcher);
  return World(std::move(impl));
}

World World::single(Config config) {
  auto impl = std::make_unique<Impl>(std::move(config), "single", 0, 1);
  impl->stay_alone();
  return World(std::move(impl));
}

int World::rank() const noexcept { return impl_->rank; }
int World::size() const noexcept { return impl_->size; }
int World::local_rank() const noexcept {
  if (impl_->config.local_rank >= 0) return impl_->config.local_rank;
  return impl_->placements[static_cast<std::size_t>(impl_->rank)].local_rank;
}
int World::local_size() const noexcept {
  const int host = impl_->placements[static_cast<std::size_t>(impl_->rank)].host;
  return static_cast<int>(impl_->hosts[static_cast<std::size_t>(host)].ranks.size());
}
std::string_view World::launcher() const noexcept { return impl_->launcher; }
const Config& World::config() const noexcept { return impl_->config; }
const std::vector<HostInfo>& World::hosts() const noexcept { return impl_->hosts; }
const std::vector<Placement>& World::placements() const noexcept { return impl_->placements; }

void World::put(std::string_view key, std::string_view value) {
  check_key(key);
  check_value(key, value);
  impl_->store->put(key, value);
}

std::string World::get(std::string_view key, milliseconds timeout) {
  check_key(key);
  return impl_->store->get(key, timeout);
}

std::vector<std::string> World::exchange(std::string_view key, std::string_view mine) {
  check_key(key);
  check_value(key, mine);
  return impl_->store->exchange(key, mine, impl_->config.timeout);
}

void World::barrier() { impl_->store->exchange("", "", impl_->config.timeout); }

std::uint64_t World::ticket(std::string_view key) {
  const std::lock_guard lock(impl_->mutex);
  return impl_->tickets.try_emplace(std::string(key)).first->second++;
}

void World::at_exit(std::function<void(bool failed)> callback) {
  const std::lock_guard lock(impl_->mutex);
  impl_->exit_callbacks.push_back(std::move(callback));
}

void World::fail(std::string_view reason) noexcept { impl_->store->fail(reason); }
std::optional<Error> World::failure() const { return impl_->failure->get(); }
void World::check() const { impl_->failure->check(); }

std::shared_ptr<void> WorldInternals::companion(
    World& world, const std::function<std::shared_ptr<void>()>& make) {
  const std::lock_guard lock(world.impl_->mutex);
  if (!world.impl_->companion) world.impl_->companion = make();
  return world.impl_->companion;
}

std::shared_ptr<const void> WorldInternals::hold(const World& world) { return world.impl_->holds; }
store::Store& WorldInternals::store(World& world) { return *world.impl_->store; }

World::Subscription World::on_failure(std::function<void(const Error&)> callback) {
  const std::uint64_t id = impl_->failure->subscribe(std::move(callback));
  Subscription result;
  result.registration_ = std::shared_ptr<void>(
      nullptr, [failure = impl_->failure, id](void*) { failure->unsubscribe(id); });
  return result;
}

}  // namespace atoll_v1::atoll
