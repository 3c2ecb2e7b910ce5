// Optimizers over the shards of an Engine, with clipping by the global norm.
//
// Every rank holds the moments of its shards and updates only these shards. Gradients are sums over
// ranks and micro batches, or averages over ranks if Options::gradients says so.
//
// The global norm has the same bits on every rank, and on every mesh that gives the same gradients:
// squares are added in f64 inside blocks of 4,096 elements, and the sums of the blocks are added as
// integers, so that the order of the blocks does not matter.
//
// A step with an infinite or NaN norm changes nothing, unless OptimizerOptions::skip_nonfinite is
// false. A step after a failure of the job changes nothing either, except units that
// update_in_backward() has already started to update on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atoll/fsdp.hpp"

namespace atoll_v1::atoll::fsdp {

// Settings for the parameters that a pattern selects. A setting without a value is that of
// OptimizerOptions. The first group of OptimizerOptions::groups that matches a parameter applies.
struct ParamGroup {
  // Matches "UNIT.PARAM", such as "layers.0.norm.weight": * stands for any text, and ? for one
  // character.
  std::string pattern{};
  float learning_rate_scale = 1;  // factor of the learning rate that step() gets
  std::optional<float> weight_decay{};
  std::optional<float> beta1{};
  std::optional<float> beta2{};
};

// The parameters that decay. A ParamGroup with a weight decay overrides this for its parameters.
enum class Decay {
  all,  // every trainable parameter
  // Only parameters with two or more dimensions decay, so norms and biases do not, as is usual for
  // language models.
  matrices
};
// Returns "all" or "matrices".
ATOLL_API std::string_view name(Decay decay) noexcept;

struct OptimizerOptions {
  enum class Kind {
    adamw,
    sgd
  } kind = Kind::adamw;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;   // decoupled weight decay of the parameters that `decay` selects
  float max_norm = 1.0f;       // gradients are scaled down to this global norm; 0 means no clipping
  bool skip_nonfinite = true;  // when false, steps with an infinite or NaN norm update parameters
  // Type of AdamW's moments: f32, or bf16, which needs half the memory. bf16 moments are rounded
  // stochastically, because the second moment would stop changing if it were rounded to nearest.
  // The rounding is seeded by (seed, unit, bucket, element offset in the bucket, step). Therefore
  // the bits do not depend on how parameters are sharded, and a resumed run computes the same bits.
  // Freezing a parameter or changing a dtype changes the buckets and thus the bits.
  DType moment_dtype = DType::f32;
  bool stochastic_rounding = true;  // when false, bf16 moments are rounded to nearest
  std::uint64_t seed = 0;
  Decay decay = Decay::all;
  std::vector<ParamGroup> groups{};
};

struct ParamSettings {
  float learning_rate_scale, weight_decay, beta1, beta2;
  friend bool operator==(const ParamSettings&, const ParamSettings&) = default;
};
// For callers with an optimizer of their own that has parameter groups. Applies weight_decay,
// beta1, beta2, decay and groups of `options` to the parameters. Returns the settings of each
// parameter, in the order of Engine::units() and their parameters. save() and load() of
// checkpoint.hpp then record and compare these settings, as they do for an Optimizer. Collective
// over all ranks of the engine. Blocks. Throws Error(invalid_argument) before Engine::seal(), for
// a setting out of range, and for a group whose pattern matches no parameter, and Error(mismatch)
// if ranks pass different options.
ATOLL_API std::vector<ParamSettings> use_groups(Engine& engine, const OptimizerOptions& options);

struct StepOptions {
  // The gradients are multiplied by this factor before the norm and the update: 1 / scale if the
  // loss was multiplied by `scale`. All ranks must pass the same factor; see Optimizer::step(). A
  // factor other than 1 cannot be combined with update_in_backward().
  float gradient_scale = 1;
  // When true, step() updates on a stream of the optimizer, not on `compute`, with only a few
  // thread blocks of a GPU. The next forward then runs beside the updates: each of its gathers
  // waits for the update of its unit. After such a step, work outside a Pass that uses parameters
  // or gradients (Segment::values) must first wait with Optimizer::wait_updates().
  bool beside_next_pass = false;
  // Number of thread blocks of a GPU for updates beside the next pass, except for the updates of
  // the two units that forward uses first; 0 means no limit. Each block occupies about one
  // multiprocessor. CPUs ignore this number.
  unsigned blocks_beside = 24;
};
// Returns the blocks_beside with which the updates of an AdamW step end within `forward_seconds`,
// the time of a forward, rounded up to a multiple of 8. If the updates need 33 to 48 blocks, the
// result is 32, and they take up to 1.5 times as long as the forward. If they need more, the result
// is 0: update before the forward, not beside it. The estimate assumes that a block beside matrix
// products reads and writes 50 GB/s. On an H100, updates beside the forward were faster than before
// it with 20 to 28 blocks, and equally fast with 14. Throws Error(invalid_argument) unless the time
// is finite and above 0.
ATOLL_API unsigned blocks_beside_forward(const MemoryPlan& memory, double forward_seconds);
// The same, but the number changes less often from step to step. `last` is the number of blocks of
// the previous forward, empty for the first. The number rises at once, and falls only if 12 or more
// blocks fewer suffice. After 0, it stays 0 unless 32 blocks suffice.
ATOLL_API unsigned blocks_beside_forward(const MemoryPlan& memory, double forward_seconds,
                                         std::optional<unsigned> last);

enum class StepResult {
  updated,
  skipped  // the norm was infinite or NaN, and the step changed nothing
};

// Every call of an Optimizer that was moved from throws Error(invalid_argument), and so does every
// call after the engine has been destroyed.
class ATOLL_API Optimizer {
 public:
  // Collective over all ranks of the engine. The engine must outlive the optimizer. Throws
  // Error(invalid_argument) before Engine::seal(), while the engine has another optimizer, for
  // invalid options, and for a group whose pattern matches no parameter.
  Optimizer(Engine& engine, OptimizerOptions options = {});
  Optimizer(Optimizer&&) noexcept;
  ~Optimizer();  // blocks until no stream uses the moments

  // Overlaps the next step with backward: during the last micro batch of the step, each unit is
  // updated on a separate stream as soon as its gradient is final. step() then updates the
  // remaining units. These updates do not wait for the norm, so they require max_norm = 0 and
  // skip_nonfinite = false: with other options the call does nothing and returns false. Throws
  // Error(invalid_argument) when a unit has already been updated and step() has not been called
  // since, and for a learning rate that is not finite and 0 or above.
  bool update_in_backward(float learning_rate);
  // Enqueues the step on `compute`: waits for the gradients, computes the norm, and updates units
  // in the order of use (on another stream with beside_next_pass), so that the next pass can gather
  // the first units while later units are updated. Collective. Throws Error(invalid_argument)
  // before all micro batches of the step have ended, because gradients are not yet summed over all
  // ranks; for gradients that an earlier step has used; when the learning rate differs from that of
  // update_in_backward(); for a learning rate that is not finite and 0 or above; and for a gradient
  // scale that is not finite and above 0.
  //
  // All ranks must pass the same learning rate and gradient scale, because otherwise replicas
  // diverge. The steps 1, 2, 4, ..., 1024 of an Optimizer, and then every 1024th step, compare
  // these values of all steps since the last comparison: such a step blocks until all ranks have
  // called it, and if a value differs, every rank throws Error(mismatch) and changes nothing. With
  // ATOLL_CHECK=lifetimes every step compares. If a step that compares fails on one rank, all ranks
  // throw that error.
  void step(float learning_rate, Stream& compute, StepOptions options = {});
  // Makes `stream` wait until the last step has updated all parameters. Needed only after a step
  // with StepOptions::beside_next_pass.
  void wait_updates(Stream& stream);
  // Returns the global norm of the gradients of the last step, multiplied by
  // StepOptions::gradient_scale, before clipping. Blocks until the norm is known.
  float grad_norm();
  // Returns whether the last step changed parameters; the result is equal on all ranks. Blocks
  // until the norm of that step is known.
  StepResult last_step() const;
  // Returns the number of steps that changed parameters. A step with an infinite or NaN norm counts
  // only if skip_nonfinite is false. Blocks until the norm of the last step is known.
  std::int64_t steps() const;
  // Sets the number of steps, for a resumed run; load() of checkpoint.hpp includes it. Collective.
  // Blocks until the last step is complete. Throws Error(invalid_argument) for a negative number,
  // and Error(mismatch) if ranks pass different numbers.
  void set_steps(std::int64_t steps);
  const OptimizerOptions& options() const;

 private:
  friend struct EngineAccess;
  struct ATOLL_LOCAL Impl;
  ATOLL_LOCAL Impl& impl() const;  // throws Error(invalid_argument) after a move
  std::unique_ptr<Impl> impl_;
};

}  // namespace atoll_v1::atoll::fsdp
