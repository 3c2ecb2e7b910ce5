// Implements Observer: it connects to the store and decodes the answers of the ranks.
#include "atoll/observer.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"
#include "core/launch.hpp"
#include "core/store_observer.hpp"
#include "core/terminal_text.hpp"
#include "flight/observation.hpp"

namespace atoll_v1::atoll {
namespace {

// One malformed answer must not hide the other ranks.
ObservedRank readable(std::string_view answer) {
  try {
    return decode_observation(answer);
  } catch (const Error&) {
    ObservedRank rank;
    rank.state = ObservedRank::State::unreadable;
    return rank;
  }
}

ObservedRank rank_from(const store::Observed& observed) {
  using How = store::Answered::How;
  ObservedRank rank;
  if (observed.answer.how == How::answered && !observed.answer.text.empty()) {
    rank = readable(observed.answer.text);
  } else if (observed.answer.how == How::departed) {
    rank.state = ObservedRank::State::departed;
  } else if (observed.answer.how == How::answered) {
    rank.state = ObservedRank::State::answers;  // the rank has not opened a communicator yet
  } else {
    rank.state = observed.host.empty() ? ObservedRank::State::absent : ObservedRank::State::silent;
  }
  rank.host = terminal_text(observed.host);
  rank.pid = observed.pid;
  return rank;
}

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
  for (const store::Observed& rank : *observed) ranks.push_back(rank_from(rank));
  return ranks;
}

}  // namespace atoll_v1::atoll
