#include "collectives/exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "sdk/backend.hpp"

namespace atoll_collectives {
namespace {

using namespace std::chrono_literals;

// Maximum time that a waiting rank spins: long enough to notice a peer that runs on another core,
// short compared with a scheduler time slice.
constexpr auto spin_limit = 30us;
// Limits for the time of one sleep of a waiting rank. The awaited event wakes the rank earlier; the
// limits bound how late the rank notices an abort, a deadline, or an event that did not wake it.
constexpr auto first_sleep = 1ms;
constexpr auto longest_sleep = 5ms;

}  // namespace

std::string Team::describe(int member) const {
  return fmt::format("rank {} (world rank {})", member,
                     world_ranks[static_cast<std::size_t>(member)]);
}

std::string waiting_text(std::span<const std::string> pending, std::string_view otherwise) {
  constexpr std::size_t most_named = 8;
  if (pending.empty()) return std::string(otherwise);
  const std::size_t named = std::min(pending.size(), most_named);
  auto text = fmt::format("waiting for {}", fmt::join(pending.first(named), "; "));
  if (named < pending.size()) {
    text += fmt::format("; and for {} more ranks", pending.size() - named);
  }
  return text;
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
    channel.sends.reset();
    channel.recvs.reset();
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

std::uint64_t Exchange::enqueue(int peer, Direction direction, const Queue::Item& item) {
  Queue& to = queue(peer, direction);
  to.items.push_back(item);
  if (direction == Direction::recv) {
    // The signatures in `items` move when it grows, so their final addresses are not known yet.
    static constexpr std::byte* unknown = nullptr;
    route(peer).expect(peer,
                       item.payload.empty() ? std::span(unknown, sizeof(Signature)) : item.payload);
  }
  to.total += item.payload.size();
  ++pending(direction);
  return ++to.queued;
}

void Exchange::send_signature(int peer, const Signature& signature) {
  enqueue(peer, Direction::send, {.signature = signature});
}

void Exchange::expect_signature(int peer, const Signature& signature) {
  enqueue(peer, Direction::recv, {.expected = signature});
}

std::uint64_t Exchange::send(int peer, std::span<const std::byte> data) {
  if (data.empty()) return channel(peer).sends.queued;
  // The const_cast is safe, because Exchange only reads a payload that it sends.
  const std::span payload(const_cast<std::byte*>(data.data()), data.size());
  return enqueue(peer, Direction::send, {.payload = payload});
}

std::uint64_t Exchange::recv(int peer, std::span<std::byte> data) {
  if (data.empty()) return channel(peer).recvs.queued;
  return enqueue(peer, Direction::recv, {.payload = data});
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
  run_until([&] { return channel(peer).sends.completed >= ticket; });
}

void Exchange::run_until_received(int peer, std::uint64_t ticket) {
  run_until([&] { return channel(peer).recvs.completed >= ticket; });
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

void Exchange::take_tickets() {
  for (std::size_t i = 0; i < tickets_.size(); ++i) tickets_[i] = team_.transports[i]->ticket();
}

// Sends before it receives, so that a rank that throws because a received signature does not match
// has already sent its own signature.
bool Exchange::progress() {
  bool moved = false;
  for (const int peer : peers_) moved |= transfer(peer, Direction::send);
  for (const int peer : peers_) moved |= transfer(peer, Direction::recv);
  return moved;
}

// Transfers at most one payload item per call, so that all peers progress at the same rate.
bool Exchange::transfer(int peer, Direction direction) {
  Queue& items = queue(peer, direction);
  const bool sends = direction == Direction::send;
  bool moved = false;
  while (items.pending()) {
    auto& item = items.items[items.next];
    const bool payload = !item.payload.empty();
    const auto rest = item.bytes().subspan(item.done);
    std::size_t n = 0;
    try {
      if (!rest.empty()) n = sends ? send_next(peer, items) : route(peer).recv(peer, rest);
    } catch (const Error& error) {
      throw Error(error.status(), fmt::format("{}: lost {} after {} of {} bytes {}: {}", label(),
                                              team_.describe(peer), items.moved, items.total,
                                              sends ? "were sent" : "had arrived", error.what()));
    }
    item.done += n;
    if (payload) items.moved += n;
    moved |= n > 0;
    if (n < rest.size()) return moved;
    if (!sends && !payload) accept_signature(peer, item);
    ++items.next;
    ++items.completed;
    --pending(direction);
    if (payload) break;
  }
  if (!items.pending()) {
    items.items.clear();
    items.next = 0;
  }
  return moved;
}

// Sends bytes of the next item and returns their number. A signature leaves together with the
// payload after it, which saves a system call and a packet; bytes of the payload that were sent are
// already counted as done.
std::size_t Exchange::send_next(int peer, Queue& items) {
  auto& item = items.items[items.next];
  const auto rest = item.bytes().subspan(item.done);
  const bool is_last = items.next + 1 == items.items.size();
  if (!item.payload.empty() || is_last || items.items[items.next + 1].payload.empty()) {
    return route(peer).send(peer, rest);
  }
  auto& after = items.items[items.next + 1];
  const std::size_t n = route(peer).send_both(peer, rest, after.payload);
  after.done = n - std::min(n, rest.size());
  items.moved += after.done;
  return std::min(n, rest.size());
}

// Sends the signature of this rank's call, unless it was sent. After this rank has found a
// mismatch, the peer needs the signature to report the same mismatch.
void Exchange::send_signature(int peer) noexcept {
  Queue& items = queue(peer, Direction::send);
  if (!items.pending() || !items.items[items.next].payload.empty()) return;
  auto& item = items.items[items.next];
  try {
    item.done += route(peer).send(peer, item.bytes().subspan(item.done));
  } catch (const Error&) {
    // Ignored: the caller reports the mismatch, which explains more than a lost peer.
  }
}

void Exchange::accept_signature(int peer, const Queue::Item& item) {
  const Signature& arrived = item.signature;
  if (arrived.magic != signature_magic) {
    throw Error(ATOLL_INTERNAL, fmt::format("{}: the stream from {} is out of sync", label(),
                                            team_.describe(peer)));
  }
  if (!agree(arrived, item.expected)) {
    send_signature(peer);
    throw_mismatch(team_.name, team_.describe(team_.rank), item.expected, team_.describe(peer),
                   arrived);
  }
  channel(peer).factor = arrived.factor;
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
    const auto at = static_cast<std::size_t>(
        std::find(team_.transports.begin(), team_.transports.end(), &route(peer)) -
        team_.transports.begin());
    if (channel(peer).sends.pending()) needs_[at].push_back({peer, Direction::send});
    if (channel(peer).recvs.pending()) needs_[at].push_back({peer, Direction::recv});
  }
}

void Exchange::wait(std::chrono::nanoseconds limit) {
  if (deadline_ != Clock::time_point::max()) {
    limit = std::clamp<std::chrono::nanoseconds>(deadline_ - Clock::now(), 0ns, limit);
  }
  collect_needs();
  const auto has_needs = [](const auto& needs) { return !needs.empty(); };
  if (std::ranges::count_if(needs_, has_needs) == 1) {
    const auto at =
        static_cast<std::size_t>(std::ranges::find_if(needs_, has_needs) - needs_.begin());
    return team_.transports[at]->wait(tickets_[at], needs_[at], limit);
  }
  poll_all([] { return false; }, limit);
}

void Exchange::sleep_until(const std::function<bool()>& done, std::chrono::nanoseconds limit) {
  take_tickets();
  if (progress()) return;
  collect_needs();
  poll_all(done, limit);
}

// Sleeps in one poll() of all transports. First announces that this rank sleeps, then checks
// done(), so that no wakeup is lost.
void Exchange::poll_all(const std::function<bool()>& done, std::chrono::nanoseconds limit) {
  std::vector<pollfd> descriptors;
  auto armed = Transport::Armed::sleep;
  std::size_t count = 0;
  for (; count < needs_.size() && armed == Transport::Armed::sleep; ++count) {
    armed = team_.transports[count]->arm(tickets_[count], needs_[count], descriptors);
  }
  if (armed == Transport::Armed::sleep && !done()) poll_for(descriptors, limit);
  for (std::size_t i = 0; i < count; ++i) team_.transports[i]->disarm();
}

std::string Exchange::label() const {
  return fmt::format("{} {} of communicator {} on {}", kind_name(operation_.kind),
                     operation_.sequence, team_.name, team_.describe(team_.rank));
}

std::string Exchange::pending_text() const {
  std::vector<std::string> pending;
  for (const int peer : peers_) {
    const auto& [sends, recvs, factor] = channel(peer);
    if (!sends.pending() && !recvs.pending()) continue;
    std::string& text = pending.emplace_back(team_.describe(peer));
    if (recvs.pending()) {
      text += fmt::format(", {} of {} bytes received", recvs.moved, recvs.total);
    }
    if (sends.pending()) text += fmt::format(", {} of {} bytes sent", sends.moved, sends.total);
    const auto why = team_.routes[static_cast<std::size_t>(peer)]->obstacle(peer);
    if (!why.empty()) text += fmt::format(" ({})", why);
  }
  return waiting_text(pending, "no transfer is pending");
}

}  // namespace atoll_collectives
