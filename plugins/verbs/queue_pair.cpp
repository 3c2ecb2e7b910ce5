#include "verbs/queue_pair.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <random>

namespace atoll_verbs_backend {
namespace {

using atoll_sdk::Error;

constexpr std::uint32_t packet_mask = (1u << 24) - 1;
// The driver of Soft-RoCE takes 7 as forever, and a peer that is gone would never be reported.
constexpr std::uint8_t most_retries = 6;
constexpr std::uint8_t retry_forever = 7;    // number of retries while the receiver has no receives
constexpr std::uint8_t receiver_pause = 12;  // code of 0.64 ms, the pause before such a retry

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
  // InfiniBand ports of one subnet need no global routing header.
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

// Adapters drop packets between ports that share no partition, and between two limited members.
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

}  // namespace

std::uint32_t random_packet() { return std::random_device()() & packet_mask; }

QueuePair create_queue_pair(const Hca& hca, ibv_cq* completions, ibv_srq* receives,
                            std::uint32_t depth, std::uint32_t inline_wanted) {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = completions;
  wanted.srq = receives;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = depth;
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

std::uint32_t inline_bytes_of(ibv_qp* pair) {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  if (ibv_query_qp(pair, &attributes, IBV_QP_CAP, &initial) != 0) return 0;
  return initial.cap.max_inline_data;
}

void connect_queue_pair(ibv_qp* pair, const Hca& hca, const Settings& settings,
                        const PeerQueue& peer, std::uint32_t first_packet) {
  check_partition(hca, peer.rail);
  make_ready_to_receive(pair, hca, settings, peer);
  make_ready_to_send(pair, hca, settings, first_packet);
}

}  // namespace atoll_verbs_backend
