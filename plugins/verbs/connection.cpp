#include "verbs/connection.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>

namespace atoll_verbs_backend {
namespace {

using atoll_sdk::Error;

constexpr std::uint32_t queue_depth = 64;
constexpr std::uint32_t inline_wanted = 128;
constexpr std::uint32_t packet_mask = (1u << 24) - 1;
constexpr std::uint64_t report_period = 16;  // writes of which one reports its completion
// Writes that only control may use, so that credits and grants flow while data waits.
constexpr std::size_t reserve = 8;
constexpr std::uint8_t most_retries = 7;     // for the receiver's queue, 7 means forever
constexpr std::uint8_t receiver_pause = 12;  // 0.64 ms

QueuePair create(const Rail& rail) {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = rail.completions.get();
  wanted.srq = rail.receives.get();
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = queue_depth;
  wanted.cap.max_send_sge = 1;
  wanted.cap.max_inline_data = inline_wanted;
  ibv_qp* pair = ibv_create_qp(rail.hca->domain(), &wanted);
  if (pair == nullptr && errno == EINVAL) {  // some adapters offer less inline data
    wanted.cap.max_inline_data = 0;
    pair = ibv_create_qp(rail.hca->domain(), &wanted);
  }
  QueuePair result(checked(pair, rail.hca->name() + ": cannot create a queue pair"));
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = static_cast<std::uint8_t>(rail.hca->port());
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  const int error =
      ibv_modify_qp(result.get(), &attributes,
                    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) throw verbs_error(rail.hca->name() + ": cannot initialize a queue pair", error);
  return result;
}

std::uint32_t inline_bytes_of(ibv_qp* pair) {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  if (ibv_query_qp(pair, &attributes, IBV_QP_CAP, &initial) != 0) return 0;
  return initial.cap.max_inline_data;
}

void make_ready_to_receive(ibv_qp* pair, const Hca& hca, const Settings& settings,
                           const Contact::Rail& peer, std::uint32_t number,
                           std::uint32_t first_packet) {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = std::min(hca.mtu(), static_cast<ibv_mtu>(peer.mtu));
  to.dest_qp_num = number;
  to.rq_psn = first_packet;
  to.min_rnr_timer = receiver_pause;
  to.ah_attr.port_num = static_cast<std::uint8_t>(hca.port());
  to.ah_attr.sl = settings.service_level;
  to.ah_attr.dlid = peer.lid;
  // InfiniBand ports of one subnet need no global routing header.
  to.ah_attr.is_global = hca.is_ethernet() || settings.gid >= 0 ? 1 : 0;
  to.ah_attr.grh.dgid = peer.gid;
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
  to.rnr_retry = most_retries;
  const int error = ibv_modify_qp(pair, &to,
                                  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                      IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  if (error != 0) throw verbs_error(hca.name() + ": cannot start a queue pair", error);
}

}  // namespace

Connection::Pages::Pages(std::size_t size) {
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ATOLL_OUT_OF_MEMORY, fmt::format("no {} bytes for an RDMA mailbox", size));
  }
  // A forked child must not share pages that an adapter writes: copy-on-write would move them.
  ::madvise(memory, size, MADV_DONTFORK);
  bytes = {static_cast<std::byte*>(memory), size};
}

Connection::Pages::~Pages() { ::munmap(bytes.data(), bytes.size()); }

Connection::Connection(const Hcas& hcas, const std::vector<Rail>& rails, const Settings& settings,
                       std::size_t ring_bytes)
    : hcas_(hcas),
      settings_(settings),
      first_packet_(std::random_device()() & packet_mask),
      ring_bytes_(ring_bytes),
      own_pages_(std::make_unique<Pages>(mailbox_bytes(ring_bytes))),
      own_(register_range(hcas, own_pages_->bytes)) {
  for (std::size_t rail = 0; rail < rails.size(); ++rail) {
    for (int i = 0; i < settings.queue_pairs; ++i) {
      QueuePair pair = create(rails[rail]);
      const auto inline_bytes = inline_bytes_of(pair.get());
      queues_.push_back({std::move(pair), rail, queue_depth, inline_bytes});
    }
  }
}

Contact Connection::contact() const {
  Contact contact{
      first_packet_, reinterpret_cast<std::uintptr_t>(mailbox().memory.data()), ring_bytes_, {}};
  for (std::size_t rail = 0; rail < hcas_.size(); ++rail) {
    const Hca& hca = *hcas_[rail];
    contact.rails.push_back({hca.gid(), hca.lid(), hca.mtu(), mailbox().remote[rail], {}});
  }
  for (const auto& queue : queues_) {
    contact.rails[queue.rail].queue_pairs.push_back(queue.pair->qp_num);
  }
  return contact;
}

void Connection::connect(const Contact& peer) {
  const auto per_rail = static_cast<std::size_t>(settings_.queue_pairs);
  const std::size_t rails = std::min(peer.rails.size(), hcas_.size());
  for (const auto& rail : peer.rails) {
    if (rail.queue_pairs.size() == per_rail) continue;
    throw Error(ATOLL_MISMATCH,
                fmt::format("that rank has {} queue pairs per rail, this rank {}: use the same "
                            "queue_pairs= in ATOLL_RDMA",
                            rail.queue_pairs.size(), per_rail));
  }
  std::erase_if(queues_, [&](const Queue& queue) { return queue.rail >= rails; });
  target_ = peer.target();
  image_pages_ = std::make_unique<Pages>(mailbox_bytes(target_.ring_bytes));
  image_ = register_range(hcas_, image_pages_->bytes);
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    Queue& queue = queues_[i];
    const Hca& hca = *hcas_[queue.rail];
    const auto& rail = peer.rails[queue.rail];
    make_ready_to_receive(queue.pair.get(), hca, settings_, rail, rail.queue_pairs[i % per_rail],
                          peer.first_packet);
    make_ready_to_send(queue.pair.get(), hca, settings_, first_packet_);
  }
}

// Data goes to the queue with the most room. Grants and counters use the first queue.
std::size_t Connection::choose(bool is_ordered) const {
  if (is_ordered) return 0;
  const auto by_room = [](const Queue& one, const Queue& other) {
    return one.free() < other.free();
  };
  return static_cast<std::size_t>(std::ranges::max_element(queues_, by_room) - queues_.begin());
}

bool Connection::has_room(bool is_ordered) const {
  if (queues_.empty() || !may_send_) return false;
  if (is_ordered) return queues_.front().free() > 0;
  return queues_[choose(false)].free() > reserve;
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
  request.wr.rdma.rkey = (*write.remote)[queue.rail];
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
    request.wr.rdma.rkey = target_.keys[queue.rail];
    ibv_send_wr* refused = nullptr;
    ibv_post_send(queue.pair.get(), &request, &refused);
  }
}

bool Connection::is_idle() const noexcept {
  return std::ranges::all_of(queues_,
                             [](const Queue& queue) { return queue.done == queue.posted; });
}

}  // namespace atoll_verbs_backend
