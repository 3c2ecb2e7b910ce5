#include "comm/two_level.hpp"

#include <fmt/format.h>

#include "comm/backend_group.hpp"
#include "core/log.hpp"

namespace atoll_v1::atoll {
namespace {

std::shared_ptr<BackendGroup> open_part(const BackendGroup& whole, const char* part,
                                        std::vector<int> ranks, int index) {
  const Axis axis{.world = &whole.world(), .name = part, .ranks = std::move(ranks), .index = index};
  return BackendGroup::open(axis,
                            {.name = fmt::format("{}.{}", whole.name(), part),
                             .backend = whole.plugin().name,
                             .device = whole.device()},
                            &whole);
}

bool has_rates(const Axis& axis) {
  return axis.rate.is_known() && axis.levels.inside.is_known() && axis.levels.across.is_known();
}

}  // namespace

double flat_us(const GroupRate& rate, int ranks, std::uint64_t bytes) {
  const double share = static_cast<double>(ranks - 1) / ranks;
  return rate.latency_us + share * static_cast<double>(bytes) / (rate.gbyte_s * 1e3);
}

double two_level_us(const LevelRates& rates, int ranks, int inner, std::uint64_t bytes) {
  const auto of_twins = static_cast<std::uint64_t>(bytes / static_cast<std::uint64_t>(inner));
  return flat_us(rates.across, ranks / inner, of_twins) + flat_us(rates.inside, inner, bytes);
}

std::unique_ptr<TwoLevel> TwoLevel::open(BackendGroup& whole) {
  const Axis& axis = whole.axis();
  const int inner = ranks_per_host(hosts_of(axis));
  if (inner == 0 || (!whole.level_choice().asks_for_levels() && !has_rates(axis))) return nullptr;
  const int hosts = axis.size() / inner;
  const int host = axis.index / inner, place = axis.index % inner;
  const auto rank_at = [&](int h, int l) {
    return axis.ranks[static_cast<std::size_t>(h * inner + l)];
  };
  std::vector<int> neighbours, twins;
  for (int l = 0; l < inner; ++l) neighbours.push_back(rank_at(host, l));
  for (int h = 0; h < hosts; ++h) twins.push_back(rank_at(h, place));
  auto levels = std::make_unique<TwoLevel>(whole);
  levels->inner_ = static_cast<std::uint64_t>(inner);
  levels->hosts_ = static_cast<std::uint64_t>(hosts);
  levels->inside_ = open_part(whole, "inside", std::move(neighbours), place);
  levels->across_ = open_part(whole, "across", std::move(twins), host);
  log::debug("communicator {}: two levels, {} hosts of {} ranks", whole.name(), hosts, inner);
  return levels;
}

bool TwoLevel::takes(const Operation& operation) const {
  if (!LevelChoice::applies_to(operation.kind) || operation.count == 0) return false;
  if (operation.kind == ATOLL_REDUCE_SCATTER) {
    // Two levels would divide an average twice and round a 16-bit sum twice. Fallbacks build the
    // sums that the backend does not support.
    const ReduceOp op = operation.reduction.op;
    if (whole_.world().config().deterministic || is_16_bit(operation.dtype) ||
        op == ReduceOp::avg || !whole_.performs(operation.kind, operation.dtype, op)) {
      return false;
    }
  }
  const Axis& axis = whole_.axis();
  const int n = axis.size();
  const std::uint64_t bytes =
      operation.count * size_of(operation.dtype) * static_cast<std::uint64_t>(n);
  if (const auto chosen = whole_.level_choice().two_level(operation.kind, bytes)) return *chosen;
  return has_rates(axis) && two_level_us(axis.levels, n, static_cast<int>(inner_), bytes) <
                                flat_us(axis.rate, n, bytes);
}

std::uint64_t TwoLevel::scratch_bytes(const Operation& operation) const {
  if (operation.kind != ATOLL_REDUCE_SCATTER) return 0;
  return hosts_ * operation.count * size_of(operation.dtype);
}

void TwoLevel::run(const FallbackContext& call) const {
  if (call.operation.kind == ATOLL_ALL_GATHER) {
    all_gather(call);
  } else {
    reduce_scatter(call);
  }
}

void TwoLevel::all_gather(const FallbackContext& call) const {
  const Operation& whole = call.operation;
  const std::uint64_t count = whole.count;
  const std::uint64_t host = call.rank() / inner_, place = call.rank() % inner_;
  std::vector<Operation> exchange, gathers;
  for (std::uint64_t h = 0; h < hosts_; ++h) {
    const View block = whole.dst.part((h * inner_ + place) * count, count);
    if (h != host) {
      exchange.push_back(send_to(h, whole.src));
      exchange.push_back(receive_from(h, block));
    }
    gathers.push_back({ATOLL_ALL_GATHER, h == host ? whole.src : ConstView(block),
                       whole.dst.part(h * inner_ * count, inner_ * count), count, whole.dtype});
  }
  call.submit_to(*across_, std::move(exchange));
  call.submit_to(*inside_, std::move(gathers));
}

void TwoLevel::reduce_scatter(const FallbackContext& call) const {
  const Operation& whole = call.operation;
  const std::uint64_t count = whole.count;
  const View partial = call.scratch(hosts_ * count, whole.dtype);
  std::vector<Operation> sums;
  for (std::uint64_t h = 0; h < hosts_; ++h) {
    sums.push_back({ATOLL_REDUCE_SCATTER, whole.src.part(h * inner_ * count, inner_ * count),
                    partial.part(h * count, count), count, whole.dtype, whole.reduction});
  }
  call.submit_to(*inside_, std::move(sums));
  call.submit_to(*across_, {{ATOLL_REDUCE_SCATTER, partial, whole.dst, count, whole.dtype,
                             whole.reduction.op}});
}

}  // namespace atoll_v1::atoll
