#include "world/endpoint.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "core/errors.hpp"
#include "core/host.hpp"
#include "core/log.hpp"
#include "store/client.hpp"
#include "store/protocol.hpp"

namespace atoll_v1::atoll::store {
namespace {

constexpr int port_attempts = 16;

std::vector<net::Address> resolve_all(const std::vector<std::string>& hosts, int port) {
  std::vector<net::Address> result;
  for (const std::string& host : hosts) {
    for (net::Address& address : net::resolve(host, port)) result.push_back(std::move(address));
  }
  return result;
}

// Returns the addresses on which rank 0 listens if the ranks know it as `host`. If a host's own
// name resolves to loopback, other hosts may know another address of it, so rank 0 listens on all.
std::vector<net::Address> own_addresses(const std::string& host, int port) {
  std::vector<net::Address> result = net::resolve(host, port);
  if (!std::ranges::all_of(result, net::is_loopback) || net::names_loopback(host)) return result;
  return resolve_all({"0.0.0.0", "::"}, port);
}

bool is_of_this_host(const std::string& host) {
  return std::ranges::any_of(own_addresses(host, 0), [](const net::Address& address) {
    try {
      net::listen_on(address);
      return true;
    } catch (const Error&) {
      return false;
    }
  });
}

// Listens on each address of the agreed endpoint that belongs to this host; a host name may also
// resolve to addresses of other hosts. Replaces port 0 by a free port.
std::vector<net::Fd> listen_where_agreed(launch::Endpoint& endpoint) {
  std::vector<net::Fd> result;
  std::optional<Error> problem;
  for (const std::string& host : endpoint.addresses) {
    for (const net::Address& address : own_addresses(host, endpoint.port)) {
      if (endpoint.port == 0 && !result.empty()) break;
      try {
        result.push_back(net::listen_on(address));
      } catch (const Error& error) {
        problem = error;
      }
    }
  }
  if (result.empty()) throw Error(*problem);
  if (endpoint.port == 0) {
    const net::Address chosen = net::local_address(result.front().get());
    endpoint.port = net::port_of(chosen);
    const std::string numeric = net::numeric_host(chosen);
    if (numeric != "0.0.0.0" && numeric != "::") endpoint.addresses = {numeric};
    log::info("the store listens at {} port {}: set ATOLL_ADDR={}:{} for the other ranks",
              endpoint.addresses.front(), endpoint.port, endpoint.addresses.front(), endpoint.port);
  }
  return result;
}

// Without a token, the ranks of one host and one user meet at this Unix socket, because the kernel
// reports the user of the peer for a Unix socket, but not for TCP.
net::Address socket_of_user(const launch::Endpoint& endpoint) {
  return net::local_socket(fmt::format("atoll/store/{}", endpoint.port));
}

}  // namespace

std::string address_for(std::string_view interfaces) {
  try {
    return net::rail_addresses(interfaces).front();
  } catch (const Error&) {
    return net::rail_addresses("").front();
  }
}

std::vector<net::Address> addresses_of(const launch::Endpoint& endpoint) {
  if (endpoint.token.empty()) return {socket_of_user(endpoint)};
  return resolve_all(endpoint.addresses, endpoint.port);
}

std::string refusal_of(const launch::Endpoint& endpoint, int rank, int size) {
  constexpr std::chrono::milliseconds patience{1'000};
  const Join identity{rank, size, net::host_name(), static_cast<int>(::getpid())};
  try {
    connect(addresses_of(endpoint), {endpoint.token, identity}, net::Clock::now() + patience);
    return "another rank 0 of the job listens there";
  } catch (const Error& error) {
    return error.code() == ErrorCode::mismatch ? error.what() : "";
  }
}

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

std::vector<net::Fd> listen_as_rank_0(launch::Endpoint& endpoint, int size) {
  try {
    if (!endpoint.token.empty()) return listen_where_agreed(endpoint);
    std::vector<net::Fd> result;
    result.push_back(net::listen_on(socket_of_user(endpoint)));
    return result;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::io) throw;
    // Another rank 0 may already listen at the address; its store then returns a refusal.
    const std::string refusal = refusal_of(endpoint, 0, size);
    if (!refusal.empty()) {
      throw make_error(ErrorCode::mismatch, "rank 0 cannot serve the store: {}", refusal);
    }
    require(std::ranges::any_of(endpoint.addresses, is_of_this_host), ErrorCode::io,
            "rank 0 cannot serve the store: it runs on host {}, but {} is not an address of that "
            "host: set ATOLL_ADDR={}:PORT and ATOLL_TOKEN on every rank{}",
            net::host_name(), fmt::join(endpoint.addresses, ", "), net::host_name(),
            torchrun_remedy);
    throw make_error(ErrorCode::io,
                     "rank 0 cannot serve the store: {}; the store needs a free port of the host "
                     "of rank 0 (ATOLL_ADDR, or MASTER_ADDR and ATOLL_PORT)",
                     error.what());
  }
}

launch::Job find_job(const Config& config) {
  try {
    return launch::find(config);
  } catch (const Error&) {
    if (config.rank > 0 && config.rank >= config.size && config.size > 0) {
      try {
        const auto endpoint = launch::configured_endpoint(config);
        if (endpoint) refusal_of(*endpoint, config.rank, config.size);
      } catch (const Error&) {
        // ATOLL_ADDR is wrong as well, so this process cannot report itself to rank 0.
      }
    }
    throw;
  }
}

}  // namespace atoll_v1::atoll::store
