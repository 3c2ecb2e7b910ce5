#include "comm/two_level.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "atoll/plugin_names.hpp"
#include "core/log.hpp"

namespace atoll_v1::atoll {
namespace {

std::vector<int> hosts_of(const World& world, const Axis& axis) {
  std::vector<int> hosts;
  for (const int rank : axis.ranks) {
    hosts.push_back(world.placements()[static_cast<std::size_t>(rank)].host);
  }
  return hosts;
}

std::shared_ptr<Communicator::Impl> open_part(const Communicator::Impl& whole, const char* part,
                                              std::vector<int> ranks, int index) {
  Axis axis{.world = &whole.world, .name = part, .ranks = std::move(ranks), .index = index};
  auto impl = std::make_shared<Communicator::Impl>(
      axis, CommunicatorOptions{.name = fmt::format("{}.{}", whole.name, part),
                                .backend = whole.plugin->name,
                                .device = whole.device});
  impl->open_backend(&whole);
  return impl;
}

bool has_rates(const Axis& axis) {
  return axis.rate.is_known() && axis.levels.inside.is_known() && axis.levels.across.is_known();
}

bool has_levels_here(std::int32_t kind) {
  return kind == ATOLL_ALL_GATHER || kind == ATOLL_REDUCE_SCATTER;
}

}  // namespace

LevelChoice LevelChoice::take_from(std::string& tuning) {
  LevelChoice choice;
  std::string rest, text;
  std::istringstream lines(tuning);
  while (std::getline(lines, text)) {
    std::istringstream words(text);
    std::string collective, algorithm;
    Line line{};
    words >> collective >> line.least_bytes >> algorithm;
    line.kind = atoll_abi::kind_of(collective);
    line.two_level = algorithm == "two_level";
    if (has_levels_here(line.kind) && (line.two_level || algorithm == "flat")) {
      choice.lines_.push_back(line);
    } else {
      rest += text + '\n';
    }
  }
  tuning = std::move(rest);
  return choice;
}

bool LevelChoice::asks_for_levels() const { return std::ranges::any_of(lines_, &Line::two_level); }

std::optional<bool> LevelChoice::two_level(std::int32_t kind, std::uint64_t bytes) const {
  std::optional<bool> found;
  for (const Line& line : lines_) {
    if (line.kind == kind && bytes >= line.least_bytes) found = line.two_level;
  }
  return found;
}

double flat_us(const GroupRate& rate, int ranks, std::uint64_t bytes) {
  const double share = static_cast<double>(ranks - 1) / ranks;
  return rate.latency_us + share * static_cast<double>(bytes) / (rate.gbyte_s * 1e3);
}

double two_level_us(const LevelRates& rates, int ranks, int inner, std::uint64_t bytes) {
  const auto of_twins = static_cast<std::uint64_t>(bytes / static_cast<std::uint64_t>(inner));
  return flat_us(rates.across, ranks / inner, of_twins) + flat_us(rates.inside, inner, bytes);
}

std::unique_ptr<TwoLevel> TwoLevel::open(const Communicator::Impl& whole, LevelChoice choice) {
  const int inner = ranks_per_host(hosts_of(whole.world, whole.axis));
  if (inner == 0 || (!choice.asks_for_levels() && !has_rates(whole.axis))) return nullptr;
  const int n = whole.axis.size(), index = whole.axis.index;
  const int host = index / inner, place = index % inner;
  const auto rank_at = [&](int h, int l) {
    return whole.axis.ranks[static_cast<std::size_t>(h * inner + l)];
  };
  std::vector<int> neighbours, twins;
  for (int l = 0; l < inner; ++l) neighbours.push_back(rank_at(host, l));
  for (int h = 0; h < n / inner; ++h) twins.push_back(rank_at(h, place));
  auto levels = std::make_unique<TwoLevel>();
  levels->inner_ = inner;
  levels->hosts_ = n / inner;
  levels->choice_ = std::move(choice);
  levels->inside_ = open_part(whole, "inside", std::move(neighbours), place);
  levels->across_ = open_part(whole, "across", std::move(twins), host);
  log::debug("communicator {}: two levels, {} hosts of {} ranks", whole.name, levels->hosts_,
             inner);
  return levels;
}

bool TwoLevel::takes(const Communicator::Impl& whole, const Request& request) const {
  if (!has_levels_here(request.kind) || request.count == 0) return false;
  const Reduction& reduction = request.reduction;
  if (request.kind == ATOLL_REDUCE_SCATTER) {
    // Sums that the backend does not take are composed. An average is divided once, and 16-bit
    // types are rounded once.
    const bool ordered = whole.world.config().deterministic;
    const bool narrow = request.dtype == DType::bf16 || request.dtype == DType::f16;
    if (ordered || narrow || reduction.op == ReduceOp::avg) return false;
    if (!whole.takes(request.kind, request.dtype, reduction.op)) return false;
  }
  const int n = whole.axis.size();
  const std::uint64_t bytes =
      request.count * size_of(request.dtype) * static_cast<std::uint64_t>(n);
  if (const auto asked = choice_.two_level(request.kind, bytes)) return *asked;
  return has_rates(whole.axis) &&
         two_level_us(whole.axis.levels, n, inner_, bytes) < flat_us(whole.axis.rate, n, bytes);
}

std::uint64_t TwoLevel::scratch_bytes(const Request& request) const {
  if (request.kind != ATOLL_REDUCE_SCATTER) return 0;
  return static_cast<std::uint64_t>(hosts_) * request.count * size_of(request.dtype);
}

void TwoLevel::run(const Call& call) const {
  if (call.request.kind == ATOLL_ALL_GATHER) {
    all_gather(call);
  } else {
    reduce_scatter(call);
  }
}

void TwoLevel::submit(const std::shared_ptr<Communicator::Impl>& part, const Call& call,
                      std::vector<Request> requests) const {
  for (Request& request : requests) request.part_of = call.called;
  part->submit(std::move(requests), call.state, call.stream);
}

void TwoLevel::all_gather(const Call& call) const {
  const Request& whole = call.request;
  const std::uint64_t count = whole.count;
  const auto inner = static_cast<std::uint64_t>(inner_), hosts = static_cast<std::uint64_t>(hosts_);
  const std::uint64_t host = call.rank() / inner, place = call.rank() % inner;
  const auto block = [&](std::uint64_t h) {
    return whole.dst.part((h * inner + place) * count, count);
  };
  std::vector<Request> exchange, gathers;
  for (std::uint64_t h = 0; h < hosts; ++h) {
    if (h != host) {
      exchange.push_back(send(whole.src, h));
      exchange.push_back(receive(block(h), h));
    }
    gathers.push_back({ATOLL_ALL_GATHER, h == host ? whole.src : ConstView(block(h)),
                       whole.dst.part(h * inner * count, inner * count), count, whole.dtype});
  }
  submit(across_, call, std::move(exchange));
  submit(inside_, call, std::move(gathers));
}

void TwoLevel::reduce_scatter(const Call& call) const {
  const Request& whole = call.request;
  const std::uint64_t count = whole.count;
  const auto inner = static_cast<std::uint64_t>(inner_), hosts = static_cast<std::uint64_t>(hosts_);
  const View partial = call.impl.scratch(hosts * count, whole.dtype);
  std::vector<Request> sums;
  for (std::uint64_t h = 0; h < hosts; ++h) {
    sums.push_back({ATOLL_REDUCE_SCATTER, whole.src.part(h * inner * count, inner * count),
                    partial.part(h * count, count), count, whole.dtype, whole.reduction});
  }
  submit(inside_, call, std::move(sums));
  submit(across_, call,
         {{ATOLL_REDUCE_SCATTER, partial, whole.dst, count, whole.dtype, whole.reduction.op}});
}

}  // namespace atoll_v1::atoll
