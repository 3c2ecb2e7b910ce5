#include "collectives/exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "sdk/describe.hpp"
#include "sdk/guard.hpp"
#include "collectives/relax.hpp"

namespace atoll_sdk {
namespace {

using namespace std::chrono_literals;

// Long enough to catch a peer that runs on another core, short against a time slice.
constexpr auto spin_limit = 30us;
// A sleeper is woken by what it waits for; the limit bounds how late abort and deadline are seen,
// and heals a wake-up that a transport could not deliver.
constexpr auto first_sleep = 1ms;
constexpr auto longest_sleep = 5ms;

// How many peers a message names before it says "and so many more".
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
  for (auto& lane : team.lanes) {
    lane.sends.clear();
    lane.recvs.clear();
    lane.next_send = lane.next_recv = 0;
    lane.sent = lane.to_send = lane.received = lane.to_receive = 0;
    lane.sends_queued = lane.sends_done = lane.recvs_queued = lane.recvs_done = 0;
  }
  peers_.reserve(team.lanes.size());
  for (int step = 1; step < team.size(); ++step) peers_.push_back((team.rank + step) % team.size());
}

void Exchange::greet(int peer) {
  announce(peer, signature_);
  expect(peer, signature_);
}

void Exchange::greet_all() {
  for (const int peer : peers_) greet(peer);
}

void Exchange::announce(int peer, const Signature& signature) {
  lane(peer).sends.push_back({Lane::Content::signature, nullptr, sizeof(Signature), 0, signature});
  ++lane(peer).sends_queued;
  ++pending_sends_;
}

void Exchange::expect(int peer, const Signature& signature) {
  lane(peer).recvs.push_back(
      {Lane::Content::signature, nullptr, sizeof(Signature), 0, signature, {}});
  ++lane(peer).recvs_queued;
  ++pending_recvs_;
}

std::uint64_t Exchange::send(int peer, std::span<const std::byte> data) {
  if (data.empty()) return lane(peer).sends_queued;
  lane(peer).sends.push_back({Lane::Content::payload, data.data(), data.size(), 0, {}});
  lane(peer).to_send += data.size();
  ++pending_sends_;
  return ++lane(peer).sends_queued;
}

std::uint64_t Exchange::recv(int peer, std::span<std::byte> data) {
  if (data.empty()) return lane(peer).recvs_queued;
  lane(peer).recvs.push_back({Lane::Content::payload, data.data(), data.size(), 0, {}, {}});
  lane(peer).to_receive += data.size();
  ++pending_recvs_;
  return ++lane(peer).recvs_queued;
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
  run_until([&] { return lane(peer).sends_done >= ticket; });
}

void Exchange::run_until_received(int peer, std::uint64_t ticket) {
  run_until([&] { return lane(peer).recvs_done >= ticket; });
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

// All sends before all receives: a rank that fails on what it reads has said what it wanted to say.
bool Exchange::progress() {
  bool moved = false;
  for (const int peer : peers_) moved |= push(peer);
  for (const int peer : peers_) moved |= pull(peer);
  return moved;
}

bool Exchange::push(int peer) {
  Lane& to = lane(peer);
  bool moved = false;
  while (to.next_send < to.sends.size()) {
    auto& item = to.sends[to.next_send];
    const bool payload = item.content == Lane::Content::payload;
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
    // One piece of payload per turn, so that every peer gets its share of this rank's time.
    if (payload) break;
  }
  if (to.next_send == to.sends.size()) {
    to.sends.clear();
    to.next_send = 0;
  }
  return moved;
}

bool Exchange::pull(int peer) {
  Lane& from = lane(peer);
  bool moved = false;
  while (from.next_recv < from.recvs.size()) {
    auto& item = from.recvs[from.next_recv];
    const bool payload = item.content == Lane::Content::payload;
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

void Exchange::finish_signature(int peer, const Lane::Incoming& item) const {
  if (item.arrived.magic != signature_magic) {
    throw Error(ATOLL_INTERNAL, fmt::format("{}: the stream from {} is out of step", label(),
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
    const Lane& l = lane(peer);
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
    const Lane& l = lane(peer);
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
  if (more > 0) text += fmt::format("; and {} more", more);
  return text.empty() ? "nothing pending" : text;
}

}  // namespace atoll_sdk
