#include "core/store_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/store_protocol.hpp"

namespace atoll_v1::atoll::store {
namespace {

std::string round_name(const std::string& key) {
  return key.empty() ? "barrier" : fmt::format("exchange \"{}\"", key);
}

double seconds(std::chrono::milliseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

Table::Body shared(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

}  // namespace

std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 16;
  std::string result;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i) {
    result += (i == 0 ? "" : ", ") + names[i];
  }
  return names.size() > most ? fmt::format("{} and {} more", result, names.size() - most) : result;
}

std::string Roster::named(int rank) const {
  const Peer& peer = (*this)[rank];
  return peer.state == Peer::State::absent
             ? fmt::format("rank {}", rank)
             : fmt::format("rank {} (host {}, pid {})", rank, peer.host, peer.pid);
}

std::string Roster::named(Peer::State state) const {
  std::vector<std::string> names;
  for (int rank = 0; rank < size(); ++rank) {
    if ((*this)[rank].state == state) names.push_back(named(rank));
  }
  return list_of(names);
}

bool Roster::any(Peer::State state) const {
  return std::ranges::any_of(peers_, [state](const Peer& peer) { return peer.state == state; });
}

void Table::put(const std::string& key, std::string value) {
  const Body body = shared(std::move(value));
  values_[key] = body;
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  for (const Waiter& waiter : std::exchange(found->second, {})) reply_(waiter, std::nullopt, body);
  waiting_.erase(key);
}

void Table::get(const Waiter& waiter, const std::string& key) {
  const auto found = values_.find(key);
  if (found != values_.end()) {
    reply_(waiter, std::nullopt, found->second);
  } else {
    waiting_[key].push_back(waiter);
  }
}

void Table::exchange(const Waiter& waiter, int rank, const std::string& key, std::string value,
                     const std::vector<int>& members) {
  Round& round = rounds_[key];
  if (round.entries.empty()) {
    round.entries.resize(static_cast<std::size_t>(roster_.size()));
    for (int other = 0; other < roster_.size() && !members.empty(); ++other)
      round.entries[static_cast<std::size_t>(other)].is_member =
          std::ranges::binary_search(members, other);
  }
  Round::Entry& entry = round.entries[static_cast<std::size_t>(rank)];
  if (!entry.is_missing()) {
    reply_(waiter, ErrorCode::mismatch,
           shared(fmt::format("rank {1} {2} {0}", round_name(key), rank,
                              entry.value ? "has already joined" : "does not take part in")));
    return;
  }
  round.bytes += value.size() + 4;
  entry.value = std::move(value);
  entry.waiter = waiter;
  entry.gave_up = false;
  if (std::ranges::none_of(round.entries, &Round::Entry::is_missing)) {
    complete(round);
    rounds_.erase(key);
    return;
  }
  for (int other = 0; other < roster_.size(); ++other) {
    if (roster_[other].state == Peer::State::departed) depart(other);
  }
}

void Table::complete(const Round& round) {
  if (round.bytes + 4 > max_answer_bytes) {
    for (const Round::Entry& entry : round.entries) {
      if (!entry.is_member) continue;
      reply_(entry.waiter, ErrorCode::invalid_argument,
             shared(fmt::format(
                 "an exchange of {} bytes in total is too large; at most {} are allowed",
                 round.bytes, max_answer_bytes)));
    }
    return;
  }
  Packer packer;
  for (const Round::Entry& entry : round.entries)
    if (entry.is_member) packer.text(*entry.value);
  const Body body = shared(packer.take());
  for (const Round::Entry& entry : round.entries)
    if (entry.is_member) reply_(entry.waiter, std::nullopt, body);
}

std::uint64_t Table::ask(const Waiter& waiter) {
  const std::uint64_t number = next_poll_++;
  Poll& poll = polls_[number];
  poll.waiter = waiter;
  poll.answers.resize(static_cast<std::size_t>(roster_.size()));
  return number;
}

void Table::answer(std::uint64_t number, int rank, std::string text) {
  const auto found = polls_.find(number);
  if (found == polls_.end()) return;
  found->second.answers[static_cast<std::size_t>(rank)] = std::move(text);
  settle();
}

bool Table::is_complete(const Poll& poll) const {
  for (int rank = 0; rank < roster_.size(); ++rank) {
    const bool there = roster_[rank].state == Peer::State::present;
    if (there && !poll.answers[static_cast<std::size_t>(rank)]) return false;
  }
  return true;
}

void Table::settle() {
  std::erase_if(polls_, [&](const auto& item) {
    const bool complete = is_complete(item.second);
    if (complete) finish(item.second);
    return complete;
  });
}

void Table::finish(const Poll& poll) const {
  std::vector<Answered> answers;
  for (int rank = 0; rank < roster_.size(); ++rank) {
    const auto& answer = poll.answers[static_cast<std::size_t>(rank)];
    if (roster_[rank].state == Peer::State::departed) {
      answers.push_back({Answered::How::departed, {}});
    } else if (answer) {
      answers.push_back({Answered::How::answered, *answer});
    } else {
      answers.push_back({Answered::How::silent, {}});
    }
  }
  reply_(poll.waiter, std::nullopt, shared(encode(answers)));
}

// Answers one rank of an exchange with an error and removes its value, so that the exchange cannot
// complete without this rank.
void Table::reject(Round& round, Round::Entry& entry, ErrorCode code, const std::string& why) {
  reply_(entry.waiter, code, shared(why));
  round.bytes -= entry.value->size() + 4;
  entry.value.reset();
  entry.gave_up = code == ErrorCode::timeout;
}

// Names the ranks that are missing in an exchange or barrier. Ranks with the same timeout time out
// one after the other, and a rank that took part until its timeout must not be reported as absent.
std::string Table::missing_in(const Round& round) const {
  std::vector<std::string> absent, gave_up;
  for (int rank = 0; rank < roster_.size(); ++rank) {
    const Round::Entry& entry = round.entries[static_cast<std::size_t>(rank)];
    if (entry.is_missing()) (entry.gave_up ? gave_up : absent).push_back(roster_.named(rank));
  }
  return absent.empty() ? list_of(gave_up) + " had already timed out, so not all ranks joined"
                        : list_of(absent) + " did not arrive";
}

net::Clock::time_point Table::next_deadline(net::Clock::time_point latest) const {
  for (const auto& [key, waiters] : waiting_) {
    for (const Waiter& waiter : waiters) latest = std::min(latest, waiter.deadline);
  }
  for (const auto& [key, round] : rounds_) {
    for (const Round::Entry& entry : round.entries) {
      if (entry.value) latest = std::min(latest, entry.waiter.deadline);
    }
  }
  for (const auto& [number, poll] : polls_) latest = std::min(latest, poll.waiter.deadline);
  return latest;
}

void Table::expire(net::Clock::time_point now) {
  for (auto& [key, waiters] : waiting_) {
    const auto late = std::ranges::partition(
        waiters, [now](const Waiter& waiter) { return waiter.deadline > now; });
    for (const Waiter& waiter : late) {
      reply_(
          waiter, ErrorCode::timeout,
          shared(fmt::format("no rank put key \"{}\" within {} s", key, seconds(waiter.timeout))));
    }
    waiters.erase(late.begin(), late.end());
  }
  std::erase_if(waiting_, [](const auto& item) { return item.second.empty(); });
  for (auto& [key, round] : rounds_) {
    const std::string missing = missing_in(round);
    for (Round::Entry& entry : round.entries) {
      if (!entry.value || entry.waiter.deadline > now) continue;
      reject(round, entry, ErrorCode::timeout,
             fmt::format("{}: {} within {} s", round_name(key), missing,
                         seconds(entry.waiter.timeout)));
    }
  }
  std::erase_if(rounds_, [](const auto& item) { return item.second.bytes == 0; });
  std::erase_if(polls_, [&](const auto& item) {
    const bool late = item.second.waiter.deadline <= now;
    if (late) finish(item.second);
    return late;
  });
}

void Table::depart(int rank) {
  for (auto& [key, round] : rounds_) {
    if (!round.entries[static_cast<std::size_t>(rank)].is_missing()) continue;
    for (Round::Entry& entry : round.entries) {
      if (!entry.value) continue;
      reject(round, entry, ErrorCode::peer_lost,
             fmt::format("{}: {} has left the job", round_name(key), roster_.named(rank)));
    }
  }
  std::erase_if(rounds_, [](const auto& item) { return item.second.bytes == 0; });
  settle();
}

void Table::forget(const Connection& connection) {
  for (auto& [key, waiters] : waiting_) {
    std::erase_if(waiters, [&](const Waiter& w) { return w.connection == &connection; });
  }
  for (auto& [key, round] : rounds_) {
    for (Round::Entry& entry : round.entries) {
      if (!entry.value || entry.waiter.connection != &connection) continue;
      round.bytes -= entry.value->size() + 4;
      entry.value.reset();
    }
  }
  std::erase_if(waiting_, [](const auto& item) { return item.second.empty(); });
  std::erase_if(rounds_, [](const auto& item) { return item.second.bytes == 0; });
  std::erase_if(polls_,
                [&](const auto& item) { return item.second.waiter.connection == &connection; });
}

void Table::forget_all() {
  waiting_.clear();
  rounds_.clear();
  polls_.clear();
}

}  // namespace atoll_v1::atoll::store
