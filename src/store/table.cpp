#include "store/table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace atoll_v1::atoll::store {
namespace {

using std::chrono::milliseconds;

std::string round_name(const std::string& key) {
  const auto title = key.find(title_end);
  if (title != std::string::npos)
    return title == 0 ? "a call of the library" : key.substr(0, title);
  return key.empty() ? "barrier" : fmt::format("exchange \"{}\"", key);
}

// Returns the start of an error message about an exchange or a barrier.
std::string subject(const std::string& key) {
  return key.starts_with(title_end) ? "" : round_name(key) + ": ";
}

double seconds(milliseconds duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

std::string NameList::text() const {
  return count_ > most ? fmt::format("{} and {} more", text_, count_ - most) : text_;
}

void Roster::join(int rank, std::string host, int pid) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  peer.host = std::move(host);
  peer.pid = pid;
  set(rank, Peer::State::present);
}

void Roster::set(int rank, Peer::State state) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  --counts_[static_cast<std::size_t>(peer.state)];
  ++counts_[static_cast<std::size_t>(state)];
  peer.state = state;
}

std::string Roster::named(int rank) const {
  const Peer& peer = (*this)[rank];
  return peer.state == Peer::State::absent
             ? fmt::format("rank {}", rank)
             : fmt::format("rank {} (host {}, pid {})", rank, peer.host, peer.pid);
}

std::string Roster::named(Peer::State state) const {
  NameList names;
  for (int rank = 0; rank < size(); ++rank) {
    if ((*this)[rank].state == state) names.add([&] { return named(rank); });
  }
  return names.text();
}

void Table::watch(const Waiter& waiter) {
  next_deadline_ = std::min(next_deadline_, waiter.deadline);
}

void Table::put(const std::string& key, std::string value) {
  const Body body = shared(std::move(value));
  values_[key] = body;
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  const auto waiters = std::exchange(found->second, {});
  waiting_.erase(found);
  for (const auto& [number, position] : waiters) {
    Fetch& fetch = fetches_.at(number);
    fetch.values[position] = body;
    if (--fetch.missing > 0) continue;
    finish(fetch);
    fetches_.erase(number);
  }
}

std::pair<Table::Body, bool> Table::claim(const std::string& key, std::string value) {
  if (const auto found = values_.find(key); found != values_.end()) return {found->second, false};
  put(key, std::move(value));
  return {values_.at(key), true};
}

void Table::get(const Waiter& waiter, std::vector<std::string> keys) {
  Fetch fetch{waiter, std::move(keys), {}, 0};
  const std::uint64_t number = next_number_++;
  for (std::size_t i = 0; i < fetch.keys.size(); ++i) {
    const auto found = values_.find(fetch.keys[i]);
    fetch.values.push_back(found == values_.end() ? nullptr : found->second);
    if (found != values_.end()) continue;
    waiting_[fetch.keys[i]].emplace_back(number, i);
    ++fetch.missing;
  }
  if (fetch.missing == 0) return finish(fetch);
  fetches_.emplace(number, std::move(fetch));
  watch(waiter);
}

void Table::finish(const Fetch& fetch) const {
  // Ranks that get the same single value share its bytes.
  if (fetch.keys.size() == 1) return reply_(fetch.waiter, std::nullopt, fetch.values.front());
  std::size_t bytes = 4;
  for (const Body& value : fetch.values) bytes += value->size() + 4;
  if (bytes > max_answer_bytes) {
    return reply_(fetch.waiter, ErrorCode::invalid_argument,
                  shared(fmt::format("{} values have {} bytes in total; at most {} are allowed",
                                     fetch.values.size(), bytes, max_answer_bytes)));
  }
  Packer packer;
  for (const Body& value : fetch.values) packer.text(*value);
  reply_(fetch.waiter, std::nullopt, shared(packer.take()));
}

// Removes an unanswered fetch.
void Table::abandon(std::uint64_t number) {
  const auto found = fetches_.find(number);
  for (std::size_t i = 0; i < found->second.keys.size(); ++i) {
    if (found->second.values[i]) continue;
    const auto key = waiting_.find(found->second.keys[i]);
    if (key == waiting_.end()) continue;  // a key that the fetch names twice is already erased
    std::erase_if(key->second, [&](const auto& waiter) { return waiter.first == number; });
    if (key->second.empty()) waiting_.erase(key);
  }
  fetches_.erase(found);
}

void Table::release(int rank, const std::string& prefix, const std::vector<Run>& ranks) {
  const auto [found, is_first] = readers_.try_emplace(prefix);
  std::set<int>& readers = found->second;
  if (is_first) {
    Round all;
    open(all, ranks);
    for (std::size_t i = 0; i < all.entries.size(); ++i)
      if (!roster_[all.rank_at(i)].is_gone()) readers.insert(readers.end(), all.rank_at(i));
  }
  readers.erase(rank);
  if (!readers.empty()) return;
  readers_.erase(found);
  erase(prefix);
}

void Table::erase(const std::string& prefix) {
  const auto first = values_.lower_bound(prefix);
  auto last = first;
  while (last != values_.end() && last->first.starts_with(prefix)) ++last;
  values_.erase(first, last);
}

const Table::Round::Entry* Table::Round::entry_of(int rank) const {
  if (members.empty()) return &entries[static_cast<std::size_t>(rank)];
  const auto found = std::ranges::lower_bound(members, rank);
  if (found == members.end() || *found != rank) return nullptr;
  return &entries[static_cast<std::size_t>(found - members.begin())];
}

Table::Round::Entry* Table::Round::entry_of(int rank) {
  return const_cast<Entry*>(std::as_const(*this).entry_of(rank));
}

std::vector<int> Table::Round::absent() const {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (!entries[i].value && !entries[i].gave_up) ranks.push_back(rank_at(i));
  return ranks;
}

void Table::open(Round& round, const std::vector<Run>& runs) const {
  round.runs = runs;
  round.members = ranks_of(runs);
  round.entries.resize(runs.empty() ? static_cast<std::size_t>(roster_.size())
                                    : round.members.size());
}

void Table::exchange(const Waiter& waiter, int rank, const std::string& key, std::string value,
                     const std::vector<Run>& members) {
  Round& round = rounds_[key];
  if (round.entries.empty()) open(round, members);
  Round::Entry* const entry = round.entry_of(rank);
  const char* const objection = entry == nullptr        ? "does not take part in"
                                : entry->value          ? "has already joined"
                                : round.runs != members ? "names other ranks than the others in"
                                                        : nullptr;
  if (objection != nullptr) {
    reply_(waiter, ErrorCode::mismatch,
           shared(fmt::format("rank {} {} {}", rank, objection, round_name(key))));
    if (is_over(round)) rounds_.erase(key);
    return;
  }
  if (round.cancelled) {
    reply_(waiter, ErrorCode::aborted, shared(*round.cancelled));
    entry->knows_of_cancel = true;
    if (is_over(round)) rounds_.erase(key);
    return;
  }
  round.bytes += value.size() + 4;
  ++round.joined;
  *entry = {.value = std::move(value), .waiter = waiter};
  watch(waiter);
  if (round.joined == round.entries.size()) {
    complete(round);
    rounds_.erase(key);
    return;
  }
  if (!roster_.any_gone()) return;
  for (std::size_t i = 0; i < round.entries.size(); ++i) {
    const int other = round.rank_at(i);
    if (!round.entries[i].value && roster_[other].is_gone()) return depart(other);
  }
}

void Table::cancel(int rank, const std::string& key, const std::string& why) {
  const auto found = rounds_.find(key);
  if (found == rounds_.end()) return;  // the exchange is complete
  Round& round = found->second;
  const Round::Entry* const own = round.entry_of(rank);
  if (own == nullptr || !own->value) return;
  round.cancelled = why;
  for (Round::Entry& entry : round.entries) {
    if (!entry.value) continue;
    reject(round, entry, ErrorCode::aborted, why);
    entry.knows_of_cancel = true;
  }
  forget_rounds();
}

bool Table::is_over(const Round& round) const {
  if (round.joined > 0) return false;
  if (!round.cancelled) return true;
  for (std::size_t i = 0; i < round.entries.size(); ++i) {
    if (!round.entries[i].knows_of_cancel && !roster_[round.rank_at(i)].is_gone()) return false;
  }
  return true;
}

void Table::forget_rounds() {
  std::erase_if(rounds_, [this](const auto& item) { return is_over(item.second); });
}

void Table::complete(const Round& round) {
  if (round.bytes + 4 > max_answer_bytes) {
    const Body why =
        shared(fmt::format("an exchange of {} bytes in total is too large; at most {} are allowed",
                           round.bytes, max_answer_bytes));
    for (const Round::Entry& entry : round.entries) {
      reply_(entry.waiter, ErrorCode::invalid_argument, why);
    }
    return;
  }
  std::vector<std::string_view> values;
  values.reserve(round.entries.size());
  for (const Round::Entry& entry : round.entries) values.emplace_back(*entry.value);
  const Body body = shared(encode_values(values));
  for (const Round::Entry& entry : round.entries) reply_(entry.waiter, std::nullopt, body);
}

std::uint64_t Table::ask(const Waiter& waiter) {
  const std::uint64_t number = next_number_++;
  Poll& poll = polls_[number];
  poll.waiter = waiter;
  poll.answers.resize(static_cast<std::size_t>(roster_.size()));
  for (int rank = 0; rank < roster_.size(); ++rank) {
    if (roster_[rank].state == Peer::State::present) poll.unanswered.insert(rank);
  }
  watch(waiter);
  return number;
}

bool Table::asks(const Connection& connection) const {
  return std::ranges::any_of(
      polls_, [&](const auto& item) { return item.second.waiter.connection == &connection; });
}

void Table::answer(std::uint64_t number, int rank, std::string text) {
  const auto found = polls_.find(number);
  if (found == polls_.end() || found->second.unanswered.erase(rank) == 0) return;
  found->second.answers[static_cast<std::size_t>(rank)] = std::move(text);
  if (found->second.unanswered.empty()) settle();
}

void Table::settle() {
  std::erase_if(polls_, [&](const auto& item) {
    const bool complete = item.second.unanswered.empty();
    if (complete) finish(item.second);
    return complete;
  });
}

void Table::finish(const Poll& poll) const {
  using How = Answered::How;
  std::vector<Answered> answers;
  for (int rank = 0; rank < roster_.size(); ++rank) {
    const auto& answer = poll.answers[static_cast<std::size_t>(rank)];
    const Peer& peer = roster_[rank];
    const How how = peer.is_gone() ? How::departed : answer ? How::answered : How::silent;
    answers.push_back({how, how == How::answered ? *answer : std::string(), peer.host, peer.pid});
  }
  reply_(poll.waiter, std::nullopt, shared(encode(answers)));
}

// Removes the value of one rank of an exchange, which cannot complete without this rank.
void Table::withdraw(Round& round, Round::Entry& entry) {
  round.bytes -= entry.value->size() + 4;
  --round.joined;
  entry.value.reset();
}

// Answers one rank of an exchange with an error and removes its value.
void Table::reject(Round& round, Round::Entry& entry, ErrorCode code, const std::string& why) {
  reply_(entry.waiter, code, shared(why));
  withdraw(round, entry);
  entry.gave_up = code == ErrorCode::timeout;
}

std::vector<int> Table::causes_of(const Round& round, net::Clock::time_point begin) const {
  std::set<int> seen, causes;
  std::vector<int> left = round.absent();
  while (!left.empty()) {
    const int rank = left.back();
    left.pop_back();
    if (!seen.insert(rank).second) continue;
    bool waits = false;
    const auto follow = [&](const std::vector<int>& others) {
      waits = true;
      left.insert(left.end(), others.begin(), others.end());
    };
    for (const auto& [key, other] : rounds_) {
      const Round::Entry* const entry = other.entry_of(rank);
      if (entry != nullptr && entry->value) follow(other.absent());
    }
    const auto timeout = timeouts_.find(rank);
    if (timeout != timeouts_.end() && timeout->second.when >= begin) follow(timeout->second.causes);
    if (!waits) causes.insert(rank);
  }
  return {causes.begin(), causes.end()};
}

std::string Table::names_of(const std::vector<int>& ranks) const {
  NameList names;
  for (const int rank : ranks) names.add([&] { return roster_.named(rank); });
  return names.text();
}

// Names the ranks that are missing in an exchange or barrier. Ranks with the same timeout time out
// one after the other, and a rank that took part until its timeout must not be reported as absent.
std::string Table::missing_in(const Round& round) const {
  const std::vector<int> absent = round.absent();
  if (!absent.empty()) return names_of(absent) + " did not arrive";
  std::vector<int> gave_up;
  for (std::size_t i = 0; i < round.entries.size(); ++i)
    if (round.entries[i].gave_up) gave_up.push_back(round.rank_at(i));
  return names_of(gave_up) + " had already timed out, so not all ranks joined";
}

// Says for whom the absent ranks wait, if they wait.
std::string Table::reason_of(const Round& round, const std::vector<int>& causes) const {
  const std::vector<int> absent = round.absent();
  if (causes.empty() || causes == absent) return "";
  return fmt::format("; {} waited for {}", absent.size() == 1 ? "it" : "some of them",
                     names_of(causes));
}

void Table::expire_fetches(net::Clock::time_point now) {
  std::vector<std::uint64_t> late;
  for (const auto& [number, fetch] : fetches_) {
    if (fetch.waiter.deadline > now) {
      watch(fetch.waiter);
      continue;
    }
    late.push_back(number);
    NameList keys;
    for (std::size_t i = 0; i < fetch.keys.size(); ++i) {
      if (!fetch.values[i]) keys.add([&] { return fmt::format("\"{}\"", fetch.keys[i]); });
    }
    reply_(fetch.waiter, ErrorCode::timeout,
           shared(fmt::format("no rank put key {} within {} s", keys.text(),
                              seconds(fetch.waiter.timeout))));
  }
  for (const std::uint64_t number : late) abandon(number);
}

void Table::expire_rounds(net::Clock::time_point now) {
  for (auto& [key, round] : rounds_) {
    std::string missing, reason;
    std::vector<int> causes;
    for (std::size_t i = 0; i < round.entries.size(); ++i) {
      Round::Entry& entry = round.entries[i];
      if (!entry.value) continue;
      const auto [deadline, timeout] = std::pair(entry.waiter.deadline, entry.waiter.timeout);
      if (deadline > now) {
        watch(entry.waiter);
        continue;
      }
      if (missing.empty()) {
        missing = missing_in(round);
        causes = causes_of(round, deadline - timeout);
        reason = reason_of(round, causes);
      }
      timeouts_[round.rank_at(i)] = {now, causes};
      reject(round, entry, ErrorCode::timeout,
             fmt::format("{}{} within {} s{}", subject(key), missing, seconds(timeout), reason));
    }
  }
  forget_rounds();
}

void Table::expire(net::Clock::time_point now) {
  if (now < next_deadline_) return;
  next_deadline_ = net::Clock::time_point::max();
  expire_fetches(now);
  expire_rounds(now);
  std::erase_if(polls_, [&](const auto& item) {
    const bool late = item.second.waiter.deadline <= now;
    if (late) finish(item.second);
    if (!late) watch(item.second.waiter);
    return late;
  });
}

void Table::depart(int rank) {
  for (auto& [key, round] : rounds_) {
    const Round::Entry* const own = round.entry_of(rank);
    if (own == nullptr || own->value) continue;
    for (Round::Entry& entry : round.entries) {
      if (!entry.value) continue;
      reject(round, entry, ErrorCode::peer_lost,
             fmt::format("{}{} {}", subject(key), roster_.named(rank), roster_[rank].went()));
    }
  }
  forget_rounds();
  for (auto entry = readers_.begin(); entry != readers_.end();) {
    const auto current = entry++;
    if (current->second.erase(rank) == 0 || !current->second.empty()) continue;
    erase(current->first);
    readers_.erase(current);
  }
  for (auto& [number, poll] : polls_) poll.unanswered.erase(rank);
  settle();
}

void Table::forget(const Connection& connection) {
  std::vector<std::uint64_t> gone;
  for (const auto& [number, fetch] : fetches_) {
    if (fetch.waiter.connection == &connection) gone.push_back(number);
  }
  for (const std::uint64_t number : gone) abandon(number);
  for (auto& [key, round] : rounds_) {
    for (Round::Entry& entry : round.entries) {
      if (entry.value && entry.waiter.connection == &connection) withdraw(round, entry);
    }
  }
  forget_rounds();
  std::erase_if(polls_,
                [&](const auto& item) { return item.second.waiter.connection == &connection; });
}

void Table::forget_all() {
  fetches_.clear();
  waiting_.clear();
  rounds_.clear();
  polls_.clear();
}

}  // namespace atoll_v1::atoll::store
