#include "comm/two_level.hpp"

#include <fmt/format.h>

#include <exception>

#include "comm/backend_communicator.hpp"
#include "core/log.hpp"

namespace atoll_v1::atoll {
namespace {

std::shared_ptr<BackendCommunicator> open_part(const BackendCommunicator& whole, const char* part,
                                               std::vector<int> ranks, int index,
                                               const std::stop_token& stop) {
  const Axis axis{.world = &whole.world(), .name = part, .ranks = std::move(ranks), .index = index};
  CommunicatorOptions options{.name = fmt::format("{}.{}", whole.name(), part),
                              .backend = whole.plugin().name,
                              .device = whole.device(),
                              .stop = stop};
  whole.settings().pass_on(options);
  return BackendCommunicator::open(axis, std::move(options), &whole);
}

bool has_rates(const Axis& axis) { return axis.rate.is_known() && axis.levels.are_known(); }

}  // namespace

std::unique_ptr<TwoLevel> TwoLevel::open(BackendCommunicator& whole, const std::stop_token& stop) {
  const Axis& axis = whole.axis();
  atoll_levels::HostLayout layout(hosts_of(axis));
  const bool is_wanted = whole.level_choice().asks_for_levels() || has_rates(axis);
  if (layout.ranks_per_host() == 0 || !is_wanted) return nullptr;
  auto levels = std::make_unique<TwoLevel>(whole, std::move(layout));
  const atoll_levels::HostLayout& all = levels->layout_;
  const int host = all.host_of(axis.index), local = all.local_of(axis.index);
  const auto world_rank = [&](int rank) { return axis.ranks[static_cast<std::size_t>(rank)]; };
  std::vector<int> intra, inter;
  for (const int rank : all.ranks_of(host)) intra.push_back(world_rank(rank));
  for (int h = 0; h < all.hosts(); ++h) {
    inter.push_back(world_rank(all.counterpart(axis.index, h)));
  }
  std::exception_ptr failed;
  try {
    levels->intra_ = open_part(whole, "intra", std::move(intra), local, stop);
  } catch (const std::exception&) {
    failed = std::current_exception();
  }
  // If "intra" failed here, this rank stops "inter" at once: ranks of other hosts would wait.
  std::stop_source ended;
  ended.request_stop();
  levels->inter_ =
      open_part(whole, "inter", std::move(inter), host, failed ? ended.get_token() : stop);
  if (failed) std::rethrow_exception(failed);
  whole.adopt({levels->intra_, levels->inter_});
  log::debug("communicator {}: two levels, {} hosts of {} ranks", whole.name(), all.hosts(),
             all.ranks_per_host());
  return levels;
}

bool TwoLevel::takes(const Operation& operation) const {
  if (!LevelChoice::applies_to(operation.kind) || operation.count == 0) return false;
  if (operation.kind == ATOLL_REDUCE_SCATTER) {
    // Two levels would divide an average twice and round a 16-bit sum twice. Fallbacks, not this
    // class, build the sums that the backend does not support.
    const ReduceOp op = operation.reduction.op;
    if (whole_.settings().deterministic != 0 || is_16_bit(operation.dtype) || op == ReduceOp::avg ||
        !whole_.supports(operation.kind, operation.dtype, op)) {
      return false;
    }
  }
  const Axis& axis = whole_.axis();
  const int n = axis.size();
  const std::uint64_t bytes =
      operation.count * size_of(operation.dtype) * static_cast<std::uint64_t>(n);
  if (const auto chosen = whole_.level_choice().two_level(operation.kind, bytes)) return *chosen;
  const auto size = static_cast<double>(bytes);
  return has_rates(axis) &&
         axis.levels.seconds(size, n, layout_.fewest_ranks()) < axis.rate.seconds(size, n);
}

std::uint64_t TwoLevel::scratch_bytes(const Operation& operation) const {
  if (operation.kind != ATOLL_REDUCE_SCATTER) return 0;
  return static_cast<std::uint64_t>(layout_.hosts()) * operation.count * size_of(operation.dtype);
}

void TwoLevel::run(const FallbackContext& call) const {
  if (call.operation.kind == ATOLL_ALL_GATHER) {
    all_gather(call);
  } else {
    reduce_scatter(call);
  }
}

// In the group across hosts, the rank of a process is the index of its host.
void TwoLevel::all_gather(const FallbackContext& call) const {
  const Operation& whole = call.operation;
  const auto rank = static_cast<int>(call.rank());
  const auto block = [&](int owner, int ranks = 1) {
    return whole.dst.part(static_cast<std::uint64_t>(owner) * whole.count,
                          static_cast<std::uint64_t>(ranks) * whole.count);
  };
  std::vector<Operation> exchange, gathers;
  for (int h = 0; h < layout_.hosts(); ++h) {
    const int owner = layout_.counterpart(rank, h);
    const auto peer = static_cast<std::uint64_t>(h);
    if (owner != rank) exchange.push_back(send_to(peer, whole.src));
    if (owner != rank) exchange.push_back(receive_from(peer, block(owner)));
    gathers.push_back({ATOLL_ALL_GATHER, owner == rank ? whole.src : ConstView(block(owner)),
                       block(layout_.ranks_of(h).front(), layout_.fewest_ranks()), whole.count,
                       whole.dtype});
  }
  call.submit_to(*inter_, std::move(exchange));
  call.submit_to(*intra_, std::move(gathers));
}

void TwoLevel::reduce_scatter(const FallbackContext& call) const {
  const Operation& whole = call.operation;
  const std::uint64_t count = whole.count;
  const auto intra = static_cast<std::uint64_t>(layout_.fewest_ranks());
  const View partial =
      call.scratch(static_cast<std::uint64_t>(layout_.hosts()) * count, whole.dtype);
  std::vector<Operation> sums;
  for (int h = 0; h < layout_.hosts(); ++h) {
    const auto first = static_cast<std::uint64_t>(layout_.ranks_of(h).front());
    sums.push_back({ATOLL_REDUCE_SCATTER, whole.src.part(first * count, intra * count),
                    partial.part(static_cast<std::uint64_t>(h) * count, count), count, whole.dtype,
                    whole.reduction});
  }
  call.submit_to(*intra_, std::move(sums));
  call.submit_to(*inter_, {{ATOLL_REDUCE_SCATTER, partial, whole.dst, count, whole.dtype,
                            whole.reduction.op}});
}

}  // namespace atoll_v1::atoll
