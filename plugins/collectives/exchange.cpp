#include "collectives/exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/relax.hpp"
#include "sdk/guard.hpp"
#include "sdk/operation.hpp"

namespace atoll_collectives {
namespace {

using namespace std::chrono_literals;

// Maximum time that a waiting rank spins: long enough to notice a peer that runs on another core,
// short compared with a scheduler time slice.
constexpr auto spin_limit = 30us;
// Time limits for one sleep. The event that a rank waits for wakes the rank; the limits bound how
// late the rank notices an abort, a deadline, or an event for which the wake-up was lost.
constexpr auto first_sleep = 1ms;
constexpr auto longest_sleep = 5ms;
// Error texts name at most this many peers and give only the number of the others.
constexpr int peers_named = 8;

}  // namespace

std::string Team::describe(int member) const {
  return fmt::format("rank {} (world rank {})", member,
                     world_ranks[static_cast<std::size_t>(member)]);
}

Exchange::Exchange(Team& team, const atoll_operation& operation)
    : team_(team),
      operation_(operation),
      signature_(make_signature(operation, team.size(), team.collectives)),
      deadline_(Clock::time_point::max()),
      tickets_(team.transports.size()),
      needs_(team.transports.size()) {
  const auto now = Clock::now();
  const auto timeout = std::chrono::nanoseconds(operation.timeout_ns);
  if (timeout > 0ns && timeout < deadline_ - now) deadline_ = now + timeout;
  for (auto& channel : team.channels) {
    channel.sends.clear();
    channel.recvs.clear();
    channel.next_send = channel.next_recv = 0;
    channel.sent = channel.to_send = channel.received = channel.to_receive = 0;
    channel.sends_queued = channel.sends_done = channel.recvs_queued = channel.recvs_done = 0;
  }
  peers_.reserve(team.channels.size());
  for (int step = 1; step < team.size(); ++step) peers_.push_back((team.rank + step) % team.size());
}

void Exchange::compare_with(int peer) {
  send_signature(peer, signature_);
  expect_signature(peer, signature_);
}

void Exchange::compare_with_all() {
  for (const int peer : peers_) compare_with(peer);
}

void Exchange::send_signature(int peer, const Signature& signature) {
  channel(peer).sends.push_back(
      {Channel::Content::signature, nullptr, sizeof(Signature), 0, signature});
  ++channel(peer).sends_queued;
  ++pending_sends_;
}

void Exchange::expect_signature(int peer, const Signature& signature) {
  channel(peer).recvs.push_back(
      {Channel::Content::signature, nullptr, sizeof(Signature), 0, signature, {}});
  ++channel(peer).recvs_queued;
  ++pending_recvs_;
}

std::uint64_t Exchange::send(int peer, std::span<const std::byte> data) {
  if (data.empty()) return channel(peer).sends_queued;
  channel(peer).sends.push_back({Channel::Content::payload, data.data(), data.size(), 0, {}});
  channel(peer).to_send += data.size();
  ++pending_sends_;
  return ++channel(peer).sends_queued;
}

std::uint64_t Exchange::recv(int peer, std::span<std::byte> data) {
  if (data.empty()) return channel(peer).recvs_queued;
  channel(peer).recvs.push_back({Channel::Content::payload, data.data(), data.size(), 0, {}, {}});
  channel(peer).to_receive += data.size();
  ++pending_recvs_;
  return ++channel(peer).recvs_queued;
}

void Exchange::start() {
  check();
  progress();
}

void Exchange::run_receives() {
  run_until([this] { return pending_recvs_ == 0; });
}

void Exchange::run() {
  run_receives();
  run_until([this] { return pending_sends_ == 0; });
}

void Exchange::run_until_sent(int peer, std::uint64_t ticket) {
  run_until([&] { return channel(peer).sends_done >= ticket; });
}

void Exchange::run_until_received(int peer, std::uint64_t ticket) {
  run_until([&] { return channel(peer).recvs_done >= ticket; });
}

template <class Done>
void Exchange::run_until(const Done& done) {
  std::chrono::nanoseconds sleep = first_sleep;
  while (!done()) {
    check();
    take_tickets();
    if (progress()) {
      sleep = first_sleep;
      continue;
    }
    if (team_.waiting == Waiting::spin_then_sleep && sleep == first_sleep && spin()) continue;
    wait(sleep);
    sleep = std::min<std::chrono::nanoseconds>(sleep * 2, longest_sleep);
  }
}

// Sends before it receives, so that a rank that throws because a received signature does not match
// has already sent its own signature.
bool Exchange::progress() {
  bool moved = false;
  for (const int peer : peers_) moved |= push(peer);
  for (const int peer : peers_) moved |= pull(peer);
  return moved;
}

bool Exchange::push(int peer) {
  Channel& to = channel(peer);
  bool moved = false;
  while (to.next_send < to.sends.size()) {
    auto& item = to.sends[to.next_send];
    const bool payload = item.content == Channel::Content::payload;
    const auto* data = payload ? item.data : reinterpret_cast<const std::byte*>(&item.signature);
    std::size_t n = 0;
    try {
      n = route(peer).send(peer, {data + item.done, item.size - item.done});
    } catch (const Error& error) {
      throw Error(error.status(),
                  fmt::format("{}: lost {} after {} of {} bytes were sent: {}", label(),
                              team_.describe(peer), to.sent, to.to_send, error.what()));
    }
    item.done += n;
    if (payload) to.sent += n;
    moved |= n > 0;
    if (item.done < item.size) return moved;
    ++to.next_send;
    ++to.sends_done;
    --pending_sends_;
    // Sends at most one payload item per call, so that all peers progress at the same rate.
    if (payload) break;
  }
  if (to.next_send == to.sends.size()) {
    to.sends.clear();
    to.next_send = 0;
  }
  return moved;
}

bool Exchange::pull(int peer) {
  Channel& from = channel(peer);
  bool moved = false;
  while (from.next_recv < from.recvs.size()) {
    auto& item = from.recvs[from.next_recv];
    const bool payload = item.content == Channel::Content::payload;
    auto* data = payload ? item.data : reinterpret_cast<std::byte*>(&item.arrived);
    std::size_t n = 0;
    try {
      n = route(peer).recv(peer, {data + item.done, item.size - item.done});
    } catch (const Error& error) {
      throw Error(error.status(),
                  fmt::format("{}: lost {} after {} of {} bytes had arrived: {}", label(),
                              team_.describe(peer), from.received, from.to_receive, error.what()));
    }
    item.done += n;
    if (payload) from.received += n;
    moved |= n > 0;
    if (item.done < item.size) return moved;
    if (!payload) {
      finish_signature(peer, item);
      from.factor = item.arrived.factor;
    }
    ++from.next_recv;
    ++from.recvs_done;
    --pending_recvs_;
    if (payload) break;
  }
  if (from.next_recv == from.recvs.size()) {
    from.recvs.clear();
    from.next_recv = 0;
  }
  return moved;
}

void Exchange::finish_signature(int peer, const Channel::Incoming& item) const {
  if (item.arrived.magic != signature_magic) {
    throw Error(ATOLL_INTERNAL, fmt::format("{}: the stream from {} is out of sync", label(),
                                            team_.describe(peer)));
  }
  if (agree(item.arrived, item.expected)) return;
  throw_mismatch(team_.name, team_.describe(team_.rank), item.expected, team_.describe(peer),
                 item.arrived);
}

void Exchange::check() const {
  if (team_.aborted.load(std::memory_order_acquire)) {
    throw Error(ATOLL_ABORTED, fmt::format("{}: aborted; {}", label(), pending_text()));
  }
  if (deadline_ != Clock::time_point::max() && Clock::now() >= deadline_) {
    throw Error(ATOLL_TIMEOUT,
                fmt::format("{}: timed out after {:.3f} s; {}", label(),
                            static_cast<double>(operation_.timeout_ns) * 1e-9, pending_text()));
  }
}

void Exchange::take_tickets() {
  for (std::size_t i = 0; i < tickets_.size(); ++i) tickets_[i] = team_.transports[i]->ticket();
}

bool Exchange::spin() {
  for (const auto* transport : team_.transports) {
    if (!transport->can_spin()) return false;
  }
  const auto end = Clock::now() + spin_limit;
  do {
    for (std::size_t i = 0; i < tickets_.size(); ++i) {
      if (team_.transports[i]->changed(tickets_[i])) return true;
    }
    relax();
  } while (Clock::now() < end);
  return false;
}

void Exchange::collect_needs() {
  for (auto& needs : needs_) needs.clear();
  for (const int peer : peers_) {
    const Channel& l = channel(peer);
    const auto at = static_cast<std::size_t>(
        std::find(team_.transports.begin(), team_.transports.end(), &route(peer)) -
        team_.transports.begin());
    if (l.next_send < l.sends.size()) needs_[at].push_back({peer, Direction::send});
    if (l.next_recv < l.recvs.size()) needs_[at].push_back({peer, Direction::recv});
  }
}

void Exchange::wait(std::chrono::nanoseconds limit) {
  if (deadline_ != Clock::time_point::max()) {
    limit = std::clamp<std::chrono::nanoseconds>(deadline_ - Clock::now(), 0ns, limit);
  }
  collect_needs();
  const auto busy =
      std::count_if(needs_.begin(), needs_.end(), [](const auto& needs) { return !needs.empty(); });
  if (busy == 1) {
    const auto at = static_cast<std::size_t>(
        std::find_if(needs_.begin(), needs_.end(), [](const auto& n) { return !n.empty(); }) -
        needs_.begin());
    team_.transports[at]->wait(tickets_[at], needs_[at], limit);
    return;
  }
  std::vector<pollfd> descriptors;
  auto armed = Transport::Armed::sleep;
  std::size_t count = 0;
  for (; count < needs_.size() && armed == Transport::Armed::sleep; ++count) {
    armed = team_.transports[count]->arm(tickets_[count], needs_[count], descriptors);
  }
  if (armed == Transport::Armed::sleep) {
    const timespec time{0, static_cast<long>(limit.count())};
    ::ppoll(descriptors.data(), descriptors.size(), &time, nullptr);
  }
  for (std::size_t i = 0; i < count; ++i) team_.transports[i]->disarm();
}

std::string Exchange::label() const {
  return fmt::format("{} {} of communicator {} on {}", kind_name(operation_.kind),
                     operation_.sequence, team_.name, team_.describe(team_.rank));
}

std::string Exchange::pending_text() const {
  std::string text;
  int named = 0;
  int more = 0;
  for (const int peer : peers_) {
    const Channel& l = channel(peer);
    const bool receives = l.next_recv < l.recvs.size();
    const bool sends = l.next_send < l.sends.size();
    if (!receives && !sends) continue;
    if (++named > peers_named) {
      ++more;
      continue;
    }
    text += fmt::format("{}{}", text.empty() ? "waiting for " : "; ", team_.describe(peer));
    if (receives) text += fmt::format(", {} of {} bytes received", l.received, l.to_receive);
    if (sends) text += fmt::format(", {} of {} bytes sent", l.sent, l.to_send);
  }
  if (more > 0) text += fmt::format("; and for {} more ranks", more);
  return text.empty() ? "no transfer is pending" : text;
}

}  // namespace atoll_collectives
