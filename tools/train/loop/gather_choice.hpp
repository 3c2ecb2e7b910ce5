// Chooses whether copy engines or SMs of the GPUs run gathers (--gather).
#pragma once

#include <string>

#include "atoll/communicator.hpp"
#include "atoll/fsdp.hpp"
#include "atoll/mesh.hpp"
#include "loop/options.hpp"
#include "loop/rank_compute.hpp"
#include "model/config.hpp"

namespace train {

// Returns the hint for a value of --gather. For auto it is the hint of copy-engines.
atoll::ComputeUnits gather_units(const std::string& gather);

// Replaces RunOptions::gather if it is auto and there are gathers to measure. On GPUs it opens two
// communicators on the axis over which `strategy` gathers: one that uses copy engines and one that
// uses SMs. It gathers the parameters of a layer through each, beside matrix products with the
// FLOPs of the layer's forward, and compares the times of the slowest ranks. It chooses SMs only if
// they are at least 2 % faster. Rank 0 logs both times. Without GPUs, with
// one rank in the axis, or if the strategy gathers nothing, it measures nothing and leaves auto.
// Gathers inside the groups of --secondary-shards are not measured. Collective; until it returns,
// it holds memory for the layer, a shard of it, one of its products, and NCCL's buffers of two
// communicators.
void choose_gather(atoll::World& world, RunOptions& options, const ModelConfig& model,
                   const atoll::Mesh& mesh, const Machine& machine, atoll::fsdp::Strategy strategy);

}  // namespace train
