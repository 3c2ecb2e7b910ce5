#include "verbs/connection.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "verbs/queue_pair.hpp"

namespace atoll_verbs_backend {
namespace {

using atoll_sdk::Error;

constexpr std::uint32_t inline_wanted = 128;
constexpr std::uint64_t report_period = 16;  // of this many writes, one reports its completion
// Writes that only control may use, so that credits and grants flow while data waits.
constexpr std::size_t reserve = 8;

}  // namespace

Connection::Connection(const Hcas& hcas, const std::vector<Rail>& rails, const Settings& settings,
                       std::size_t ring_bytes, std::size_t credits)
    : hcas_(hcas),
      settings_(settings),
      first_packet_(random_packet()),
      ring_bytes_(ring_bytes),
      credits_(credits),
      own_pages_(std::make_unique<Pages>(mailbox_bytes(ring_bytes))),
      own_(register_range(hcas, own_pages_->bytes, Ordering::strict)) {
  for (std::size_t rail = 0; rail < rails.size(); ++rail) {
    for (int i = 0; i < settings.queue_pairs; ++i) {
      QueuePair pair = create_queue_pair(*rails[rail].hca, rails[rail].completions.get(),
                                         rails[rail].receives.get(), queue_depth, inline_wanted);
      const auto inline_bytes = inline_bytes_of(pair.get());
      const std::uint32_t number = pair->qp_num;
      queues_.push_back({std::move(pair), number, rail, 0, queue_depth, inline_bytes});
    }
  }
}

Contact Connection::contact() const {
  Contact contact{first_packet_,
                  reinterpret_cast<std::uintptr_t>(mailbox().memory.data()),
                  ring_bytes_,
                  credits_,
                  {}};
  for (std::size_t rail = 0; rail < hcas_.size(); ++rail) {
    const Hca& hca = *hcas_[rail];
    contact.rails.push_back({hca.port_name(),
                             hca.address(),
                             hca.lid(),
                             hca.partition(),
                             hca.mtu(),
                             mailbox().remote[rail],
                             {}});
  }
  for (const auto& queue : queues_) {
    contact.rails[queue.rail].queue_pairs.push_back(queue.number);
  }
  return contact;
}

void Connection::connect(const Contact& peer) {
  const auto per_rail = static_cast<std::size_t>(settings_.queue_pairs);
  const auto pairs = pair_rails(contact().rails, peer.rails);
  for (const auto& rail : peer.rails) {
    if (rail.queue_pairs.size() == per_rail) continue;
    throw Error(ATOLL_MISMATCH,
                fmt::format("that rank has {} queue pairs per rail, this rank {}: use the same "
                            "queue_pairs= in ATOLL_RDMA",
                            rail.queue_pairs.size(), per_rail));
  }
  target_ = peer.target();
  image_pages_ = std::make_unique<Pages>(mailbox_bytes(target_.ring_bytes));
  image_ = register_range(hcas_, image_pages_->bytes, Ordering::strict);
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    Queue& queue = queues_[i];
    if (!pairs[queue.rail]) {
      queue.pair.reset();
      continue;
    }
    const Hca& hca = *hcas_[queue.rail];
    queue.peer_rail = *pairs[queue.rail];
    const auto& rail = peer.rails[queue.peer_rail];
    connect_queue_pair(queue.pair.get(), hca, settings_,
                       {rail, rail.queue_pairs[i % per_rail], peer.first_packet}, first_packet_);
  }
}

// Data goes to the queue with the most room. Grants and counters use the first queue that has a
// partner.
std::size_t Connection::choose(bool is_ordered) const {
  const auto has_pair = [](const Queue& queue) { return queue.pair != nullptr; };
  const auto chosen = is_ordered ? std::ranges::find_if(queues_, has_pair)
                                 : std::ranges::max_element(queues_, {}, &Queue::free);
  return chosen == queues_.end() ? 0 : static_cast<std::size_t>(chosen - queues_.begin());
}

bool Connection::has_room(bool is_ordered) const {
  return may_send_ && queues_[choose(is_ordered)].free() > (is_ordered ? 0 : reserve);
}

Ticket Connection::write(const Write& write) {
  const std::size_t at = choose(write.is_ordered);
  Queue& queue = queues_[at];
  const std::uint64_t index = ++queue.posted;
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(write.data.data()),
                static_cast<std::uint32_t>(write.data.size()), (*write.local)[queue.rail]};
  ibv_send_wr request{};
  request.wr_id = index;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = htobe32(write.immediate);
  request.wr.rdma.remote_addr = write.address;
  request.wr.rdma.rkey = (*write.remote)[queue.peer_rail];
  if (write.data.size() <= queue.inline_bytes) request.send_flags |= IBV_SEND_INLINE;
  if (write.is_awaited || index - queue.reported >= report_period) {
    request.send_flags |= IBV_SEND_SIGNALED;
    queue.reported = index;
  }
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(queue.pair.get(), &request, &refused);
  if (error != 0) {
    throw verbs_error(hcas_[queue.rail]->name() + ": cannot post a write", error);
  }
  return {at, index};
}

bool Connection::uses(std::size_t rail) const noexcept {
  return std::ranges::any_of(
      queues_, [&](const Queue& queue) { return queue.rail == rail && queue.pair != nullptr; });
}

void Connection::completed(std::size_t queue, std::uint64_t index) {
  queues_[queue].done = std::max(queues_[queue].done, index);
}

void Connection::flush() {
  for (auto& queue : queues_) {
    if (queue.reported == queue.posted || queue.free() == 0) continue;
    ibv_send_wr request{};
    request.wr_id = ++queue.posted;
    queue.reported = queue.posted;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma.remote_addr = target_.address;
    request.wr.rdma.rkey = target_.keys[queue.peer_rail];
    ibv_send_wr* refused = nullptr;
    ibv_post_send(queue.pair.get(), &request, &refused);
  }
}

bool Connection::is_idle() const noexcept {
  return std::ranges::all_of(queues_, [](const Queue& queue) {
    return queue.pair == nullptr || queue.done == queue.posted;
  });
}

void Connection::destroy() noexcept {
  for (auto& queue : queues_) queue.pair.reset();
}

}  // namespace atoll_verbs_backend
