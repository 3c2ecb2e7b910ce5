#include "model/ops.hpp"

#include <fmt/format.h>

#include <array>
#include <initializer_list>
#include <utility>

#include "fail.hpp"

namespace train {
namespace {

using atoll::ConstView;
using atoll::DType;
using atoll::Stream;
using atoll::View;

class Checker {
 public:
  explicit Checker(std::string_view operation) : operation_(operation) {}

  void positive(std::initializer_list<std::pair<std::string_view, std::int64_t>> values) const {
    for (const auto& [what, value] : values) {
      require(value > 0, "{} = {} is not positive", what, value);
    }
  }
  void count(std::string_view what, ConstView view, std::int64_t expected) const {
    require(expected >= 0 && view.count == static_cast<std::uint64_t>(expected),
            "{} has {} elements, expected {}", what, view.count, expected);
  }
  void dtype(std::string_view what, ConstView view, DType expected) const {
    require(view.dtype == expected, "{} is {}, expected {}", what, atoll::name(view.dtype),
            atoll::name(expected));
  }
  void view(std::string_view what, ConstView view, std::int64_t expected, DType type) const {
    count(what, view, expected);
    dtype(what, view, type);
  }
  void views(std::initializer_list<std::pair<std::string_view, ConstView>> all,
             std::int64_t expected, DType type) const {
    for (const auto& [what, one] : all) view(what, one, expected, type);
  }
  void compute(std::string_view what, ConstView view) const {
    require(view.dtype == DType::f32 || view.dtype == DType::bf16, "{} is {}, expected f32 or bf16",
            what, atoll::name(view.dtype));
  }
  void multiple(std::string_view what, ConstView view, std::int64_t of) const {
    require(view.count % static_cast<std::uint64_t>(of) == 0,
            "{} has {} elements, not a multiple of {}", what, view.count, of);
  }
  template <class... Args>
  void require(bool holds, fmt::format_string<Args...> why, Args&&... args) const {
    if (holds) return;
    fail(ErrorCode::invalid_argument, "{}: {}", operation_,
         fmt::format(why, std::forward<Args>(args)...));
  }

 private:
  std::string_view operation_;
};

std::int64_t elements(ConstView view) { return static_cast<std::int64_t>(view.count); }

// Checks the shape and the argument that determines the compute dtype.
void check_linear(const Checker& checker, LinearShape shape, std::string_view what, ConstView view,
                  std::int64_t count) {
  checker.positive({{"tokens", shape.tokens}, {"in", shape.in}, {"out", shape.out}});
  checker.compute(what, view);
  checker.count(what, view, count);
}

Product forward_product(LinearShape shape, ConstView x, ConstView weight, ConstView y,
                        WriteMode mode = WriteMode::overwrite) {
  const Checker checker("linear_forward");
  check_linear(checker, shape, "x", x, shape.tokens * shape.in);
  checker.view("weight", weight, shape.out * shape.in, x.dtype);
  checker.count("y", y, shape.tokens * shape.out);
  const bool may_be_wide = mode == WriteMode::overwrite && y.dtype == DType::f32;
  if (!may_be_wide) checker.dtype("y", y, x.dtype);
  return {shape.tokens,        shape.out, shape.in, Operand::plain,
          Operand::transposed, x.dtype,   y.dtype,  mode};
}

void check_residual(const Checker& checker, ConstView residual, View y) {
  if (residual.count == 0) return;
  checker.view("residual", residual, elements(y), y.dtype);
  checker.require(residual.data != y.data, "y must not alias residual");
}

struct AttentionCounts {
  std::int64_t queries, keys, lse;
};

void check_positions(const Checker& checker, ConstView positions, std::int64_t tokens) {
  if (positions.count != 0) checker.view("positions", positions, tokens, DType::i32);
}

AttentionCounts check_shape(const Checker& checker, const AttentionShape& shape) {
  checker.positive({{"rows", shape.rows},
                    {"seq", shape.seq},
                    {"heads", shape.heads},
                    {"kv_heads", shape.kv_heads},
                    {"head_dim", shape.head_dim}});
  checker.require(shape.window >= 0, "window = {} is negative", shape.window);
  checker.require(shape.heads % shape.kv_heads == 0,
                  "heads = {} is not a multiple of kv_heads = {}", shape.heads, shape.kv_heads);
  checker.require(shape.seq < std::int64_t{1} << 24, "seq = {} is longer than 2^24 - 1", shape.seq);
  const std::int64_t tokens = shape.rows * shape.seq;
  checker.require(shape.documents >= 0 && shape.documents <= tokens, "documents = {} in {} tokens",
                  shape.documents, tokens);
  return {tokens * shape.heads * shape.head_dim, tokens * shape.kv_heads * shape.head_dim,
          tokens * shape.heads};
}

template <class Args>
AttentionCounts check_attention(const Checker& checker, const Args& args) {
  const AttentionCounts counts = check_shape(checker, args.shape);
  checker.compute("q", args.q);
  checker.views({{"q", args.q}, {"out", args.out}}, counts.queries, args.q.dtype);
  checker.views({{"k", args.k}, {"v", args.v}}, counts.keys, args.q.dtype);
  checker.view("lse", args.lse, counts.lse, DType::f32);
  check_positions(checker, args.positions, args.shape.rows * args.shape.seq);
  return counts;
}

template <class Args>
void check_norm(const Checker& checker, const Args& args) {
  checker.positive({{"width", args.width}});
  checker.compute("x", args.x);
  checker.multiple("x", args.x, args.width);
  checker.view("weight", args.weight, args.width, args.x.dtype);
  checker.view("inverse", args.inverse, elements(args.x) / args.width, DType::f32);
}

void check(const Checker& checker, const Scale& args) { checker.compute("x", args.x); }

void check(const Checker& checker, const AddBias& args) {
  checker.compute("y", args.y);
  checker.dtype("bias", args.bias, args.y.dtype);
  checker.positive({{"the width", elements(args.bias)}});
  checker.multiple("y", args.y, elements(args.bias));
}

void check(const Checker& checker, const BiasBackward& args) {
  checker.positive({{"width", args.width}});
  checker.compute("dy", args.dy);
  checker.multiple("dy", args.dy, args.width);
  checker.view("dbias", args.dbias, args.width, DType::f32);
}

void check(const Checker& checker, const RmsNormForward& args) {
  check_norm(checker, args);
  checker.view("y", args.y, elements(args.x), args.x.dtype);
}

void check(const Checker& checker, const RmsNormBackward& args) {
  check_norm(checker, args);
  checker.views({{"dy", args.dy}, {"dx", args.dx}}, elements(args.x), args.x.dtype);
  checker.require(args.dx_mode != WriteMode::none, "dx_mode none is not supported");
  if (args.dweight_mode != WriteMode::none) {
    checker.view("dweight", args.dweight, args.width, DType::f32);
  }
}

void check(const Checker& checker, const Rope& args) {
  checker.positive({{"seq", args.seq}, {"heads", args.heads}, {"head_dim", args.head_dim}});
  checker.require(args.head_dim % 2 == 0, "head_dim = {} is odd", args.head_dim);
  checker.compute("x", args.x);
  checker.multiple("x", args.x, args.seq * args.heads * args.head_dim);
  checker.dtype("table", args.table, DType::f32);
  checker.require(elements(args.table) >= args.seq * args.head_dim,
                  "table has {} elements, expected at least {}", args.table.count,
                  args.seq * args.head_dim);
  check_positions(checker, args.positions, elements(args.x) / (args.heads * args.head_dim));
}

void check(const Checker& checker, const AttentionForward& args) { check_attention(checker, args); }

void check(const Checker& checker, const AttentionBackward& args) {
  const AttentionCounts counts = check_attention(checker, args);
  checker.views({{"dout", args.dout}, {"dq", args.dq}}, counts.queries, args.q.dtype);
  checker.views({{"dk", args.dk}, {"dv", args.dv}}, counts.keys, args.q.dtype);
}

void check(const Checker& checker, const SwigluForward& args) {
  checker.compute("gate", args.gate);
  checker.views({{"up", args.up}, {"out", args.out}}, elements(args.gate), args.gate.dtype);
}

void check(const Checker& checker, const SwigluBackward& args) {
  checker.compute("gate", args.gate);
  checker.views({{"up", args.up}, {"dout", args.dout}, {"dgate", args.dgate}, {"dup", args.dup}},
                elements(args.gate), args.gate.dtype);
}

void check(const Checker& checker, const EmbeddingForward& args) {
  checker.positive({{"width", args.width}});
  checker.dtype("tokens", args.tokens, DType::i32);
  checker.compute("table", args.table);
  checker.multiple("table", args.table, args.width);
  checker.view("out", args.out, elements(args.tokens) * args.width, args.table.dtype);
}

void check(const Checker& checker, const EmbeddingBackward& args) {
  checker.positive({{"width", args.width}, {"vocab", args.vocab}});
  checker.dtype("tokens", args.tokens, DType::i32);
  checker.compute("dy", args.dy);
  checker.count("dy", args.dy, elements(args.tokens) * args.width);
  checker.view("dtable", args.dtable, args.vocab * args.width, DType::f32);
}

void check(const Checker& checker, const CrossEntropy& args) {
  checker.positive({{"vocab", args.vocab}});
  checker.dtype("labels", args.labels, DType::i32);
  checker.compute("logits", args.logits);
  checker.count("logits", args.logits, elements(args.labels) * args.vocab);
  if (args.dlogits.count != 0) {
    checker.compute("dlogits", args.dlogits);
    checker.count("dlogits", args.dlogits, elements(args.labels) * args.vocab);
  }
  if (args.dlogits.data == args.logits.data) {
    checker.dtype("dlogits in place", args.dlogits, args.logits.dtype);
  }
  checker.view("total", args.total, 2, DType::f64);
}

}  // namespace

bool is_bf16(DType dtype) {
  if (dtype == DType::bf16) return true;
  if (dtype == DType::f32) return false;
  fail(ErrorCode::unsupported, "matrix product in {}: only f32 and bf16 are supported",
       atoll::name(dtype));
}

void Ops::linears_forward(Stream& stream, const LinearsForward& args) {
  const Checker checker("linears_forward");
  for (const LinearsForward::Layer& layer : args.layers) {
    forward_product({args.tokens, args.in, layer.out}, args.x, layer.weight, layer.y);
    checker.dtype("y", layer.y, args.x.dtype);
    check_residual(checker, layer.residual, layer.y);
  }
  run_linears_forward(stream, args);
}

void Ops::linears_backward(Stream& stream, const LinearsBackward& args) {
  const Checker checker("linears_backward");
  checker.compute("x", args.x);
  checker.count("x", args.x, args.tokens * args.in);
  checker.view("dx", args.dx, args.tokens * args.in, args.x.dtype);
  for (const LinearsBackward::Layer& layer : args.layers) {
    checker.positive({{"tokens", args.tokens}, {"in", args.in}, {"out", layer.out}});
    checker.view("dy", layer.dy, args.tokens * layer.out, args.x.dtype);
    checker.view("weight", layer.weight, layer.out * args.in, args.x.dtype);
    if (layer.dweight_mode == WriteMode::none) continue;
    checker.view("dweight", layer.dweight, layer.out * args.in, DType::f32);
  }
  run_linears_backward(stream, args);
}

void Ops::run_linears_forward(Stream& stream, const LinearsForward& args) {
  for (const LinearsForward::Layer& layer : args.layers) {
    const LinearShape shape{args.tokens, args.in, layer.out};
    multiply(stream, forward_product(shape, args.x, layer.weight, layer.y), args.x, layer.weight,
             layer.y, layer.residual);
  }
}

void Ops::run_linears_backward(Stream& stream, const LinearsBackward& args) {
  for (const LinearsBackward::Layer& layer : args.layers) {
    linear_wgrad(stream, {args.tokens, args.in, layer.out}, layer.dy, args.x, layer.dweight,
                 layer.dweight_mode);
  }
  WriteMode mode = WriteMode::overwrite;
  for (const LinearsBackward::Layer& layer : args.layers) {
    linear_dgrad(stream, {args.tokens, args.in, layer.out}, layer.dy, layer.weight, args.dx, mode);
    mode = WriteMode::accumulate;
  }
}

void Ops::linear_forward(Stream& stream, LinearShape shape, ConstView x, ConstView weight, View y,
                         WriteMode mode) {
  multiply(stream, forward_product(shape, x, weight, y, mode), x, weight, y, {});
}

void Ops::linear_dgrad(Stream& stream, LinearShape shape, ConstView dy, ConstView weight, View dx,
                       WriteMode mode) {
  if (mode == WriteMode::none) return;
  const Checker checker("linear_dgrad");
  check_linear(checker, shape, "dy", dy, shape.tokens * shape.out);
  checker.view("weight", weight, shape.out * shape.in, dy.dtype);
  checker.view("dx", dx, shape.tokens * shape.in, dy.dtype);
  multiply(
      stream,
      {shape.tokens, shape.in, shape.out, Operand::plain, Operand::plain, dy.dtype, dx.dtype, mode},
      dy, weight, dx, {});
}

void Ops::linear_wgrad(Stream& stream, LinearShape shape, ConstView dy, ConstView x, View dweight,
                       WriteMode mode) {
  if (mode == WriteMode::none) return;
  const Checker checker("linear_wgrad");
  check_linear(checker, shape, "dy", dy, shape.tokens * shape.out);
  checker.view("x", x, shape.tokens * shape.in, dy.dtype);
  checker.view("dweight", dweight, shape.out * shape.in, DType::f32);
  multiply(stream,
           {shape.out, shape.in, shape.tokens, Operand::transposed, Operand::plain, dy.dtype,
            dweight.dtype, mode},
           dy, x, dweight, {});
}

std::string_view name(const Operation& operation) {
  constexpr std::array<std::string_view, std::variant_size_v<Operation>> names{
      "rms_norm_forward",  "rms_norm_backward",  "rope",
      "attention_forward", "attention_backward", "scale",
      "add_bias",          "bias_backward",      "swiglu_forward",
      "swiglu_backward",   "embedding_forward",  "embedding_backward",
      "cross_entropy"};
  return names.at(operation.index());
}

void Ops::run(Stream& stream, const Operation& operation) {
  const Checker checker(name(operation));
  const auto is_wanted = [&](const auto& args) {
    if constexpr (requires { args.mode; }) {
      if (args.mode == WriteMode::none) return false;
    }
    check(checker, args);
    return true;
  };
  if (std::visit(is_wanted, operation)) compute(stream, operation);
}

}  // namespace train
