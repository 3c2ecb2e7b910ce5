// The simulated backend: no data moves, and each operation gets the time that it would take on the
// links of the group.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "atoll/plugin.h"
#include "atoll/tooling/fabric_model.hpp"
#include "sdk/backend.hpp"

namespace atoll_sim {
namespace {

using atoll_sdk::Error;

// Returns the size of the tensor as FabricModel counts it.
std::uint64_t tensor_bytes(const atoll_operation& operation, int ranks) {
  const std::uint64_t bytes = operation.count * atoll_abi::dtype_size(operation.dtype);
  switch (operation.kind) {
    case ATOLL_ALL_GATHER:
    case ATOLL_REDUCE_SCATTER:
    case ATOLL_ALL_TO_ALL:
    case ATOLL_GATHER:
    case ATOLL_SCATTER:
      return bytes * static_cast<std::uint64_t>(ranks);
    default:
      return bytes;
  }
}

class SimulatedCommunicator {
 public:
  static constexpr std::int32_t memory_kind = ATOLL_MEMORY_SIMULATED;

  static std::int32_t probe(const atoll_group& world) {
    if (world.memory != ATOLL_MEMORY_SIMULATED) {
      throw Error(ATOLL_UNSUPPORTED, "the simulated backend supports simulated devices only");
    }
    return 1;
  }

  // Returns 1 for the operations that NCCL supports on GPU memory. libatoll builds all others from
  // them, as it does on GPUs.
  static std::int32_t capability(std::int32_t kind, std::int32_t dtype, std::int32_t op,
                                 std::int32_t memory) {
    if (memory != ATOLL_MEMORY_SIMULATED || !atoll_sdk::is_known(kind, dtype, op)) return 0;
    if (kind == ATOLL_ALL_TO_ALL_V || kind == ATOLL_GATHER_V) return 0;
    if (kind == ATOLL_BARRIER || !atoll_sdk::reduces(kind)) return 1;
    if (atoll_abi::is_bitwise(op)) return 0;
    if (atoll_abi::is_integer(dtype)) return atoll_abi::dtype_size(dtype) == 2 ? 0 : 1;
    return atoll_abi::dtype_size(dtype) == 2 || op == ATOLL_AVG ? 2 : 1;
  }

  static std::unique_ptr<SimulatedCommunicator> open(const atoll_core&, const atoll_group& group) {
    if (group.tags != 0) throw Error(ATOLL_UNSUPPORTED, "the simulated backend has no tags");
    if (group.deterministic != 0) {
      throw Error(ATOLL_UNSUPPORTED,
                  "the simulated backend cannot sum in a fixed order, because it simulates NCCL, "
                  "which chooses the order");
    }
    if (group.links == nullptr || *group.links == 0) {
      throw Error(ATOLL_INVALID_ARGUMENT,
                  "the simulated device has no model of links: set DeviceOptions::links");
    }
    return std::unique_ptr<SimulatedCommunicator>(new SimulatedCommunicator(group));
  }

  void submit(std::span<atoll_operation* const> operations) const {
    const bool messages = std::ranges::all_of(
        operations, [](const auto* operation) { return atoll_sdk::is_message(operation->kind); });
    if (messages) return price_messages(operations);
    for (const atoll_operation* operation : operations) price(*operation);
  }

  void abort() noexcept {}
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return ranks_; }

 private:
  SimulatedCommunicator(const atoll_group& group)
      : model_(atoll::FabricModel::from_text(group.links)),
        rank_(group.rank),
        ranks_(group.nranks),
        host_ranks_(std::max(1, group.host_ranks)) {
    std::set<std::int32_t> hosts;
    int on_host = 0;
    const std::int32_t own = group.placements[group.rank]->host;
    for (int rank = 0; rank < ranks_; ++rank) {
      hosts.insert(group.placements[rank]->host);
      host_of_.push_back(group.placements[rank]->host);
      if (group.placements[rank]->host == own) ++on_host;
    }
    hosts_ = static_cast<int>(hosts.size());
    // Assumes that the other ranks of a host are in groups of the same shape, which make the same
    // calls at the same time and share the host's NICs.
    if (hosts_ > 1) sharing_ = std::max(1, group.host_ranks / on_host);
  }

  // Sets the cost of a group of sends and receives, which run together, on its first operation.
  void price_messages(std::span<atoll_operation* const> operations) const {
    const std::int32_t own = host_of_[static_cast<std::size_t>(rank_)];
    atoll::MessageShape sent{.hosts = hosts_, .sharing = host_ranks_}, received = sent;
    for (const atoll_operation* operation : operations) {
      atoll::MessageShape& shape = operation->kind == ATOLL_SEND ? sent : received;
      const bool intra = host_of_[static_cast<std::size_t>(operation->peer)] == own;
      (intra ? shape.intra_bytes : shape.inter_bytes) += tensor_bytes(*operation, ranks_);
    }
    // Links carry both directions at once, so the direction with more bytes decides.
    sent.intra_bytes = std::max(sent.intra_bytes, received.intra_bytes);
    sent.inter_bytes = std::max(sent.inter_bytes, received.inter_bytes);
    set(*operations.front(), atoll::message_time(model_, sent), sent.inter_bytes > 0);
  }

  void price(const atoll_operation& operation) const {
    std::uint64_t bytes = tensor_bytes(operation, ranks_);
    if (atoll_sdk::reduces(operation.kind) && operation.dtype == ATOLL_F32)
      bytes = static_cast<std::uint64_t>(static_cast<double>(bytes) * model_.sum_bytes);
    const auto time =
        atoll::collective_time(model_, {.collective = atoll_abi::kind_name(operation.kind),
                                        .bytes = bytes,
                                        .ranks = ranks_,
                                        .hosts = hosts_,
                                        .sharing = sharing_});
    set(operation, time, hosts_ > 1);
  }

  void set(const atoll_operation& operation, const atoll::CollectiveTime& time, bool inter) const {
    atoll_cost& cost = *operation.cost;
    cost.latency_s = time.latency_s;
    cost.seconds = time.transfer_s;
    cost.intra = time.intra;
    cost.inter = time.inter;
    const double share = inter ? model_.inter_compute_share : model_.compute_share;
    cost.compute = time.transfer_s > 0 ? share : 0;
  }

  atoll::FabricModel model_;
  int rank_, ranks_;
  int hosts_ = 1;
  int sharing_ = 1;  // number of groups like this one that use the NICs of a host at the same time
  int host_ranks_ = 1;
  std::vector<std::int32_t> host_of_;  // host of each rank of the group
};

}  // namespace
}  // namespace atoll_sim

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1(
    void) {
  static const atoll_backend table =
      atoll_sdk::table_of<atoll_sim::SimulatedCommunicator>("simulated");
  return &table;
}
