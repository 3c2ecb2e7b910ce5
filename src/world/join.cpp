// How a process becomes a rank of a job: it finds the job and its store, proves itself there, and
// the ranks exchange where they run.
#include <fmt/format.h>

#include <chrono>

#include "core/log.hpp"
#include "world/endpoint.hpp"
#include "world/world_impl.hpp"

namespace atoll_v1::atoll {
namespace {

using net::Clock;
using std::chrono::milliseconds;

// Extra time for the exchange of placements, so that the store times out first and its error names
// the ranks that never joined.
constexpr milliseconds placement_grace{10'000};
constexpr std::size_t token_bytes = 16;

}  // namespace

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
  launch::Endpoint chosen;
  store::ServerOptions options;
  if (job.agreed) {
    chosen = *job.agreed;
    options.listeners = store::listen_as_rank_0(chosen, size);
    if (chosen.token.empty()) options.secret = net::random_token(token_bytes);
  } else {
    chosen.host_id = own_host_id(config);
    chosen.addresses = {store::address_for(config.interface)};
    chosen.token = net::random_token(token_bytes);
    options.listeners = store::listen_anywhere(chosen);
  }
  options.token = chosen.token;
  options.size = size;
  options.rendezvous_timeout = config.rendezvous_timeout;
  options.cut_timeout = config.cut_timeout;
  options.heartbeat = config.heartbeat;
  options.raises_descriptor_limit = config.owns_process != 0;
  options.loss_fails_job = config.failure_scope != "communicator";
  server = std::make_shared<store::Server>(std::move(options));
  if (rendezvous) rendezvous->publish(launch::to_text(chosen), deadline);
  return chosen;
}

// Connects with the store. On failure, adds the lack of descriptors (rank 0) or a hint for torchrun
// to the error.
store::Admission World::Impl::enter(const store::Join& identity, Clock::time_point deadline) const {
  try {
    return store::connect(store::addresses_of(*endpoint), {endpoint->token, identity}, deadline);
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
  const bool is_external = config.store == "external";
  require(!is_external || job.agreed.has_value(),
          "ATOLL_STORE=external: set ATOLL_ADDR (host:port of atoll-store) and ATOLL_TOKEN (the "
          "secret of the job)");
  require(
      !is_external || config.failure_scope == "communicator",
      "ATOLL_STORE=external: set ATOLL_FAILURE_SCOPE=communicator on all ranks, since the job goes "
      "on after a loss");
  if (rank == 0 && !is_external) {
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
  if (endpoint->host_id == host_id)
    endpoint->addresses.insert(endpoint->addresses.begin(), "127.0.0.1");

  const store::Join identity{rank, size, net::host_name(), static_cast<int>(::getpid())};
  store::Admission admission = enter(identity, deadline);
  // The secret of the job also authenticates the connections of backends.
  config.token = admission.answer.empty() ? endpoint->token : admission.answer;
  introduce(std::move(admission.socket));
}

void World::Impl::introduce(net::Fd socket) {
  net::notice_cut(socket.get(), config.cut_timeout);
  std::string mine;
  try {
    std::vector<std::string> addresses{local_address(socket)};
    if (addresses.front().empty()) addresses = net::rail_addresses(config.interface);
    mine = encode(introduction(std::move(addresses)));
  } catch (const Error& problem) {
    mine = encode(problem);
  }
  const auto server = config.store == "external" ? store::Client::Server::atoll_store
                                                 : store::Client::Server::rank_0;
  use_store(
      std::make_unique<store::Client>(std::move(socket), rank, size, failure, departures, server));
  const milliseconds timeout = config.rendezvous_timeout + placement_grace;
  std::vector<std::string> introductions, processes;
  try {
    introductions = store->exchange(store::titled("joining the job", "placement"), mine, timeout);
    processes =
        store->exchange(store::titled("joining the job", "pid"), encoded_process(), timeout);
  } catch (const Error& problem) {
    // Ranks that still wait get this error, which names the ranks that are absent. Otherwise they
    // would get the loss of this rank when its connection ends. Ranks that regroup try again.
    const bool ends_job =
        problem.code() == ErrorCode::timeout && config.failure_scope != "communicator";
    if (ends_job) store->fail(problem.what());
    throw;
  }
  try {
    place(introductions, processes);
  } catch (const Error&) {
    // All ranks have the same values, so all of them throw this error. Each leaves with a farewell,
    // because the loss of its connection would replace this error on the others.
    store->farewell();
    throw;
  }
}

// Returns the best guess for an address at which other hosts reach this rank: the local address of
// the connection to rank 0, or the address of the endpoint if the socket is local. Returns "" if
// Config::interface is set or if this rank connects over loopback; the caller then takes the
// addresses of the interfaces.
std::string World::Impl::local_address(const net::Fd& socket) const {
  const net::Address local = net::local_address(socket.get());
  if (net::is_local_socket(local) && config.interface.empty()) {
    return net::numeric_host(net::resolve(endpoint->addresses.front(), endpoint->port).front());
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

void World::Impl::watch(std::optional<ParentProcess> launcher_process) {
  if (!launcher_process) return;
  parent.emplace(*std::move(launcher_process), config.owns_process != 0,
                 [this](std::string_view reason) { store->fail(reason); });
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

World World::Impl::start(Config config, launch::Job job) {
  log::set_rank(job.rank);
  auto impl = std::make_unique<Impl>(std::move(config), job.launcher, job.rank, job.size);
  // Looks for the launcher first, because a rank cannot find a launcher that has already ended.
  std::optional<ParentProcess> watched = impl->parent_to_watch();
  if (job.size == 1 && impl->config.store != "external") {
    impl->stay_alone();
  } else {
    impl->join(std::move(job));
  }
  impl->watch(std::move(watched));
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

}  // namespace atoll_v1::atoll
