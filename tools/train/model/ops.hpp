// The arithmetic of the model, one implementation per kind of device.
//
// Contract of every function: it is enqueued on the stream and returns at once; views are memory of
// the stream's device, valid until the work has run; structs and scalars are captured by value.
// Nothing synchronises and nothing is allocated once each shape has been seen. Matrices are row
// major, without gaps. Activations and weights have one dtype, f32 or bf16 ("compute"), the same in
// all views of a call; arithmetic inside is f32. Gradients of weights are f32, so that they go
// straight into a bucket. Views may not overlap unless said. Shapes and dtypes are checked at
// enqueue: Error(invalid_argument). The order of every sum is fixed, so results have the same bits
// in every run and for any number of threads; the one exception is in cuda/cuda_ops.hpp. An object
// serves one stream at a time.
#pragma once

#include <cstdint>

#include "atoll/device.hpp"

namespace train {

// What becomes of the values that a gradient's view holds before.
enum class WriteMode {
  overwrite,
  accumulate,
  none  // the gradient is not wanted; its view may be empty
};

// A linear layer: y [tokens, out] = x [tokens, in] W^T, with W [out, in] as Hugging Face stores it.
struct LinearShape {
  std::int64_t tokens, in, out;
};

struct RmsNormForward {
  std::int64_t width;
  float eps;
  atoll::ConstView x, weight;  // [tokens, width], [width]
  atoll::View y;
  atoll::View inverse;  // f32 [tokens]: 1 / sqrt(mean(x^2) + eps), for the backward pass
};

struct RmsNormBackward {
  std::int64_t width;
  atoll::ConstView x, weight, inverse, dy;
  atoll::View dx;
  WriteMode dx_mode;    // accumulate: onto the gradient of the residual path
  atoll::View dweight;  // f32 [width]
  WriteMode dweight_mode;
};

enum class RopeDirection {
  forward,
  inverse
};  // inverse is the backward pass

// Where rows of `seq` tokens hold several documents, `positions` (i32 [rows * seq]) has each
// token's place in its document: it begins with 0 in a row, and goes on by 1 or begins again. Empty
// where each row is one document. On the CPU anything else is an Error(invalid_argument) of the
// stream; on GPUs it gives wrong results, and reads nothing from outside the views.

// Rotates pairs (k, k + head_dim / 2) of each head in place; token t of x is at position t % seq.
struct Rope {
  std::int64_t seq, heads, head_dim;
  atoll::View x;           // [rows * seq, heads * head_dim]
  atoll::ConstView table;  // from rope_table, for at least seq positions
  RopeDirection direction;
  atoll::ConstView positions = {};
};

// `rows` sequences of `seq` tokens. Query i of a sequence sees keys j with i - window < j <= i
// (window 0: all j <= i) of its document: always itself. Right padding needs no mask.
struct AttentionShape {
  std::int64_t rows, seq, heads, kv_heads, head_dim, window;
  std::int64_t documents = 0;  // in all rows, where `positions` tell them apart; 0: not known
};

struct AttentionForward {
  AttentionShape shape;
  atoll::ConstView q;     // [rows * seq, heads * head_dim], rotated
  atoll::ConstView k, v;  // [rows * seq, kv_heads * head_dim]
  atoll::View out;        // as q
  // f32 [rows, heads, seq], with positions [rows, seq, heads]: log of the sum of exp(scores), for
  // backward.
  atoll::View lse;
  atoll::ConstView positions = {};
};

struct AttentionBackward {
  AttentionShape shape;
  atoll::ConstView q, k, v, out, lse, dout;
  atoll::View dq, dk, dv;  // overwritten
  atoll::ConstView positions = {};
};

struct SwigluBackward {
  atoll::ConstView gate, up, dout;
  atoll::View dgate, dup;  // may be gate and up
};

struct EmbeddingBackward {
  std::int64_t vocab, width;
  atoll::ConstView tokens, dy;  // i32 [n], compute [n, width]
  atoll::View dtable;           // f32 [vocab, width]
  WriteMode mode;
};

// Negative log likelihood of `labels` under softmax(logits), summed over rows with a label >= 0
// (-100 and other negative labels are ignored; so are all rows of a batch without one).
struct CrossEntropy {
  std::int64_t vocab;
  atoll::ConstView labels;  // i32 [n]
  atoll::View logits;       // f32 or bf16 [n, vocab]; holds nothing of use afterwards
  atoll::View dlogits;      // scale * d(sum) / d(logits); may be `logits`; count 0: loss only
  float scale;              // 1 / the global number of valid tokens
  atoll::View total;        // f64 [2]: += sum of losses, += number of valid rows
};

// What a model asks for at most.
struct LargestShapes {
  AttentionShape attention;  // of all tokens of a micro batch
  std::int64_t width;        // of what is normalized
  atoll::DType compute;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // Memory of the device that this holds for itself; the host's is not counted.
  virtual std::uint64_t device_bytes() const { return 0; }
  // Allocates what such shapes take, which would otherwise be done as they are met.
  // Error(unsupported) for a width that this does not take.
  virtual void reserve([[maybe_unused]] atoll::Stream& stream,
                       [[maybe_unused]] const LargestShapes& shapes) {}

  virtual void linear_forward(atoll::Stream& stream, LinearShape shape, atoll::ConstView x,
                              atoll::ConstView weight, atoll::View y) = 0;
  // y = x W^T + residual, all of one dtype, y apart from both: the end of half a layer. On the CPU
  // the product is rounded to it before the sum; on GPUs the sum alone is, where the product is
  // written.
  virtual void linear_residual_forward(atoll::Stream& stream, LinearShape shape, atoll::ConstView x,
                                       atoll::ConstView weight, atoll::ConstView residual,
                                       atoll::View y) = 0;
  // dx = dy W, or dx += dy W. y may also be f32 above, where nothing goes back through it.
  virtual void linear_dgrad(atoll::Stream& stream, LinearShape shape, atoll::ConstView dy,
                            atoll::ConstView weight, atoll::View dx, WriteMode mode) = 0;
  // dweight (f32) = dy^T x, or += it.
  virtual void linear_wgrad(atoll::Stream& stream, LinearShape shape, atoll::ConstView dy,
                            atoll::ConstView x, atoll::View dweight, WriteMode mode) = 0;

  virtual void rms_norm_forward(atoll::Stream& stream, const RmsNormForward& args) = 0;
  virtual void rms_norm_backward(atoll::Stream& stream, const RmsNormBackward& args) = 0;

  // table (f32 [positions, head_dim]): head_dim / 2 cosines, then sines, of position * theta^(-2k /
  // head_dim).
  virtual void rope_table(atoll::Stream& stream, atoll::View table, std::int64_t head_dim,
                          double theta) = 0;
  virtual void rope(atoll::Stream& stream, const Rope& args) = 0;

  virtual void attention_forward(atoll::Stream& stream, const AttentionForward& args) = 0;
  virtual void attention_backward(atoll::Stream& stream, const AttentionBackward& args) = 0;

  // out = silu(gate) * up
  virtual void swiglu_forward(atoll::Stream& stream, atoll::ConstView gate, atoll::ConstView up,
                              atoll::View out) = 0;
  virtual void swiglu_backward(atoll::Stream& stream, const SwigluBackward& args) = 0;

  // out [n, width] = rows of table [vocab, width]. A token outside the vocabulary, like such a
  // label below, is an Error(invalid_argument) of the stream, at the latest behind check_ids.
  virtual void embedding_forward(atoll::Stream& stream, atoll::ConstView tokens,
                                 atoll::ConstView table, atoll::View out, std::int64_t width) = 0;
  virtual void embedding_backward(atoll::Stream& stream, const EmbeddingBackward& args) = 0;

  virtual void cross_entropy(atoll::Stream& stream, const CrossEntropy& args) = 0;
  // Once behind all that read ids: a GPU would wait for the host behind each of them.
  virtual void check_ids([[maybe_unused]] atoll::Stream& stream) {}
};

}  // namespace train
