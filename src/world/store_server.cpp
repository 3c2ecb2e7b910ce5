#include "atoll/tooling/store.hpp"

#include <fmt/format.h>

#include "atoll/config.hpp"
#include "core/errors.hpp"
#include "core/settings.hpp"
#include "store/server.hpp"
#include "world/endpoint.hpp"
#include "world/launch.hpp"

namespace atoll_v1::atoll {

struct StoreServer::Impl {
  launch::Endpoint endpoint;
  std::unique_ptr<store::Server> server;
};

StoreServer::StoreServer(const Options& options) : impl_(std::make_unique<Impl>()) {
  require(options.ranks >= 1, "a store of {} ranks: at least 1", options.ranks);
  Config config;
  config.rank = 0;  // only rank 0 may choose port 0
  config.addr = options.address;
  config.token = options.token;
  config.rendezvous_timeout = options.rendezvous_timeout;
  config.cut_timeout = options.cut_timeout;
  config.heartbeat = options.heartbeat;
  require_valid(config);
  const auto endpoint = launch::configured_endpoint(config);
  require(endpoint.has_value(), "a store needs an address (host:port) and a token");
  impl_->endpoint = *endpoint;
  store::ServerOptions made;
  made.listeners = store::listen_as_rank_0(impl_->endpoint, options.ranks);
  made.token = options.token;
  made.size = options.ranks;
  made.rendezvous_timeout = options.rendezvous_timeout;
  made.cut_timeout = options.cut_timeout;
  made.heartbeat = options.heartbeat;
  made.loss_fails_job = false;
  made.server = "atoll-store";
  impl_->server = std::make_unique<store::Server>(std::move(made));
}

StoreServer::~StoreServer() = default;

std::string StoreServer::address() const {
  return fmt::format("{}:{}", impl_->endpoint.addresses.front(), impl_->endpoint.port);
}

void StoreServer::wait() { impl_->server->finish(std::chrono::hours(24 * 365)); }

}  // namespace atoll_v1::atoll
