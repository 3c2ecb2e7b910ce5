// The part of the server that begins new epochs: it collects the processes that ask for a place in
// the next epoch, and decides when it begins and with which of them.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/host.hpp"
#include "core/log.hpp"
#include "store/connection.hpp"
#include "store/server.hpp"

namespace atoll_v1::atoll::store {

using net::Clock;

// Limit of new processes that wait at the same time, for each rank with which the job began.
constexpr std::size_t most_new_per_rank = 4;

void Server::handle_regroup(Connection& connection, const Frame& frame) {
  Candidacy wish = decode_candidacy(frame.body);
  const std::string why = why_not(wish);
  if (!why.empty()) {
    log::warn("the store refuses {}: {}", named(wish), why);
    connection.send(Kind::refusal, frame.request, ErrorCode::mismatch,
                    shared(fmt::format("{}: {}", named(wish), why)));
    return close(connection);
  }
  connection.wait(options_.cut_timeout);
  members_.insert(joining_.extract(connection.id()));
  if (!wish.is_new() && !epoch_deadline_) epoch_deadline_ = Clock::now() + wish.grace;
  const int rank = wish.rank;
  candidates_.push_back({&connection, frame.request, std::move(wish)});
  if (rank < 0) return;
  // The World has ended on this rank, so its old connection closes and the other ranks are told.
  for (auto& [id, member] : members_) {
    if (member.epoch() != &newest() || member.rank() != rank) continue;
    newest().table.forget(member);
    member.close();
  }
  std::erase_if(members_, [](const auto& member) { return !member.second.is_open(); });
  const bool is_news = newest().roster[rank].state == Peer::State::present;
  go(newest(), rank, Peer::State::regrouped, is_news);
}

// Returns why a process cannot wait for the next epoch; "" if it can.
std::string Server::why_not(const Candidacy& wish) const {
  if (options_.loss_fails_job)
    return "the job ends with its first failure; set ATOLL_FAILURE_SCOPE=communicator";
  if (wish.is_new()) {
    const std::size_t most = most_new_per_rank * static_cast<std::size_t>(options_.size);
    const auto waiting = std::ranges::count_if(
        candidates_, [](const Candidate& candidate) { return candidate.wish.is_new(); });
    if (static_cast<std::size_t>(waiting) < most) return "";
    return fmt::format("{} new processes wait already, and no more may wait at a time", most);
  }
  const Epoch& epoch = newest();
  if (wish.epoch != epoch.number || wish.rank >= epoch.roster.size()) {
    return fmt::format(
        "the job goes on in epoch {} without it; it can enter as a new process, "
        "with World::enter()",
        epoch.number);
  }
  const Peer& peer = epoch.roster[wish.rank];
  if (peer.state == Peer::State::present) return "";
  // The process whose connection closed or was silent still has the state of its rank.
  if (peer.state == Peer::State::lost && peer.host == wish.host && peer.pid == wish.pid) return "";
  return fmt::format("it {}; it can enter as a new process, with World::enter()",
                     peer.state == Peer::State::absent ? "has not joined the job" : peer.went());
}

// Removes a candidate whose connection has closed.
void Server::withdraw(const Connection& connection) {
  std::erase_if(candidates_,
                [&](const Candidate& candidate) { return candidate.connection == &connection; });
  if (!a_rank_waits()) epoch_deadline_.reset();
}

// Returns whether a rank of the last epoch is a candidate; new processes alone begin no epoch.
bool Server::a_rank_waits() const {
  return std::ranges::any_of(candidates_,
                             [](const Candidate& candidate) { return !candidate.wish.is_new(); });
}

// Refuses new processes with which the new epoch would fail on all ranks: those with other
// settings, or with the local rank of another process on their host.
void Server::refuse_misfits() {
  const auto rank = std::ranges::find_if(
      candidates_, [](const Candidate& candidate) { return !candidate.wish.is_new(); });
  if (rank == candidates_.end()) return;
  const std::string settings = rank->wish.settings;
  std::set<std::string, std::less<>> places;
  for (const Candidate& candidate : candidates_)
    if (!candidate.wish.is_new()) places.insert(candidate.wish.place);
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    const Candidacy& wish = candidate.wish;
    if (!wish.is_new()) return false;
    std::string why;
    if (wish.settings != settings) {
      why = fmt::format("its settings ({}) differ from those of the ranks ({})", wish.settings,
                        settings);
    } else if (!wish.place.empty() && !places.insert(wish.place).second) {
      why = fmt::format("another process is at its place ({}): set another ATOLL_LOCAL_RANK",
                        wish.place);
    }
    if (why.empty()) return false;
    candidate.connection->send(Kind::refusal, candidate.request, ErrorCode::mismatch,
                               shared(fmt::format("{}: {}", named(wish), why)));
    return true;
  });
}

void Server::begin_epoch() {
  epoch_deadline_.reset();
  refuse_misfits();
  std::vector<Candidacy> wishes;
  std::uint32_t fewest = 1;
  for (const Candidate& candidate : candidates_) {
    wishes.push_back(candidate.wish);
    if (!candidate.wish.is_new()) fewest = std::max(fewest, candidate.wish.min_ranks);
  }
  std::vector<Candidate> chosen;
  for (const std::size_t i : choose(wishes)) chosen.push_back(candidates_[i]);
  Epoch& last = newest();
  const bool has_state = std::ranges::any_of(
      chosen, [](const Candidate& candidate) { return !candidate.wish.is_new(); });
  if (!has_state || chosen.size() < fewest) {
    const std::string why =
        fmt::format("no epoch {}: {} of {} ranks are left in whole replicas, and min_ranks is {}",
                    last.number + 1, has_state ? chosen.size() : 0, last.roster.size(), fewest);
    declare(last, ErrorCode::aborted, why);
    return turn_away(ErrorCode::aborted, why);
  }
  seat(chosen);
  if (last.roster.any(Peer::State::present)) {
    declare(last, ErrorCode::timeout,
            fmt::format("epoch {} began without {}, because they did not call World::regroup() in "
                        "time",
                        last.number + 1, last.roster.named(Peer::State::present)));
  }
  turn_away(ErrorCode::mismatch,
            fmt::format("epoch {} began without this rank, because its replica is not whole or has "
                        "more ranks than it needs",
                        newest().number));
}

void Server::seat(const std::vector<Candidate>& chosen) {
  forget_epochs();
  const int size = static_cast<int>(chosen.size());
  Epoch& epoch = epochs_.emplace_back(newest().number + 1, size, &Server::reply);
  Seat seat{epoch.number, 0, {}, options_.secret, net::random_token(nonce_bytes)};
  for (const Candidate& candidate : chosen) seat.former_ranks.push_back(candidate.wish.former);
  for (const Candidate& candidate : chosen) {
    epoch.roster.join(seat.rank, candidate.wish.host, candidate.wish.pid);
    candidate.connection->join(epoch, seat.rank, options_.cut_timeout);
    withdraw(*candidate.connection);
    candidate.connection->send(Kind::welcome, candidate.request, std::nullopt,
                               shared(encode(seat)));
    ++seat.rank;
  }
  log::info("epoch {} begins with {} ranks", epoch.number, size);
}

// Refuses the ranks of the last epoch that still wait and, if the job `ends`, new processes as
// well.
void Server::turn_away(ErrorCode code, const std::string& why, bool ends) {
  for (const Candidate& candidate : std::exchange(candidates_, {})) {
    if (candidate.wish.is_new() && !ends) {
      candidates_.push_back(candidate);
      continue;
    }
    candidate.connection->send(Kind::refusal, candidate.request, code,
                               shared(fmt::format("{}: {}", named(candidate.wish), why)));
  }
}

// Forgets the epochs whose ranks are all gone.
void Server::forget_epochs() {
  const auto is_in_use = [this](const Epoch& epoch) {
    return std::ranges::any_of(members_,
                               [&](const auto& member) { return member.second.epoch() == &epoch; });
  };
  while (epochs_.size() > 1 && !is_in_use(epochs_.front())) epochs_.pop_front();
}

}  // namespace atoll_v1::atoll::store
