#include "verbs/connection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <random>

namespace atoll_verbs_backend {
namespace {

using atoll_sdk::Error;

constexpr std::uint32_t inline_wanted = 128;
constexpr std::uint64_t report_period = 16;  // of this many writes, one reports its completion
// Entries of a send queue that only grants and counters may use, so that data cannot delay them.
constexpr std::size_t reserve = 8;
constexpr std::uint32_t packet_mask = (1u << 24) - 1;
// Not 7: the driver of Soft-RoCE then retries forever, and never reports a peer that is gone.
constexpr std::uint8_t most_retries = 6;
constexpr std::uint8_t retry_forever = 7;    // number of retries while the receiver has no receives
constexpr std::uint8_t receiver_pause = 12;  // code of 0.64 ms, the pause before such a retry

// The queue pair of the other rank.
struct PeerQueue {
  const Contact::Rail& rail;
  std::uint32_t number;        // number of the queue pair
  std::uint32_t first_packet;  // sequence number of the first packet that the queue pair sends
};

void make_ready_to_receive(ibv_qp* pair, const Hca& hca, const Settings& settings,
                           const PeerQueue& peer) {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = std::min(hca.mtu(), static_cast<ibv_mtu>(peer.rail.mtu));
  to.dest_qp_num = peer.number;
  to.rq_psn = peer.first_packet;
  to.min_rnr_timer = receiver_pause;
  to.ah_attr.port_num = static_cast<std::uint8_t>(hca.port());
  to.ah_attr.sl = settings.service_level;
  to.ah_attr.dlid = peer.rail.lid;
  // Only RoCE needs the global routing header, and InfiniBand if the user has set a GID.
  to.ah_attr.is_global = hca.is_ethernet() || settings.gid >= 0 ? 1 : 0;
  to.ah_attr.grh.dgid = peer.rail.address.gid;
  to.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(hca.gid_index());
  to.ah_attr.grh.hop_limit = 64;
  to.ah_attr.grh.traffic_class = settings.traffic_class;
  const int error =
      ibv_modify_qp(pair, &to,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error == 0) return;
  throw Error(ATOLL_PEER_LOST,
              fmt::format("{}: no route to the other rank: {}: check that both ports are on one "
                          "network and that their GIDs match (gid= in ATOLL_RDMA)",
                          hca.description(), std::generic_category().message(error)));
}

void make_ready_to_send(ibv_qp* pair, const Hca& hca, const Settings& settings,
                        std::uint32_t first_packet) {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_RTS;
  to.sq_psn = first_packet;
  to.timeout = static_cast<std::uint8_t>(settings.timeout);
  to.retry_cnt = most_retries;
  to.rnr_retry = retry_forever;
  const int error = ibv_modify_qp(pair, &to,
                                  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                      IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  if (error != 0) throw verbs_error(hca.name() + ": cannot start a queue pair", error);
}

// Throws unless the ports share a partition with a full member: adapters would drop their packets.
void check_partition(const Hca& hca, const Contact::Rail& rail) {
  const bool is_same = ((rail.partition ^ hca.partition()) & partition_mask) == 0;
  if (is_same && ((rail.partition | hca.partition()) & full_member) != 0) return;
  throw Error(ATOLL_MISMATCH,
              fmt::format("{} uses the partition key {:#06x}, but its port {} {:#06x}: {}",
                          hca.name(), hca.partition(), rail.port, rail.partition,
                          is_same ? "two limited members cannot talk; one of them needs the key "
                                    "with 0x8000"
                                  : "use the same pkey= in ATOLL_RDMA on all ranks"));
}

// Returns a sequence number for the first packet of a queue pair.
std::uint32_t random_packet() { return std::random_device()() & packet_mask; }

// Creates a queue pair, which peers may write to, for `queue_depth` writes in flight.
QueuePair create_queue_pair(const Rail& rail) {
  const Hca& hca = *rail.hca;
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = rail.completions.get();
  wanted.srq = rail.receives.get();
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = queue_depth;
  wanted.cap.max_send_sge = 1;
  wanted.cap.max_inline_data = inline_wanted;
  ibv_qp* pair = ibv_create_qp(hca.domain(), &wanted);
  if (pair == nullptr && errno == EINVAL) {  // some adapters offer less inline data
    wanted.cap.max_inline_data = 0;
    pair = ibv_create_qp(hca.domain(), &wanted);
  }
  QueuePair result(checked(pair, hca.name() + ": cannot create a queue pair"));
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = static_cast<std::uint8_t>(hca.port());
  attributes.pkey_index = hca.partition_index();
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  const int error =
      ibv_modify_qp(result.get(), &attributes,
                    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) throw verbs_error(hca.name() + ": cannot initialize a queue pair", error);
  return result;
}

// Maximum bytes of a write whose data the queue copies.
std::uint32_t inline_bytes_of(ibv_qp* pair) {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  if (ibv_query_qp(pair, &attributes, IBV_QP_CAP, &initial) != 0) return 0;
  return initial.cap.max_inline_data;
}

// Connects a queue pair with that of the other rank. Throws Error if the adapter refuses the
// address or the two ports share no partition.
void connect_queue_pair(ibv_qp* pair, const Hca& hca, const Settings& settings,
                        const PeerQueue& peer, std::uint32_t first_packet) {
  check_partition(hca, peer.rail);
  make_ready_to_receive(pair, hca, settings, peer);
  make_ready_to_send(pair, hca, settings, first_packet);
}

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
      QueuePair pair = create_queue_pair(rails[rail]);
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
    request.wr_id = queue.posted + 1;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma.remote_addr = target_.address;
    request.wr.rdma.rkey = target_.keys[queue.peer_rail];
    ibv_send_wr* refused = nullptr;
    if (ibv_post_send(queue.pair.get(), &request, &refused) == 0) queue.reported = ++queue.posted;
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
