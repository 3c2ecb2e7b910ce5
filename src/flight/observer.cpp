// Implements Observer: it connects to the store and decodes the answers of the ranks.
#include "atoll/observer.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"
#include "core/launch.hpp"
#include "core/store_observer.hpp"
#include "flight/observation.hpp"

namespace atoll_v1::atoll {
namespace {

store::Observer connect(const std::string& address, const std::string& token,
                        std::chrono::milliseconds patience) {
  require(!address.empty(), "an observer needs the address of the job (ATOLL_ADDR)");
  require(!token.empty(), "an observer needs the token of the job (ATOLL_TOKEN)");
  Config config;
  config.addr = address;
  config.token = token;
  const launch::Endpoint endpoint = *launch::configured_endpoint(config);
  return {net::resolve(endpoint.addresses.front(), endpoint.port), token,
          net::Clock::now() + patience};
}

}  // namespace

struct Observer::Impl {
  store::Observer store;
};

Observer::Observer(const std::string& address, const std::string& token,
                   std::chrono::milliseconds patience)
    : impl_(std::make_unique<Impl>(Impl{connect(address, token, patience)})) {}

Observer::~Observer() = default;
Observer::Observer(Observer&&) noexcept = default;
Observer& Observer::operator=(Observer&&) noexcept = default;

std::optional<std::vector<ObservedRank>> Observer::look(std::chrono::milliseconds patience) {
  const auto observed = impl_->store.look(patience);
  if (!observed) return std::nullopt;
  std::vector<ObservedRank> ranks;
  for (const store::Observed& rank : *observed) ranks.push_back(observed_rank(rank));
  return ranks;
}

}  // namespace atoll_v1::atoll
