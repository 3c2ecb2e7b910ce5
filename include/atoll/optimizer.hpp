// Optimizers over the shards of an Engine, with clipping by the global norm.
//
// Every rank holds the moments of its own shards and updates only those. Gradients are sums over
// ranks and micro batches, not averages.
//
// The global norm has the same bits on every rank, and on every mesh that gives the same gradients:
// squares are added in f64 over blocks of 4,096 elements, and blocks are added as integers, so that
// their order does not matter.
//
// A step with a norm that is not finite changes nothing, unless OptimizerOptions::skip_nonfinite is
// false. A step after a failure of the job changes nothing either, except updates that
// update_in_backward() has already started on a GPU.
#pragma once

#include <memory>

#include "atoll/fsdp.hpp"

namespace atoll_v1::atoll::fsdp {

struct OptimizerOptions {
  enum class Kind {
    adamw,
    sgd
  } kind = Kind::adamw;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;   // decoupled, applied to every trainable parameter
  float max_norm = 1.0f;       // scales gradients down to this global norm; 0: no clipping
  bool skip_nonfinite = true;  // false: a step with a norm that is not finite is done all the same
  // Type of AdamW's moments: f32, or bf16 at half the bytes. bf16 moments are rounded
  // stochastically, since the second moment would stop changing if it were rounded to nearest.
  // Rounding is seeded by (seed, unit, bucket, element offset in the bucket, step): the bits do not
  // depend on how ranks share the parameters, and a resumed run gets the same bits. Freezing a
  // parameter or changing a dtype changes buckets, and with them the bits.
  DType moment_dtype = DType::f32;
  bool stochastic_rounding = true;  // false: bf16 moments are rounded to nearest
  std::uint64_t seed = 0;
};

class Optimizer {
 public:
  // The engine must outlive the optimizer. Error(invalid_argument) before Engine::freeze(), while
  // the engine has another optimizer, and for invalid options.
  Optimizer(Engine& engine, OptimizerOptions options = {});
  Optimizer(Optimizer&&) noexcept;
  ~Optimizer();  // blocks until no stream uses the moments

  // Lets the next last micro batch update each unit as soon as its gradient is final, on a stream
  // of its own beside backward; step() then updates the remaining units. This needs max_norm = 0
  // and skip_nonfinite = false, since updates do not wait for the norm: otherwise the call does
  // nothing and returns false. Error(invalid_argument) when called again before step() and after a
  // unit has been updated.
  bool update_in_backward(float learning_rate);
  // Enqueues the step on `compute`: waits for the gradients, computes the norm, and updates units
  // in the order of use, so that the next pass can gather the first units while others are updated.
  // Collective over the shard axis. Error(invalid_argument) before all micro batches of the step
  // have ended, since gradients are not yet sums over all ranks, and for another learning rate than
  // update_in_backward() was given.
  void step(float learning_rate, Stream& compute);
  // The norm of the last step before clipping. Blocks until the norm is known.
  float grad_norm();
  // The number of steps that changed parameters: those with a finite norm, unless skip_nonfinite is
  // false. Blocks as grad_norm() does.
  std::int64_t steps() const;
  void set_steps(std::int64_t steps);  // for resumed runs; blocks until the last step is complete
  const OptimizerOptions& options() const noexcept;

 private:
  friend struct EngineAccess;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atoll_v1::atoll::fsdp
