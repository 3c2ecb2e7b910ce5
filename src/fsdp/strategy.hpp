// Defines each strategy: the ranks over which state is sharded, and which state stays unsharded.
#pragma once

#include "atoll/fsdp.hpp"

namespace atoll_v1::atoll::fsdp {

enum class ShardedOver {
  nothing,
  world,
  shard_axis
};

// The definition of a strategy without a mesh. If the mesh yields only one shard, sharding_of()
// sets both flags.
struct StrategyRule {
  ShardedOver over = ShardedOver::nothing;
  // Parameters stay unsharded between passes and are gathered once after each update. Otherwise
  // each use of a unit gathers them, unless a slot still contains them.
  bool resident = false;
  // Gradients accumulate unsharded over the micro batches of a step and are reduced in the last
  // micro batch.
  bool accumulates_unsharded = false;
};
StrategyRule rule_of(Strategy strategy, Accumulation accumulation) noexcept;

// The axes and flags of a strategy on a given mesh.
struct Sharding {
  Axis shard;
  Axis replicate;
  Axis secondary{};  // group of ranks for partial resharding; empty when partial resharding is off
  bool resident = false;
  bool accumulates_unsharded = false;
};
// Returns the part of the mesh that an engine uses: the axes that Options::axes names. Throws
// Error(invalid_argument) if the mesh lacks the shard axis.
Mesh engine_mesh(const Mesh& mesh, const EngineAxes& axes);

// `mesh` comes from engine_mesh(). Throws Error(invalid_argument) when Options::secondary_shards
// does not divide the size of the shard axis.
Sharding sharding_of(const Mesh& mesh, const Options& options);

bool computes_in(DType dtype) noexcept;  // true if compute may read parameters of this type
// Throws Error(invalid_argument) or Error(unsupported), which name the option, for options that no
// engine supports.
void check_options(const Options& options);

}  // namespace atoll_v1::atoll::fsdp
