#include "verbs/verbs_transport.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "sdk/backend.hpp"

namespace atoll_verbs_backend {
namespace {

using namespace std::chrono_literals;
using atoll_collectives::Need;
using atoll_sdk::Error;

constexpr int completions_at_once = 32;
// Time for which finish() waits for the acknowledgments of a peer that has closed already.
constexpr auto parting_time = 20ms;
constexpr auto probe_period = 1s;  // time without an event after which a peer is probed
// Time between two lookups of an address; it doubles from first_pause to longest_pause.
constexpr auto first_pause = 1ms;
constexpr auto longest_pause = 200ms;
// Maximum bytes of all rings of a rank; each ring has from smallest_ring to longest_ring bytes.
constexpr std::size_t ring_budget = 64 * 1024 * 1024;
constexpr std::size_t smallest_ring = 16 * 1024;
constexpr std::size_t longest_ring = 256 * 1024;

std::size_t ring_for(int remote_ranks) {
  const std::size_t share = ring_budget / static_cast<std::size_t>(std::max(remote_ranks, 1));
  std::size_t ring = smallest_ring;
  while (ring < longest_ring && 2 * ring <= share) ring *= 2;
  return ring;
}

}  // namespace

VerbsTransport::VerbsTransport(Settings settings, Exchange exchange, Membership membership)
    : settings_(std::move(settings)),
      exchange_(std::move(exchange)),
      membership_(std::move(membership)),
      ring_bytes_(ring_for(membership_.remote_ranks)),
      hcas_(open_hcas(settings_)),
      peers_(static_cast<std::size_t>(membership_.ranks)),
      state_(std::make_unique<State>()) {
  for (const auto& hca : hcas_) rails_.push_back(open_rail(hca, membership_.remote_ranks));
  credits_ = credits_of(rails_, membership_.remote_ranks);
  state_->owners.resize(rails_.size());
}

std::string VerbsTransport::description() const {
  std::vector<std::string> lines;
  for (const auto& hca : hcas_) lines.push_back(hca->description());
  return fmt::format("{}", fmt::join(lines, "; "));
}

// --- connecting ----------------------------------------------------------------------------------

VerbsTransport::Peer& VerbsTransport::at(int rank) {
  auto& peer = peers_[static_cast<std::size_t>(rank)];
  if (!peer) {
    peer = std::make_unique<Peer>(
        [this](std::span<const std::byte> data) { return ranges_.find(data); });
  }
  return *peer;
}

void VerbsTransport::create(Peer& peer) {
  for (auto& rail : rails_) add_queue_pairs(rail, settings_.queue_pairs);
  peer.connection = std::make_unique<Connection>(hcas_, rails_, settings_, ring_bytes_, credits_);
  for (std::size_t i = 0; i < peer.connection->queues(); ++i) {
    state_->owners[peer.connection->rail_of(i)][peer.connection->number_of(i)] = {&peer, i};
  }
}

// Reads the address of the other rank and connects. Returns false if none is published yet.
bool VerbsTransport::look_up(int rank, Peer& peer) {
  const auto now = Clock::now();
  if (now < peer.next_look_up) return false;
  peer.pause = std::clamp<std::chrono::milliseconds>(2 * peer.pause, first_pause, longest_pause);
  peer.next_look_up = now + peer.pause;
  const auto text = exchange_.look_up(rank);
  if (text.empty()) return false;
  peer.connection->connect(decode(text));
  return true;
}

// Returns true once bytes can be received from the rank. The lower rank can send after the first
// write of the higher rank has arrived.
bool VerbsTransport::connect(int rank, Peer& peer) {
  if (peer.stage == Stage::open) return true;
  const bool is_higher = membership_.rank > rank;
  if (peer.stage == Stage::idle) {
    create(peer);
    if (is_higher) exchange_.publish(rank, encode(peer.connection->contact()));
    peer.stage = Stage::looking;
  }
  if (!look_up(rank, peer)) return false;
  if (is_higher) {
    exchange_.forget(rank);
    peer.connection->allow_sends();
  } else {
    exchange_.publish(rank, encode(peer.connection->contact()));
  }
  peer.stage = Stage::open;
  peer.stream.attach(*peer.connection, peer.connection->mailbox(), peer.connection->image(),
                     peer.connection->target(), credits_);
  if (is_higher) peer.stream.probe();
  return true;
}

std::string VerbsTransport::obstacle(int rank) {
  const auto& peer = peers_[static_cast<std::size_t>(rank)];
  if (!peer || peer->stage == Stage::idle) return "";
  if (peer->stage == Stage::looking) {
    return "it has not published its RDMA address: it has not come to an operation with this rank";
  }
  return peer->connection->may_send()
             ? ""
             : "its RDMA address is known, but nothing has arrived from it";
}

// --- moving bytes --------------------------------------------------------------------------------

void VerbsTransport::check(const Peer& peer) const {
  if (!peer.failure.empty()) throw Error(ATOLL_PEER_LOST, peer.failure);
  if (!state_->failure.empty()) throw Error(ATOLL_PEER_LOST, state_->failure);
}

std::size_t VerbsTransport::send(int rank, std::span<const std::byte> data) {
  Peer& peer = at(rank);
  poll();
  if (!connect(rank, peer)) return 0;
  peer.stream.pump();
  const std::size_t n = peer.stream.send(data);
  if (n > 0) return n;
  if (peer.stream.has_closed()) throw Error(ATOLL_PEER_LOST, "it has closed the communicator");
  check(peer);
  return 0;
}

std::size_t VerbsTransport::recv(int rank, std::span<std::byte> data) {
  Peer& peer = at(rank);
  poll();
  if (!connect(rank, peer)) return 0;
  peer.stream.pump();
  const std::size_t n = peer.stream.recv(data);
  if (n > 0) return n;
  if (peer.stream.is_over()) throw Error(ATOLL_PEER_LOST, "it has closed the communicator");
  check(peer);
  return 0;
}

void VerbsTransport::expect(int rank, std::span<std::byte> memory) {
  at(rank).stream.expect(memory);
}

// Keeps only the first error of a peer, which shows the cause: later ones are flushed requests.
void VerbsTransport::fail(Peer& peer, std::size_t rail, const ibv_wc& completion) const {
  if (!peer.failure.empty()) return;
  std::string why = hcas_[rail]->failure();
  if (why.empty() && completion.status == IBV_WC_WR_FLUSH_ERR) {
    why = "the adapter has stopped this connection without another error";
  }
  if (why.empty() && completion.status == IBV_WC_RETRY_EXC_ERR) {
    why =
        "the other rank's adapter answers nothing: its process has ended, or the network between "
        "both hosts is cut";
  }
  if (why.empty() && completion.status == IBV_WC_LOC_QP_OP_ERR) {
    why = "this rank's adapter could not send: its network device may just have gone down";
  }
  peer.failure = fmt::format("{}: {} (vendor code {:#x}){}{}", hcas_[rail]->name(),
                             ibv_wc_status_str(completion.status), completion.vendor_err,
                             why.empty() ? "" : ": ", why);
}

void VerbsTransport::handle(std::size_t rail, const ibv_wc& completion) const {
  const auto owner = state_->owners[rail].find(completion.qp_num);
  if (owner == state_->owners[rail].end()) return;
  const auto [peer, queue] = owner->second;
  peer->last_event = Clock::now();
  if (completion.status != IBV_WC_SUCCESS) return fail(*peer, rail, completion);
  if ((completion.opcode & IBV_WC_RECV) == 0) {
    peer->connection->completed(queue, completion.wr_id);
    return;
  }
  post_receive(rails_[rail]);
  peer->connection->allow_sends();
  peer->stream.arrived(be32toh(completion.imm_data));
}

// Handles some completions of a rail. Returns their number, or -1 after an error.
int VerbsTransport::poll_rail(std::size_t rail) const noexcept {
  std::array<ibv_wc, completions_at_once> completions{};
  const int count =
      ibv_poll_cq(rails_[rail].completions.get(), completions_at_once, completions.data());
  if (count < 0) {
    if (!state_->failure.empty() || !is_used(rail)) return -1;
    state_->failure = hcas_[rail]->failure();
    if (state_->failure.empty()) {
      state_->failure = fmt::format("{}: the completion queue cannot be read (ibv_poll_cq: {})",
                                    hcas_[rail]->name(), count);
    }
    ++state_->events;
    return -1;
  }
  for (int i = 0; i < count; ++i) {
    const auto& completion = completions[static_cast<std::size_t>(i)];
    try {
      handle(rail, completion);
    } catch (const std::exception& error) {
      const auto owner = state_->owners[rail].find(completion.qp_num);
      if (owner != state_->owners[rail].end()) owner->second.first->failure = error.what();
    }
  }
  state_->events += static_cast<std::uint32_t>(count);
  return count;
}

void VerbsTransport::poll() const noexcept {
  for (std::size_t rail = 0; rail < rails_.size(); ++rail) {
    while (poll_rail(rail) == completions_at_once) continue;
  }
}

bool VerbsTransport::changed(std::uint32_t ticket) const noexcept {
  poll();
  return state_->events != ticket;
}

// --- waiting -------------------------------------------------------------------------------------

// Returns false if no connection uses the port: it has no partner, or no peer is connected yet.
bool VerbsTransport::is_used(std::size_t rail) const {
  return std::ranges::any_of(peers_, [&](const auto& peer) {
    return peer && peer->stage == Stage::open && peer->connection->uses(rail);
  });
}

// A peer that is gone sends nothing, so a rank that only waits for data writes to it from time to
// time. Its adapter then reports that nobody answers.
void VerbsTransport::look(std::span<const Need> needs) {
  const auto now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + probe_period;
  for (std::size_t rail = 0; rail < hcas_.size(); ++rail) {
    if (!state_->failure.empty()) break;
    if (!is_used(rail)) continue;
    state_->failure = hcas_[rail]->failure();
    if (!state_->failure.empty()) ++state_->events;  // so that the caller does not sleep
  }
  for (const auto& need : needs) {
    Peer& peer = at(need.peer);
    if (peer.stage == Stage::open && now - peer.last_event >= probe_period) peer.stream.probe();
  }
}

VerbsTransport::Armed VerbsTransport::arm(std::uint32_t ticket, std::span<const Need> needs,
                                          std::vector<pollfd>& descriptors) {
  look(needs);
  for (const auto& rail : rails_) {
    ibv_req_notify_cq(rail.completions.get(), 0);
    descriptors.push_back({rail.channel->fd, POLLIN, 0});
  }
  return changed(ticket) ? Armed::changed : Armed::sleep;
}

void VerbsTransport::disarm() noexcept {
  for (const auto& rail : rails_) {
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    while (ibv_get_cq_event(rail.channel.get(), &queue, &context) == 0) ibv_ack_cq_events(queue, 1);
  }
}

// --- closing -------------------------------------------------------------------------------------

// Tells the peer that this rank sends no more. Returns true if there is nothing left to wait for:
// the peer's adapter has taken everything, or the connection has failed. A peer that has closed may
// be gone, but gets parting_time: its own last write may still need an acknowledgment.
bool VerbsTransport::part(Peer& peer) try {
  const bool can_part = peer.stage == Stage::open && peer.connection->may_send();
  if (!can_part || !peer.failure.empty()) return true;
  if (!peer.has_parted) peer.has_parted = peer.stream.close();
  peer.connection->flush();
  if (peer.has_parted && peer.connection->is_idle()) return true;
  if (!peer.stream.has_closed()) return false;
  peer.parting_end = std::min(peer.parting_end, Clock::now() + parting_time);
  return Clock::now() >= peer.parting_end;
} catch (const std::exception& error) {
  peer.failure = error.what();
  return true;
}

// Returns the peers whose adapters have not acknowledged all data that this rank sent to them.
std::vector<int> VerbsTransport::undelivered() {
  std::vector<int> result;
  poll();
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank] && !part(*peers_[rank])) result.push_back(static_cast<int>(rank));
  }
  return result;
}

// May wait long: a peer that computes takes no more writes once its receives are used up, and its
// adapter makes this rank's adapter retry.
void VerbsTransport::finish() noexcept try {
  const auto start = Clock::now();
  auto next_look = start + probe_period;
  for (auto peers = undelivered(); !peers.empty(); peers = undelivered()) {
    const auto now = Clock::now();
    if (membership_.timeout > 0ns && now - start >= membership_.timeout) {
      for (const int peer : peers) {
        membership_.warn(
            peer, fmt::format("its adapter has not taken all data within {:g} s after the last "
                              "operation; that rank will report that this rank is gone",
                              std::chrono::duration<double>(membership_.timeout).count()));
      }
      return;
    }
    if (now >= next_look) {
      exchange_.look_up(peers.front());  // throws if the job has failed
      next_look = now + probe_period;
    }
    std::this_thread::yield();
  }
} catch (const std::exception&) {
  // The job has failed, which the store tells all ranks, so no peer needs the data.
}

void VerbsTransport::stop() noexcept {
  for (const auto& peer : peers_) {
    if (peer && peer->connection) peer->connection->destroy();
  }
}

}  // namespace atoll_verbs_backend
