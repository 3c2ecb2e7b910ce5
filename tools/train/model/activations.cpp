#include "model/activations.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "atoll/error.hpp"

namespace train {
namespace {

using atoll::DType;
using atoll::View;

constexpr std::size_t alignment = 256;

[[noreturn]] void fail(const std::string& what) {
  throw atoll::Error(atoll::ErrorCode::invalid_argument, what);
}

void validate(const ActivationPlan& plan) {
  if (plan.max_tokens <= 0 || plan.max_seq <= 0 || plan.head_rows <= 0) {
    fail(
        fmt::format("activations for {} tokens, sequences of {}, {} rows of the head: not positive",
                    plan.max_tokens, plan.max_seq, plan.head_rows));
  }
  if (plan.compute != DType::f32 && plan.compute != DType::bf16) {
    fail(fmt::format("activations in {}; f32 and bf16 are known", atoll::name(plan.compute)));
  }
}

View first(View view, std::int64_t count) {
  return view.part(0, static_cast<std::uint64_t>(count));
}

}  // namespace

std::size_t Activations::Piece::aligned_bytes() const {
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(dtype);
  return (bytes + alignment - 1) / alignment * alignment;
}

Activations::Activations(const ModelConfig& config, const ActivationPlan& plan)
    : config_(config), plan_(plan) {
  validate(plan);
  boundaries_.resize(static_cast<std::size_t>(config.layers) + 1);
  layers_.resize(plan.recompute == Recompute::full ? 1 : static_cast<std::size_t>(config.layers));
}

std::vector<Activations::Piece> Activations::pieces() {
  const ModelConfig& config = config_;
  const ActivationPlan& plan = plan_;
  const std::int64_t tokens = plan.max_tokens;
  const std::int64_t hidden = tokens * config.hidden;
  const std::int64_t queries = tokens * config.query_width();
  const std::int64_t keys = tokens * config.kv_width();
  const std::int64_t ffn = tokens * config.ffn;
  const std::int64_t head_rows = std::min(plan.head_rows, tokens);
  const DType low = plan.compute;
  std::vector<Piece> pieces;
  for (View& boundary : boundaries_) pieces.push_back({&boundary, hidden, low});
  for (LayerActivations& layer : layers_) {
    const bool own = plan.recompute != Recompute::selective;
    LayerActivations& cheap = own ? layer : shared_;
    if (own || &layer == layers_.data()) {
      pieces.insert(pieces.end(), {{&cheap.normed1, hidden, low},
                                   {&cheap.normed2, hidden, low},
                                   {&cheap.hidden, ffn, low}});
    }
    pieces.insert(pieces.end(), {{&layer.inverse1, tokens, DType::f32},
                                 {&layer.q, queries, low},
                                 {&layer.k, keys, low},
                                 {&layer.v, keys, low},
                                 {&layer.attended, queries, low},
                                 {&layer.lse, tokens * config.heads, DType::f32},
                                 {&layer.middle, hidden, low},
                                 {&layer.inverse2, tokens, DType::f32},
                                 {&layer.gate, ffn, low},
                                 {&layer.up, ffn, low}});
  }
  pieces.insert(pieces.end(), {{&backward_.dattended, queries, low},
                               {&backward_.dq, queries, low},
                               {&backward_.dk, keys, low},
                               {&backward_.dv, keys, low},
                               {&backward_.dnormed, hidden, low},
                               {&gradient_, hidden, low},
                               {&head_.normed, hidden, low},
                               {&head_.inverse, tokens, DType::f32},
                               {&head_.logits, head_rows * config.vocab, low},
                               {&rope_table_, plan.max_seq * config.head_dim, DType::f32},
                               {&total_, 2, DType::f64}});
  return pieces;
}

std::size_t Activations::bytes_for(const ModelConfig& config, const ActivationPlan& plan) {
  std::size_t bytes = 0;
  for (const Piece& piece : Activations(config, plan).pieces()) bytes += piece.aligned_bytes();
  return bytes;
}

Activations::Activations(const ModelConfig& config, const ActivationPlan& plan,
                         const atoll::Device& device)
    : Activations(config, plan) {
  memory_ = device.allocate(bytes_for(config, plan));
  auto* next = static_cast<std::byte*>(memory_.data());
  for (const Piece& piece : pieces()) {
    *piece.view = View(next, static_cast<std::uint64_t>(piece.count), piece.dtype);
    next += piece.aligned_bytes();
  }
  if (plan.recompute == Recompute::selective) {
    for (LayerActivations& layer : layers_) {
      layer.normed1 = shared_.normed1;
      layer.normed2 = shared_.normed2;
      layer.hidden = shared_.hidden;
    }
  }
  head_.dnormed = backward_.dnormed;  // the head is done before a layer's backward begins
}

void Activations::require_fits(const Batch& batch) const {
  if (batch.rows <= 0 || batch.seq <= 0) {
    fail(fmt::format("a batch of {} rows of {} tokens", batch.rows, batch.seq));
  }
  if (batch.seq > plan_.max_seq || batch.rows > plan_.max_tokens / batch.seq) {
    fail(
        fmt::format("a batch of {} rows of {} tokens; activations were planned for {} tokens in "
                    "sequences of at most {}",
                    batch.rows, batch.seq, plan_.max_tokens, plan_.max_seq));
  }
}

View Activations::boundary(std::int64_t n, const Batch& batch) const {
  return first(boundaries_.at(static_cast<std::size_t>(n)), batch.size() * config_.hidden);
}

LayerActivations Activations::layer(std::int64_t n, const Batch& batch) const {
  const LayerActivations& all =
      layers_.at(plan_.recompute == Recompute::full ? 0 : static_cast<std::size_t>(n));
  const std::int64_t tokens = batch.size();
  const std::int64_t hidden = tokens * config_.hidden;
  const std::int64_t queries = tokens * config_.query_width();
  const std::int64_t keys = tokens * config_.kv_width();
  const std::int64_t ffn = tokens * config_.ffn;
  LayerActivations cut;
  cut.inverse1 = first(all.inverse1, tokens);
  cut.normed1 = first(all.normed1, hidden);
  cut.q = first(all.q, queries);
  cut.k = first(all.k, keys);
  cut.v = first(all.v, keys);
  cut.attended = first(all.attended, queries);
  cut.lse = first(all.lse, tokens * config_.heads);
  cut.middle = first(all.middle, hidden);
  cut.inverse2 = first(all.inverse2, tokens);
  cut.normed2 = first(all.normed2, hidden);
  cut.gate = first(all.gate, ffn);
  cut.up = first(all.up, ffn);
  cut.hidden = first(all.hidden, ffn);
  return cut;
}

BackwardScratch Activations::backward(const Batch& batch) const {
  const std::int64_t tokens = batch.size();
  return {first(backward_.dattended, tokens * config_.query_width()),
          first(backward_.dq, tokens * config_.query_width()),
          first(backward_.dk, tokens * config_.kv_width()),
          first(backward_.dv, tokens * config_.kv_width()),
          first(backward_.dnormed, tokens * config_.hidden)};
}

HeadActivations Activations::head(const Batch& batch) const {
  const std::int64_t tokens = batch.size();
  return {first(head_.normed, tokens * config_.hidden), first(head_.inverse, tokens),
          first(head_.dnormed, tokens * config_.hidden), head_.logits};
}

View Activations::gradient(const Batch& batch) const {
  return first(gradient_, batch.size() * config_.hidden);
}

// Each piece's product for the gradient of the head reads and writes all of that gradient, 8 bytes
// for 2 operations per row: on an H100 (989 TFLOP/s, 3.35 TB/s) bandwidth is the limit up to 1,181
// rows. Hosts have fewer operations per byte, and logits of 512 rows are less memory.
std::int64_t usual_head_rows(atoll::DeviceKind device) {
  return device == atoll::DeviceKind::cuda ? 2048 : 512;
}

LargestShapes largest_shapes(const ModelConfig& config, const ActivationPlan& plan) {
  const std::int64_t rows = std::max<std::int64_t>(1, plan.max_tokens / plan.max_seq);
  return {
      {rows, plan.max_seq, config.heads, config.kv_heads, config.head_dim, config.sliding_window},
      config.hidden,
      plan.compute};
}

}  // namespace train
