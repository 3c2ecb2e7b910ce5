// The arithmetic of Muon, with one implementation per kind of device.
//
// Contract of every function: it enqueues work on the stream and returns at once. Views are memory
// of the stream's device and must stay valid until the work has run. Sums have a fixed order, so
// that the same values give the same bits. An object serves one stream at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "atoll/device.hpp"

namespace muon {

enum class Layout {
  plain,
  transposed
};

// c [m, n] = a [m, k] b [k, n], row-major. A transposed operand is stored as [k, m] or [n, k]. The
// three matrices have the same type, f32 or bf16; sums are f32.
struct Product {
  std::int64_t m, n, k;
  Layout a_layout, b_layout;
  atoll::ConstView a, b;
  atoll::View c;
};

// Enqueues a product. Equal inputs must give the same bits on every rank.
using Multiply = std::function<void(atoll::Stream&, const Product&)>;
// Multiplies on the CPU with three loops, for programs without a library for matrices.
void multiply_with_loops(atoll::Stream& stream, const Product& product);

// The scalars of a step, in memory of the device.
struct Figures {
  double squares;  // sum of the squares of this rank's gradients, then of all gradients
  double norm;     // the norm of all gradients, rounded to f32
  double factor;   // factor of gradients for clipping; NaN when the step changes nothing
  double steps;    // number of steps that changed parameters
};

// momentum = beta momentum + g and out = g + beta momentum, with g = factor gradient; f32. This is
// Nesterov's look-ahead.
struct MomentumStep {
  atoll::ConstView gradient;
  atoll::View momentum, out;
  float beta;
  const Figures* figures;
};

// One step of weights: weights = keep * weights - rate * update; f32.
struct MatrixStep {
  atoll::View weights;
  atoll::ConstView update;
  float rate, keep;
  const Figures* figures;
};

// AdamW with g = factor gradient; f32. The weights are multiplied by `keep` first.
struct AdamWStep {
  atoll::View weights;
  atoll::ConstView gradient;
  atoll::View moment1, moment2;
  float rate, keep, beta1, beta2, epsilon;
  const Figures* figures;
};

// momentum(), update() and adamw() change nothing if the factor is NaN.
class Arithmetic {
 public:
  virtual ~Arithmetic() = default;

  // figures->squares = the sum of the squares of all values, which are f32.
  virtual void sum_squares(atoll::Stream& stream, std::span<const atoll::ConstView> values,
                           Figures* figures) = 0;
  // Computes the norm from the squares, the clip factor (`max_norm` 0 means no clipping) and the
  // number of steps. The factor is NaN if the norm is infinite or NaN, or if the stream has failed.
  virtual void measure(atoll::Stream& stream, Figures* figures, float max_norm) = 0;
  // dst = src, converted between f32 and bf16; rounds to nearest even.
  virtual void convert(atoll::Stream& stream, atoll::View dst, atoll::ConstView src) = 0;
  // Divides x, f32 or bf16, by its Euclidean norm. A matrix of zeros stays zero.
  virtual void normalize(atoll::Stream& stream, atoll::View x) = 0;
  // into = keep into + factor other, computed in f32; both are f32 or both bf16.
  virtual void combine(atoll::Stream& stream, atoll::View into, float keep, atoll::ConstView other,
                       float factor) = 0;
  virtual void momentum(atoll::Stream& stream, const MomentumStep& step) = 0;
  virtual void update(atoll::Stream& stream, const MatrixStep& step) = 0;
  virtual void adamw(atoll::Stream& stream, const AdamWStep& step) = 0;
};

// For streams of the CPU.
std::shared_ptr<Arithmetic> cpu_arithmetic();
// For streams of a GPU. Throws atoll::Error(unsupported) in a build without CUDA (cuda_absent.cpp
// replaces cuda_arithmetic.cu there).
std::shared_ptr<Arithmetic> cuda_arithmetic(const atoll::Device& device);

}  // namespace muon
