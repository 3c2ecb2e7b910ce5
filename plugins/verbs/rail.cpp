#include "verbs/rail.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sdk/backend.hpp"
#include "verbs/stream.hpp"

namespace atoll_verbs_backend {
namespace {

using atoll_sdk::Error;

constexpr int receives_per_rank = 16;
constexpr int least_receives = 4096;
constexpr int most_receives = 65536;
// With fewer credits, a peer would wait for a confirmation of almost every write.
constexpr std::size_t least_credits = 8;
// Smallest size of a completion queue when it is created, so that small jobs never resize it.
constexpr int first_completions = 16384;

// Number of completions that may wait in the queue: each receive and each write has at most one.
std::int64_t completions_for(std::int64_t receives, std::int64_t queue_pairs) {
  return receives + queue_pairs * queue_depth;
}

int receives_for(const Hca& hca, int remote_ranks) {
  const auto wanted = std::clamp<std::int64_t>(std::int64_t{receives_per_rank} * remote_ranks,
                                               least_receives, most_receives);
  // Half of the entries of the completion queue are kept for writes.
  const auto offered = std::min(hca.limits().max_srq_wr, hca.limits().max_cqe / 2);
  if (hca.limits().max_srq < 1 || offered < 1) {
    throw Error(ATOLL_UNSUPPORTED,
                fmt::format("{}: the device has no shared receive queues (max_srq {}, max_srq_wr "
                            "{}): choose other ports with devices= in ATOLL_RDMA",
                            hca.name(), hca.limits().max_srq, hca.limits().max_srq_wr));
  }
  return static_cast<int>(std::min<std::int64_t>(wanted, offered));
}

}  // namespace

void post_receive(const Rail& rail) {
  ibv_recv_wr request{};
  ibv_recv_wr* refused = nullptr;
  const int error = ibv_post_srq_recv(rail.receives.get(), &request, &refused);
  if (error != 0) throw verbs_error(rail.hca->name() + ": cannot post a receive", error);
}

// A quarter of a rank's share of the receives is kept for grants and counters.
std::size_t credits_of(const std::vector<Rail>& rails, int remote_ranks) {
  const auto least = std::ranges::min_element(rails, {}, &Rail::receive_count)->receive_count;
  const int share = least / std::max(remote_ranks, 1);
  return std::clamp<std::size_t>(static_cast<std::size_t>(share - share / 4), least_credits,
                                 most_credits);
}

Rail open_rail(std::shared_ptr<Hca> hca, int remote_ranks) {
  Rail rail;
  const auto name = hca->name();
  rail.receive_count = receives_for(*hca, remote_ranks);
  rail.channel.reset(checked(ibv_create_comp_channel(hca->context()),
                             name + ": cannot create a completion channel"));
  ::fcntl(rail.channel->fd, F_SETFL, ::fcntl(rail.channel->fd, F_GETFL) | O_NONBLOCK);
  const int completions =
      std::min(std::max(first_completions, 2 * rail.receive_count), hca->limits().max_cqe);
  rail.completions.reset(
      checked(ibv_create_cq(hca->context(), completions, nullptr, rail.channel.get(), 0),
              fmt::format("{}: cannot create a queue of {} completions", name, completions)));
  ibv_srq_init_attr wanted{};
  wanted.attr.max_wr = static_cast<std::uint32_t>(rail.receive_count);
  wanted.attr.max_sge = 1;
  rail.receives.reset(checked(
      ibv_create_srq(hca->domain(), &wanted),
      fmt::format("{}: cannot create a shared queue of {} receives", name, rail.receive_count)));
  rail.hca = std::move(hca);
  for (int i = 0; i < rail.receive_count; ++i) post_receive(rail);
  return rail;
}

void add_queue_pairs(Rail& rail, int count) {
  const Hca& hca = *rail.hca;
  const int queue_pairs = rail.queue_pairs + count;
  const auto needed = completions_for(rail.receive_count, queue_pairs);
  if (needed > rail.completions->cqe) {
    const std::int64_t most = hca.limits().max_cqe;
    if (queue_pairs > hca.limits().max_qp || needed > most) {
      throw Error(
          ATOLL_OUT_OF_MEMORY,
          fmt::format("{}: the device cannot serve {} queue pairs of one rank: they need {} "
                      "completions, and its limits are {} queue pairs (max_qp) and {} "
                      "completions (max_cqe): use fewer queue_pairs= in ATOLL_RDMA, or "
                      "fewer ranks",
                      hca.name(), queue_pairs, needed, hca.limits().max_qp, most));
    }
    const auto wanted = static_cast<int>(
        std::clamp<std::int64_t>(2 * std::int64_t{rail.completions->cqe}, needed, most));
    const int error = ibv_resize_cq(rail.completions.get(), wanted);
    if (error != 0) {
      throw verbs_error(
          fmt::format("{}: the completion queue cannot grow from {} to {} entries for "
                      "{} queue pairs: use fewer queue_pairs= in ATOLL_RDMA, or fewer "
                      "ranks",
                      hca.name(), rail.completions->cqe, wanted, queue_pairs),
          error);
    }
  }
  rail.queue_pairs = queue_pairs;
}

}  // namespace atoll_verbs_backend
