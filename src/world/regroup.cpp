// Worlds of later epochs of a job.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "core/log.hpp"
#include "store/protocol.hpp"
#include "world/endpoint.hpp"
#include "world/introduction.hpp"
#include "world/world_impl.hpp"

namespace atoll_v1::atoll {
namespace {

store::Candidacy candidacy_of(const World::Regroup& wish, const Config& config,
                              std::string_view call) {
  require(wish.tag.size() <= store::max_key_bytes,
          "World::{}: a tag of {} bytes; at most {} are allowed", call, wish.tag.size(),
          store::max_key_bytes);
  require(wish.needed >= 1 && wish.min_ranks >= 1 && wish.grace.count() >= 0,
          "World::{}: needed {}, min_ranks {}, grace {} ms: at least 1, 1 and 0", call, wish.needed,
          wish.min_ranks, wish.grace.count());
  require(wish.needed == 1 || !wish.tag.empty(),
          "World::{}: a replica of {} ranks needs a tag that names it", call, wish.needed);
  require(config.failure_scope == "communicator",
          "World::{}: with ATOLL_FAILURE_SCOPE=\"{}\" the first failure ends the job; set it to "
          "communicator",
          call, config.failure_scope);
  store::Candidacy result;
  const bool has_place = config.local_rank >= 0;
  result.settings =
      fmt::format("ATOLL_TIMEOUT={}, ATOLL_CHECK=\"{}\", ATOLL_LOCAL_RANK {}",
                  config.timeout.count(), config.check, has_place ? "set" : "not set");
  if (has_place)
    result.place = fmt::format("host {}, local rank {}", own_host_id(config), config.local_rank);
  result.host = net::host_name();
  result.pid = static_cast<int>(::getpid());
  result.tag = wish.tag;
  result.needed = static_cast<std::uint32_t>(wish.needed);
  result.min_ranks = static_cast<std::uint32_t>(wish.min_ranks);
  result.grace = std::min(wish.grace, std::chrono::milliseconds(std::chrono::hours(24)));
  return result;
}

}  // namespace

World World::Impl::take_seat(const Impl& last, store::Candidacy candidacy) {
  const auto addresses = store::addresses_of(*last.endpoint);
  // If a rank is lost before all ranks have met, the others ask for another epoch. `unfinished`
  // keeps this World until the store has the next request, since its connection would look lost.
  std::unique_ptr<Impl> unfinished;
  for (;;) {
    const auto deadline = net::Clock::now() + candidacy.grace + last.config.rendezvous_timeout;
    store::Admission admission =
        store::connect(addresses, {last.endpoint->token, {}, candidacy}, deadline);
    store::Seat seat = store::decode_seat(admission.answer);
    log::set_rank(seat.rank);
    auto impl = std::make_unique<Impl>(last.config, last.launcher, seat.rank,
                                       static_cast<int>(seat.former_ranks.size()));
    impl->epoch = seat.epoch;
    impl->former_ranks = std::move(seat.former_ranks);
    impl->endpoint = last.endpoint;
    impl->server = last.server;
    // Another token, so that backends refuse connections of ranks of another epoch.
    impl->config.token =
        fmt::format("{} epoch {} {}", seat.secret.empty() ? last.endpoint->token : seat.secret,
                    seat.epoch, seat.nonce);
    try {
      impl->introduce(std::move(admission.socket));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_lost || impl->failure->get()) throw;
      log::info("epoch {} ends before its ranks have met: {}", seat.epoch, error.what());
      candidacy.epoch = seat.epoch;
      candidacy.rank = seat.rank;
      unfinished = std::move(impl);
      continue;
    }
    impl->watch(impl->parent_to_watch());
    return World(std::move(impl));
  }
}

World World::regroup(World& old, const Regroup& wish) {
  Impl& last = old.joined();
  require(last.endpoint.has_value(), "World::regroup: a job of one process has no store");
  store::Candidacy candidacy = candidacy_of(wish, last.config, "regroup");
  candidacy.epoch = last.epoch;
  candidacy.rank = candidacy.former = last.rank;
  last.store->end(Error(ErrorCode::aborted,
                        fmt::format("rank {}: World::regroup() has ended this World", last.rank)));
  return Impl::take_seat(last, std::move(candidacy));
}

World World::enter(const Regroup& wish, Config config) {
  log::set_level(log::level_from_name(config.log));
  store::Candidacy candidacy = candidacy_of(wish, config, "enter");
  // Finds a wrong interface now: in the next epoch it would be the error of all ranks.
  if (!config.interface.empty()) static_cast<void>(net::rail_addresses(config.interface));
  Impl before(std::move(config), "explicit", 0, 1);
  before.endpoint = launch::configured_endpoint(before.config);
  require(
      before.endpoint.has_value() && before.endpoint->port != 0,
      "World::enter: set ATOLL_ADDR (host:port of the store) and ATOLL_TOKEN (the secret of the "
      "job)");
  return Impl::take_seat(before, std::move(candidacy));
}

}  // namespace atoll_v1::atoll
