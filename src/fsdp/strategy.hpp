// The meaning of a strategy: the ranks over which state is sharded, and what stays unsharded.
#pragma once

#include "atoll/fsdp.hpp"

namespace atoll_v1::atoll::fsdp {

enum class ShardedOver {
  nothing,
  world,
  shard_axis
};

// The rule of a strategy without a mesh. With a single shard sharding_of() sets both flags.
struct StrategyRule {
  ShardedOver over = ShardedOver::nothing;
  // Parameters stay unsharded between passes and are gathered once after each update. Otherwise
  // each use of a unit gathers them, unless a slot still contains them.
  bool resident = false;
  // Gradients accumulate unsharded over the micro batches of a step and are reduced with the last.
  bool accumulates_unsharded = false;
};
StrategyRule rule_of(Strategy strategy, Accumulation accumulation) noexcept;

// A rule applied to a mesh.
struct Sharding {
  Axis shard;
  Axis replicate;
  Axis inner{};  // group of ranks for partial resharding; empty: off
  bool resident = false;
  bool accumulates_unsharded = false;
};
// Error(invalid_argument): inner shards that do not divide the shard axis.
Sharding sharding_of(const Mesh& mesh, const Options& options);

bool computes_in(DType dtype) noexcept;  // whether compute may read parameters of this type
// Error(invalid_argument, unsupported) names the option that no engine supports.
void check_options(const Options& options);

}  // namespace atoll_v1::atoll::fsdp
