#include "atoll/choose_strategy.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "core/errors.hpp"
#include "device/int8_blocks.hpp"
#include "fsdp/strategy.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

constexpr std::uint64_t master_size = 4, gradient_size = 4;
// Relative difference in time below which strategies count as equally fast.
constexpr double tie = 0.01;

void check(const StrategyQuestion& q) {
  require(q.mesh.replicate >= 1 && q.mesh.shard >= 1, "choose_strategy: the mesh has no ranks");
  require(q.parameters >= 1, "choose_strategy: the model has no parameters");
  require(q.frozen <= q.parameters,
          "choose_strategy: there are more frozen parameters than parameters");
  require(q.quantized <= q.frozen,
          "choose_strategy: there are more quantized parameters than frozen parameters");
  check_options(q.options);
  require(q.units >= 1 && q.micro_batches >= 1,
          "choose_strategy: units and micro_batches must be at least 1");
  require(q.reserve >= 0 && q.reserve < 1, "choose_strategy: reserve must be in [0, 1)");
}

class Estimator {
 public:
  explicit Estimator(const StrategyQuestion& question)
      : q_(question), shard_(question.rates.shard), replicate_(question.rates.replicate) {
    const bool known = (q_.mesh.shard == 1 || shard_.is_known()) &&
                       (q_.mesh.replicate == 1 || replicate_.is_known());
    if (!known) shard_ = replicate_ = {.gbyte_s = 1};
  }

  StrategyEstimate of(Strategy strategy) const {
    StrategyRule rule = rule_of(strategy, q_.options.accumulation);
    const int shards = shards_of(rule.over);
    if (shards == 1) rule.accumulates_unsharded = true;
    if (shards == 1 && q_.quantized == 0) rule.resident = true;
    StrategyEstimate estimate{.strategy = strategy,
                              .bytes = bytes(rule, static_cast<std::uint64_t>(shards)),
                              .seconds = seconds(rule, shards)};
    estimate.fits = q_.memory_bytes == 0 || static_cast<double>(estimate.bytes) <= available();
    return estimate;
  }
  // Returns true if an engine supports the strategy with the given options.
  bool is_possible(Strategy strategy) const {
    const StrategyRule rule = rule_of(strategy, q_.options.accumulation);
    const int shards = shards_of(rule.over), secondary = q_.options.secondary_shards;
    if (rule.resident && q_.quantized > 0) return false;
    return secondary == 0 || rule.resident || shards == 1 || shards % secondary == 0;
  }
  double available() const { return static_cast<double>(q_.memory_bytes) * (1 - q_.reserve); }

 private:
  int shards_of(ShardedOver over) const {
    switch (over) {
      case ShardedOver::nothing:
        return 1;
      case ShardedOver::world:
        return q_.mesh.shard * q_.mesh.replicate;
      case ShardedOver::shard_axis:
        return q_.mesh.shard;
    }
    return 1;
  }

  // Returns the bytes that a rank needs, without padding. The terms correspond to the categories of
  // MemoryPlan, such as moments and gradients.
  std::uint64_t bytes(const StrategyRule& rule, std::uint64_t shards) const {
    const Options& options = q_.options;
    const std::uint64_t low = size_of(options.precision.param);
    const std::uint64_t shard = (trained() + shards - 1) / shards;
    std::uint64_t sum = q_.activation_bytes + shard * q_.moment_bytes;
    // Resident parameters, which stay unsharded between passes, contain every master parameter that
    // has the compute dtype. The master parameters of frozen parameters always have the compute
    // dtype.
    if (!rule.resident || options.precision.param != DType::f32) sum += shard * master_size;
    if (!rule.resident) {
      sum += ((q_.frozen - q_.quantized) * low + int8_bytes(q_.quantized)) / shards;
    }
    // Adds the buffer for the gathered 8-bit values of a unit, from which they are converted.
    if (q_.quantized > 0 && shards > 1) sum += int8_bytes(q_.largest_unit);
    if (rule.resident) {
      sum += q_.parameters * low;
    } else {
      sum += static_cast<std::uint64_t>(options.prefetch + 1) * q_.largest_unit * low;
      if (options.secondary_shards > 0) {
        sum += q_.parameters * low / static_cast<std::uint64_t>(options.secondary_shards);
      }
    }
    if (const std::uint64_t narrow = size_of(options.precision.reduce); narrow < gradient_size) {
      const std::uint64_t share = (q_.largest_unit + shards - 1) / shards * narrow;
      sum += shards > 1 ? q_.largest_unit * narrow + share : 0;
      sum += rule.over != ShardedOver::world && replicas(shards) > 1 ? share : 0;
    }
    if (rule.accumulates_unsharded) return sum + trained() * gradient_size;
    return sum + (shard + q_.largest_unit / shards) * gradient_size +
           static_cast<std::uint64_t>(options.reduce_buffers) * q_.largest_unit * gradient_size;
  }

  double seconds(const StrategyRule& rule, int shards) const {
    const auto low = static_cast<double>(size_of(q_.options.precision.param));
    // Resident parameters stay unsharded between passes. The frozen ones are gathered only once,
    // because no step changes them.
    const double gathered = rule.resident
                                ? static_cast<double>(trained()) * low
                                : static_cast<double>(q_.parameters - q_.quantized) * low +
                                      static_cast<double>(int8_bytes(q_.quantized));
    const double reduced =
        static_cast<double>(trained()) * static_cast<double>(size_of(q_.options.precision.reduce));
    const bool secondary = !rule.resident && q_.options.secondary_shards > 0;
    const double gathers = rule.resident ? 1 : (secondary ? 1 : 2) * q_.micro_batches;
    const double intra = secondary ? q_.micro_batches * secondary_leg(gathered) : 0;
    const double reductions = rule.accumulates_unsharded ? 1 : q_.micro_batches;
    switch (rule.over) {
      case ShardedOver::nothing:
        return 2 * world_leg(reduced);
      case ShardedOver::world:
        return intra + gathers * world_leg(gathered) + reductions * world_leg(reduced);
      case ShardedOver::shard_axis:
        return intra + gathers * leg(gathered, shards, shard_) +
               reductions * leg(reduced, shards, shard_) +
               2 * leg(reduced / shards, q_.mesh.replicate, replicate_);
    }
    return 0;
  }

  // Returns the time of collectives over all ranks that move `bytes` bytes, one collective per
  // unit. They run in two levels: inside the shard groups, then across them.
  double world_leg(double bytes) const {
    return leg(bytes, q_.mesh.shard, shard_) +
           leg(bytes / q_.mesh.shard, q_.mesh.replicate, replicate_);
  }
  // Returns the time to gather every unit once over the secondary groups, which are groups of
  // Options::secondary_shards ranks. If a secondary group spans several shard groups, its slower
  // links set the time of all ranks.
  double secondary_leg(double bytes) const {
    const int ranks = q_.options.secondary_shards, shard = q_.mesh.shard;
    if (shard % ranks != 0 && ranks % shard != 0) return leg(bytes, ranks, replicate_);
    if (ranks <= shard) return leg(bytes, ranks, shard_);
    return leg(bytes, shard, shard_) + leg(bytes / shard, ranks / shard, replicate_);
  }
  std::uint64_t replicas(std::uint64_t shards) const {
    return static_cast<std::uint64_t>(q_.mesh.replicate) *
           static_cast<std::uint64_t>(q_.mesh.shard) / shards;
  }
  std::uint64_t trained() const { return q_.parameters - q_.frozen; }
  double leg(double bytes, int ranks, const GroupRate& rate) const {
    if (ranks == 1) return 0;
    return rate.transfer_s(bytes, ranks) + q_.units * rate.latency_us * 1e-6;
  }

  const StrategyQuestion& q_;
  GroupRate shard_, replicate_;
};

// Returns the fastest strategy that fits in memory; null if none fits.
const StrategyEstimate* fastest(const std::vector<StrategyEstimate>& all,
                                std::optional<Strategy> without = {}) {
  const StrategyEstimate* best = nullptr;
  for (const StrategyEstimate& one : all) {
    if (!one.fits || one.strategy == without) continue;
    if (!best || one.seconds < best->seconds) best = &one;
  }
  return best;
}

const StrategyEstimate& decide(const std::vector<StrategyEstimate>& all) {
  const auto smaller = [](const auto& a, const auto& b) { return a.bytes < b.bytes; };
  const StrategyEstimate* best = fastest(all);
  if (!best) return *std::ranges::min_element(all, smaller);
  const double most = best->seconds * (1 + tie);
  for (const StrategyEstimate& one : all) {
    if (one.fits && one.seconds <= most && smaller(one, *best)) best = &one;
  }
  return *best;
}

std::string size_text(double bytes) {
  return bytes < 1e9 ? fmt::format("{:.3g} MB", bytes * 1e-6)
                     : fmt::format("{:.3g} GB", bytes * 1e-9);
}
std::string size_text(std::uint64_t bytes) { return size_text(static_cast<double>(bytes)); }
std::string time_of(const StrategyEstimate& one) {
  return one.seconds < 1 ? fmt::format("{:.3g} ms", one.seconds * 1e3)
                         : fmt::format("{:.3g} s", one.seconds);
}

std::string explain(const StrategyQuestion& q, const std::vector<StrategyEstimate>& all,
                    const StrategyEstimate& taken, double available) {
  if (q.mesh.replicate * q.mesh.shard == 1) {
    return fmt::format("{}: a single rank cannot shard; the plan needs {}", name(taken.strategy),
                       size_text(taken.bytes));
  }
  const std::string room = fmt::format("{} ({} less {:.0f} %)", size_text(available),
                                       size_text(q.memory_bytes), q.reserve * 100);
  if (!taken.fits) {
    return fmt::format(
        "{}: no strategy fits in {}; this strategy needs the least memory, {} per rank",
        name(taken.strategy), room, size_text(taken.bytes));
  }
  std::string text = fmt::format("{}: a step communicates for {} and needs {} per rank{}",
                                 name(taken.strategy), time_of(taken), size_text(taken.bytes),
                                 q.memory_bytes > 0 ? " of " + room : ", memory limit unknown");
  if (const auto* next = fastest(all, taken.strategy)) {
    const bool tied = next->seconds <= taken.seconds * (1 + tie);
    const char* relation = !tied                       ? "the next fastest is"
                           : next->bytes > taken.bytes ? "a larger strategy, as fast within 1 %, is"
                                                       : "a strategy as fast and as large is";
    text += fmt::format("; {} {} with {} and {}", relation, name(next->strategy), time_of(*next),
                        size_text(next->bytes));
  }
  const auto fastest_of_all = std::ranges::min_element(all, {}, &StrategyEstimate::seconds);
  if (!fastest_of_all->fits) {
    text += fmt::format("; {} would take {} but needs {}", name(fastest_of_all->strategy),
                        time_of(*fastest_of_all), size_text(fastest_of_all->bytes));
  }
  const GroupRate& shard = q.rates.shard;
  const GroupRate& replicate = q.rates.replicate;
  const bool unknown =
      (q.mesh.shard > 1 && !shard.is_known()) || (q.mesh.replicate > 1 && !replicate.is_known());
  if (unknown) return text + "; link rates unknown, assuming 1 GB/s everywhere";
  return shard.is_assumed || replicate.is_assumed ? text + "; link rates assumed" : text;
}

}  // namespace

StrategyChoice choose_strategy(const StrategyQuestion& question) {
  check(question);
  const Estimator estimator(question);
  StrategyChoice choice;
  for (const Strategy strategy : every_strategy()) {
    if (!estimator.is_possible(strategy)) continue;
    choice.estimates.push_back(estimator.of(strategy));
  }
  const StrategyEstimate& taken = decide(choice.estimates);
  choice.strategy = taken.strategy;
  choice.why = explain(question, choice.estimates, taken, estimator.available());
  return choice;
}

MeshRates rates_of(const Mesh& mesh, const EngineAxes& axes) {
  const Mesh own = engine_mesh(mesh, axes);
  const Axis shard = own.axis(axes.shard), world = own.axis("world");
  const Axis replicate = own.has_axis(axes.replicate) ? own.axis(axes.replicate) : Axis{};
  return {.shard = shard.rate,
          .replicate = replicate.rate,
          .world = world.rate,
          .shard_levels = shard.levels,
          .replicate_levels = replicate.levels,
          .world_levels = world.levels};
}

}  // namespace atoll_v1::atoll::fsdp
