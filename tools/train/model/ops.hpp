// The model's arithmetic, with one implementation per kind of device.
//
// Contract of every function: it enqueues work on the stream and returns at once. Views are memory
// of the stream's device and must stay valid until the work has run; structs and scalars are
// copied. Nothing synchronizes, and nothing allocates once each shape has been seen. Matrices are
// row-major without gaps. Activations and weights of a call share one dtype, f32 or bf16
// ("compute"); arithmetic is f32. Weight gradients are f32, so they can be written into a bucket.
// Views must not overlap unless stated. Shapes and dtypes are checked at enqueue and raise
// Error(invalid_argument). Sums have a fixed order, so results are bitwise reproducible for any
// number of threads, with two exceptions: cpu/matmul.hpp (processors without AVX-512) and
// cuda/cuda_ops.hpp. An object serves one stream at a time.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "atoll/device.hpp"

namespace train {

// How a gradient combines with the previous contents of its view.
enum class WriteMode {
  overwrite,
  accumulate,
  none  // the gradient is not computed, and its view may be empty
};

// A linear layer: y [tokens, out] = x [tokens, in] W^T, with W [out, in] as Hugging Face stores it.
struct LinearShape {
  std::int64_t tokens, in, out;
};

enum class Operand {
  plain,
  transposed
};

// c [m, n] = a [m, k] b [k, n], or c += a b; row-major. A transposed operand is stored as [k, m] or
// [n, k]. a and b have dtype `in` (f32 or bf16), c has dtype `out`; sums are f32.
struct Product {
  std::int64_t m, n, k;
  Operand a, b;
  atoll::DType in, out;
  WriteMode mode;
  friend auto operator<=>(const Product&, const Product&) = default;
};

// Whether a product's dtype is bf16 rather than f32. Throws Error(unsupported) for any other type.
bool is_bf16(atoll::DType dtype);

// Linear layers with the same input x [tokens, in]. An implementation may compute the products of
// one group from copies of their operands in a smaller type, which the group shares.
struct LinearsForward {
  struct Layer {
    std::int64_t out;
    atoll::ConstView weight;         // [out, in]
    atoll::View y;                   // x W^T + residual, [tokens, out]
    atoll::ConstView residual = {};  // addend in the shape of y; must not alias y; empty: none
  };
  std::int64_t tokens, in;
  atoll::ConstView x;
  std::span<const Layer> layers;
};

struct LinearsBackward {
  struct Layer {
    std::int64_t out;
    atoll::ConstView dy, weight;
    atoll::View dweight;  // gradient of the weight, dy^T x: f32 [out, in]
    WriteMode dweight_mode;
  };
  std::int64_t tokens, in;
  atoll::ConstView x;
  atoll::View dx;  // sum of dy W over the layers, overwritten; may be the memory of x
  std::span<const Layer> layers;
};

struct RmsNormForward {
  std::int64_t width;
  float eps;
  atoll::ConstView x, weight;  // x has the shape [tokens, width], and weight has [width]
  atoll::View y;
  atoll::View inverse;  // f32 [tokens]: 1 / sqrt(mean(x^2) + eps), which backward needs
};

struct RmsNormBackward {
  std::int64_t width;
  atoll::ConstView x, weight, inverse, dy;
  atoll::View dx;
  WriteMode dx_mode;    // accumulate adds dx to the gradient of the residual path
  atoll::View dweight;  // gradient of the weight, f32 [width]
  WriteMode dweight_mode;
};

enum class RopeDirection {
  forward,
  inverse  // the rotation of the backward pass
};

// `positions` (i32 [rows * seq]) separates documents that share a row: each token's position in its
// document, which starts at 0 in each row and then increases by 1 or restarts at 0. Empty positions
// mean that each row is one document. Other values raise Error(invalid_argument) on the CPU stream;
// on GPUs they give wrong results but never access memory outside the views.

// Rotates pairs (k, k + head_dim / 2) of each head in place. Without positions, token t of x has
// position t % seq.
struct Rope {
  std::int64_t seq, heads, head_dim;
  atoll::View x;           // tensor to rotate in place, [rows * seq, heads * head_dim]
  atoll::ConstView table;  // cosines and sines (rope.hpp) of at least seq positions
  RopeDirection direction;
  atoll::ConstView positions = {};
};

// `rows` sequences of `seq` tokens. Query i sees keys j of its document with i - window < j <= i,
// or all j <= i if window is 0. It always sees itself, so right padding needs no mask.
struct AttentionShape {
  std::int64_t rows, seq, heads, kv_heads, head_dim, window;
  std::int64_t documents = 0;  // documents in all rows if positions are given; 0: unknown
  friend auto operator<=>(const AttentionShape&, const AttentionShape&) = default;
};

struct AttentionForward {
  AttentionShape shape;
  atoll::ConstView q;     // rotated queries, [rows * seq, heads * head_dim]
  atoll::ConstView k, v;  // rotated keys, and values: [rows * seq, kv_heads * head_dim]
  atoll::View out;        // result, in the shape of q
  // log(sum(exp(scores))) for backward: f32 [rows, heads, seq], or [rows, seq, heads] with
  // positions.
  atoll::View lse;
  atoll::ConstView positions = {};
};

struct AttentionBackward {
  AttentionShape shape;
  atoll::ConstView q, k, v, out, lse, dout;
  atoll::View dq, dk, dv;  // gradients, always overwritten
  atoll::ConstView positions = {};
};

// x *= factor, in place.
struct Scale {
  atoll::View x;
  float factor;
};

// y [tokens, width] += bias [width], in place.
struct AddBias {
  atoll::ConstView bias;
  atoll::View y;
};

struct BiasBackward {
  std::int64_t width;
  atoll::ConstView dy;  // [tokens, width]
  atoll::View dbias;    // sum of the rows of dy, f32 [width]
  WriteMode mode;
};

struct SwigluForward {
  atoll::ConstView gate, up;
  atoll::View out;
};

struct SwigluBackward {
  atoll::ConstView gate, up, dout;
  atoll::View dgate, dup;  // gradients of gate and up; they may alias gate and up
};

// out [n, width] = rows of table [vocab, width]. A token or label outside the vocabulary raises
// Error(invalid_argument) on the stream, at check_ids() at the latest.
struct EmbeddingForward {
  atoll::ConstView tokens, table;
  atoll::View out;
  std::int64_t width;
};

struct EmbeddingBackward {
  std::int64_t vocab, width;
  atoll::ConstView tokens, dy;  // token ids, i32 [n], and gradient of their rows, [n, width]
  atoll::View dtable;           // gradient of the embedding table, f32 [vocab, width]
  WriteMode mode;
};

// Negative log likelihood of `labels` under softmax(logits), summed over rows with a label >= 0.
// Negative labels are ignored; a batch may consist of them.
struct CrossEntropy {
  std::int64_t vocab;
  atoll::ConstView labels;  // target of each row, i32 [n]
  atoll::View logits;       // f32 or bf16 [n, vocab]; the operation overwrites them
  atoll::View dlogits;      // scale * gradient of the sum; may alias logits; empty: not computed
  float scale;              // 1 / the global number of valid tokens
  atoll::View total;        // f64 [2]: adds the sum of losses and the number of valid rows
};

// Any operation but a matrix product.
using Operation = std::variant<RmsNormForward, RmsNormBackward, Rope, AttentionForward,
                               AttentionBackward, Scale, AddBias, BiasBackward, SwigluForward,
                               SwigluBackward, EmbeddingForward, EmbeddingBackward, CrossEntropy>;
// The name in error messages, such as "rms_norm_forward".
std::string_view name(const Operation& operation);

// Upper bounds of the shapes that a model uses.
struct LargestShapes {
  AttentionShape attention;  // attention over all tokens of a micro batch
  std::int64_t width;        // number of elements in a row of the norms
  atoll::DType compute;
  std::int64_t bias_width = 0;  // number of elements of the longest bias; 0: no bias
  bool head_norms = false;      // queries and keys have norms of head_dim elements
  std::int64_t ffn = 0;         // number of elements in a row of gate and up
};

class Ops {
 public:
  virtual ~Ops() = default;

  // Bytes of device memory that this object holds; CPU memory is not counted.
  virtual std::uint64_t device_bytes() const { return 0; }
  // Allocates scratch for these shapes ahead of their first use. Throws Error(unsupported) for a
  // width that the kernels do not support. By default, scratch grows on demand.
  virtual void reserve([[maybe_unused]] atoll::Stream& stream,
                       [[maybe_unused]] const LargestShapes& shapes) {}

  // y = x W^T, or y += x W^T. An overwritten y may be f32 if no gradient flows back through it.
  void linear_forward(atoll::Stream& stream, LinearShape shape, atoll::ConstView x,
                      atoll::ConstView weight, atoll::View y,
                      WriteMode mode = WriteMode::overwrite);
  // dx = dy W, or dx += dy W.
  void linear_dgrad(atoll::Stream& stream, LinearShape shape, atoll::ConstView dy,
                    atoll::ConstView weight, atoll::View dx, WriteMode mode);
  // dweight (f32) = dy^T x, or dweight += dy^T x.
  void linear_wgrad(atoll::Stream& stream, LinearShape shape, atoll::ConstView dy,
                    atoll::ConstView x, atoll::View dweight, WriteMode mode);
  // All views have one dtype. The CPU rounds a product to that dtype before it adds a residual;
  // GPUs round only the sum.
  void linears_forward(atoll::Stream& stream, const LinearsForward& args);
  // Reads all of x before it writes dx, which may overwrite x but no dy.
  void linears_backward(atoll::Stream& stream, const LinearsBackward& args);
  // Operations whose `mode` is none are left out.
  void run(atoll::Stream& stream, const Operation& operation);

  // The functions above check the arguments and call these two. A residual may be empty.
  virtual void multiply(atoll::Stream& stream, const Product& product, atoll::ConstView a,
                        atoll::ConstView b, atoll::View c, atoll::ConstView residual) = 0;
  virtual void compute(atoll::Stream& stream, const Operation& operation) = 0;

  // Reports invalid ids of all previous calls. Separate, so that a GPU does not wait for the CPU
  // after each call.
  virtual void check_ids([[maybe_unused]] atoll::Stream& stream) {}

 protected:
  // These functions get checked arguments too. By default, groups of linear layers are products
  // that multiply() computes one after another.
  virtual void run_linears_forward(atoll::Stream& stream, const LinearsForward& args);
  virtual void run_linears_backward(atoll::Stream& stream, const LinearsBackward& args);
};

}  // namespace train
