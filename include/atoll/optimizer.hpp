// Optimizers over the shards of an Engine, with clipping by the global norm.
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
  float weight_decay = 0.0f;  // decoupled; on every parameter
  float max_norm = 1.0f;      // gradients are scaled down to this global norm; 0: no clipping
  // false: a norm that is not finite is reported, and the step done all the same.
  bool skip_nonfinite = true;
  // Of AdamW: f32, or bf16, which halves them and by default rounds up or down by chance: to the
  // nearest, the second moment would stand still. Chance follows from seed, step and place in the
  // unit's bucket, so that the bits do not depend on how many ranks share the parameters; they do
  // on which parameters are frozen, and on types.
  DType moment_dtype = DType::f32;
  bool stochastic_rounding = true;
  std::uint64_t seed = 0;
};

// The moments are sharded as the parameters are: a rank holds and updates its own part only. The
// norm is the same on every rank and for every mesh that gives the same gradients: f64 sums over
// blocks of 4,096 elements, which are added as integers, so that no order matters. A step whose
// norm is not finite changes nothing, unless asked to; neither does one after a failure of the job,
// but for what update_in_backward() has begun on a GPU.
class Optimizer {
 public:
  // The engine outlives it. Error(invalid_argument) before Engine::freeze(), and while the engine
  // has another optimizer.
  Optimizer(Engine& engine, OptimizerOptions options = {});
  Optimizer(Optimizer&&) noexcept;
  ~Optimizer();

  // With neither clipping nor skip_nonfinite no update has to wait for the norm: after this call
  // the next last micro batch updates each unit on a stream of its own, beside backward, as soon as
  // its gradient is complete, and step() does what is left. Otherwise it does nothing; false then.
  // Error(invalid_argument) when called again before step(), once a unit has been updated.
  bool update_in_backward(float learning_rate);
  // Enqueued on `compute`, behind the gradients, unit by unit in the order of use: the next pass
  // gathers the first while the others are updated. Collective over the shard axis.
  // Error(invalid_argument) for another learning rate than update_in_backward() was given, and
  // before all micro batches of a step are complete: what gradients hold then is not the sum over
  // all ranks.
  void step(float learning_rate, Stream& compute);
  // Of the last step, before clipping. Blocks until that step is complete.
  float grad_norm();
  // Steps that changed something: those with a finite norm. Blocks as grad_norm() does. Resumed
  // runs set it.
  std::int64_t steps() const;
  void set_steps(std::int64_t steps);
  const OptimizerOptions& options() const noexcept;

  struct Impl;  // src/fsdp/optimizer_impl.hpp
  Impl& impl() const noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace atoll_v1::atoll::fsdp
