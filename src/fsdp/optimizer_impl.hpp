// The inside of an Optimizer.
//
// Steps. As soon as the last micro batch's gradient of a unit is complete, its blocks of squares
// are summed on the lane that brought it. step() gathers the blocks of all shards, takes norm and
// factor, and updates unit by unit. With update_in_backward() a unit is updated right behind its
// squares, on a stream of its own.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "atoll/optimizer.hpp"
#include "fsdp/engine_impl.hpp"

namespace atoll_v1::atoll::fsdp {

struct Optimizer::Impl {
  struct Moments {
    View first, second;  // empty for sgd, and of frozen buckets
  };

  Impl(Engine& engine_, OptimizerOptions options_);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // The part that belongs to a segment of the engine.
  Moments moments_of(const Segment& segment) const;

  void allocate_moments();
  void allocate_norm();
  std::array<const Buffer*, 4> norm_buffers() const;
  std::uint64_t norm_bytes() const;
  void start_update(float learning_rate);
  void gradient_complete(Unit::State& unit, Stream& stream);
  void sum_squares(const Unit::State& unit, Stream& stream);
  // Squares and updates of units that backward has left for the step.
  void finish_squares(Stream& compute);
  void finish_updates(float learning_rate, Stream& compute);
  // Leaves norm and clip factor in `result`, or in backward mode the norm in `reported`.
  void measure(Stream& compute);
  View gather_blocks(Stream& compute);
  std::uint64_t rounding_key(const Unit::State& unit, const UnitBucket& bucket) const;
  void update(Unit::State& unit, float learning_rate, Stream& stream);

  Engine& engine;
  OptimizerOptions options;
  Buffer moment1, moment2;
  std::vector<std::vector<Moments>> moments;  // by unit and bucket

  // Norm blocks of this rank, all units in turn; the same of every shard, by rank.
  Buffer local_blocks, gathered_blocks;
  std::vector<std::uint64_t> first_block;  // by unit, in local_blocks
  Buffer result;                           // f64: norm, factor, steps
  Buffer reported;                         // the same, of a norm that no update waits for
  // What result and reported say, once `known` has happened. From other memory of the host a GPU's
  // copy would hold up the caller until the norm is there.
  Buffer outcome_memory = engine.device().allocate_staging(3 * sizeof(double));
  std::span<double, 3> outcome{static_cast<double*>(outcome_memory.data()), 3};
  Event known;
  Event done;  // the last step, updates and all

  std::vector<bool> squared;         // by unit: its blocks are those of the gradient of this step
  std::vector<bool> updated;         // by unit: backward has updated it
  std::optional<float> in_backward;  // the learning rate, while backward updates
  Stream updates;
};

}  // namespace atoll_v1::atoll::fsdp
