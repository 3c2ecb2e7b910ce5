// Muon on sharded matrices, as an example of an optimizer that is written outside the library: it
// uses only public headers of atoll.
//
// Muon (Keller Jordan and others, https://kellerjordan.github.io/posts/muon/) replaces the momentum
// of a matrix by the nearest matrix with orthonormal rows or columns, before it becomes an update.
// That needs whole matrices, but each rank holds only shards. A step therefore
//   1. updates the momentum of this rank's shards,
//   2. sends each part to the owner of its matrix: every matrix has one owner among the ranks of
//      all replicas, and all owners have about the same amount of work,
//   3. makes each owned matrix orthogonal, with products of matrices,
//   4. sends the parts back, then to the other replicas, and updates this rank's shards.
// Within a replica, steps 2 and 4 send each element at most once. The result has the same bits on
// any number of ranks and with any strategy if the gradients have the same bits, because each whole
// matrix is computed by one rank in one order. The norm is rounded to f32, so that its bits do not
// depend on the order in which the f64 squares are added, except for rare ties. On GPUs all work of
// a step runs on the compute stream: the CPU copies no gradients and waits for nothing.
//
// Parameters other than hidden matrices (embedding, head, norms, biases) are updated by AdamW.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "arithmetic.hpp"
#include "atoll/fsdp.hpp"
#include "atoll/mesh.hpp"
#include "atoll/optimizer.hpp"

namespace muon {

struct Options {
  float momentum = 0.95f;
  float weight_decay = 0;  // decoupled weight decay
  atoll::fsdp::Decay decay = atoll::fsdp::Decay::all;
  // Learning rate scale and weight decay of a group apply to all its parameters, beta1 and beta2
  // only to parameters that AdamW updates.
  std::vector<atoll::fsdp::ParamGroup> groups{};
  float max_norm = 0;  // gradients are scaled down to this global norm; 0 means no clipping
  // Settings of AdamW.
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  // Returns whether Muon updates this parameter, which must then have two dimensions. Without a
  // function, Muon updates every parameter with two dimensions.
  std::function<bool(const atoll::fsdp::Unit&, const atoll::fsdp::ParamSpec&)> is_hidden{};
  // Type of the matrices while they become orthogonal: f32, or bf16 as in the reference
  // implementation, which GPUs multiply more than ten times as fast. Momentum and weights are f32.
  atoll::DType products = atoll::DType::f32;
  // Arithmetic and products for the device of the engine. Without them, a CPU uses cpu_arithmetic()
  // and multiply_with_loops().
  std::shared_ptr<Arithmetic> arithmetic{};
  Multiply multiply{};
};

// The matrices that Muon updates get steps of the size of AdamW's steps: their orthogonal updates
// are multiplied by 0.2 sqrt(max(rows, columns)) (Liu and others, arXiv 2502.16982). One learning
// rate and one weight decay therefore serve all parameters. Every call of a Muon that was moved
// from throws Error(invalid_argument).
class Muon {
 public:
  // `mesh` is the mesh of the engine. Collective; call it after Engine::seal(). Adds the states
  // "momentum" and "second_moment", which checkpoints include: a checkpoint of a CPU loads on GPUs,
  // and the reverse. The engine must outlive the optimizer. Throws atoll::Error(unsupported) on a
  // GPU without Options::arithmetic or Options::multiply, and Error(invalid_argument) for a hidden
  // parameter that does not have two dimensions and for groups that use_groups() refuses.
  Muon(atoll::fsdp::Engine& engine, const atoll::Mesh& mesh, Options options = {});
  Muon(Muon&&) noexcept;
  ~Muon();  // blocks until the last step is complete

  // Enqueues the step on `compute`. Call it after the last micro batch. A step whose gradient norm
  // is infinite or NaN changes nothing. Collective over the ranks of the engine.
  void step(float learning_rate, atoll::Stream& compute);
  // Returns the global norm of the gradients of the last step, before clipping. Blocks until the
  // step is complete.
  float grad_norm() const;
  // The number of steps that changed parameters, for AdamW's bias corrections. A program that
  // resumes from a checkpoint must restore it. Both functions block until the last step is
  // complete.
  std::int64_t steps() const;
  void set_steps(std::int64_t steps);

 private:
  struct Impl;
  Impl& impl() const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muon
