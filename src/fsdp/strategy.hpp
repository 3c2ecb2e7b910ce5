// What a strategy means: over which ranks state is sharded, and what stays whole in between.
#pragma once

#include "atoll/fsdp.hpp"

namespace atoll_v1::atoll::fsdp {

enum class ShardedOver {
  nothing,
  world,
  shard_axis
};

// Without looking at a mesh.
struct StrategyRule {
  ShardedOver over = ShardedOver::nothing;
  bool resident = false;
  bool accumulates_unsharded = false;
};
// Over more than one shard; over one everything is resident and kept.
StrategyRule rule_of(Strategy strategy, Accumulation accumulation) noexcept;

struct Sharding {
  Axis shard;
  Axis replicate;
  Axis inner{};  // of partial resharding; empty: none
  // Parameters are gathered once after each update and stay whole; else before each use
  // that does not find them in a slot.
  bool resident = false;
  // Whole gradients are kept over the micro batches of a step, and sent with the last.
  bool accumulates_unsharded = false;
};

bool computes_in(DType dtype) noexcept;
// Throws an Error that says what an engine does not take.
void check_options(const Options& options);

// Error(invalid_argument): inner shards that do not divide the shard axis.
Sharding sharding_of(const Mesh& mesh, const Options& options);

}  // namespace atoll_v1::atoll::fsdp
