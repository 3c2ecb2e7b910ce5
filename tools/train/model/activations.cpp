#include "model/activations.hpp"

#include <algorithm>
#include <functional>
#include <span>

#include "fail.hpp"

namespace train {
namespace {

using atoll::DType;
using atoll::View;

std::size_t aligned_bytes(View view) {
  constexpr std::size_t alignment = 256;
  return (view.bytes() + alignment - 1) / alignment * alignment;
}

void validate(const ActivationPlan& plan) {
  require(plan.max_tokens > 0 && plan.max_seq > 0 && plan.head_rows > 0,
          "activation plan: max_tokens = {}, max_seq = {}, head_rows = {}: all must be positive",
          plan.max_tokens, plan.max_seq, plan.head_rows);
  require(plan.compute == DType::f32 || plan.compute == DType::bf16,
          "activation plan: dtype {} is not supported, only f32 and bf16",
          atoll::name(plan.compute));
}

// A view of LayerActivations: its elements per token, its dtype, and whether it is cheap: selective
// recomputation then recomputes it, and all layers share the memory of the first layer's view.
struct LayerField {
  std::function<View&(LayerActivations&)> view;
  std::int64_t width;
  DType dtype;
  bool cheap = false;
};

std::vector<LayerField> layer_fields(const ModelConfig& config, DType low) {
  using Layer = LayerActivations;
  // With norms of heads, q and k are cheap: plain_q and plain_k give them without a matrix product.
  const bool norms = config.qk_norm;
  std::vector<LayerField> fields{{&Layer::normed1, config.hidden, low, true},
                                 {&Layer::normed2, config.hidden, low, true},
                                 {&Layer::hidden, config.ffn, low, true},
                                 {&Layer::inverse1, 1, DType::f32},
                                 {&Layer::q, config.query_width(), low, norms},
                                 {&Layer::k, config.kv_width(), low, norms},
                                 {&Layer::v, config.kv_width(), low},
                                 {&Layer::attended, config.query_width(), low},
                                 {&Layer::lse, config.heads, DType::f32},
                                 {&Layer::middle, config.hidden, low},
                                 {&Layer::inverse2, 1, DType::f32},
                                 {&Layer::gate, config.ffn, low},
                                 {&Layer::up, config.ffn, low}};
  if (norms) {
    fields.push_back({&Layer::plain_q, config.query_width(), low});
    fields.push_back({&Layer::plain_k, config.kv_width(), low});
    fields.push_back({&Layer::q_inverse, config.heads, DType::f32});
    fields.push_back({&Layer::k_inverse, config.kv_heads, DType::f32});
  }
  for (std::size_t i = 0; const Projection& projection : projections(config)) {
    const auto view = [i](Layer& layer) -> View& { return layer.adapted[i]; };
    if (config.adapters.on(projection.name)) fields.push_back({view, config.adapters.rank, low});
    ++i;
  }
  return fields;
}

}  // namespace

Activations::Activations(const ModelConfig& config, const ActivationPlan& plan)
    : config_(config), plan_(plan) {
  validate(plan);
  boundaries_.resize(static_cast<std::size_t>(config.layers) + 1);
  layers_.resize(plan.recompute == Recompute::full ? 1 : static_cast<std::size_t>(config.layers));
}

std::vector<View*> Activations::sized_views() {
  const std::int64_t tokens = plan_.max_tokens;
  const std::int64_t hidden = tokens * config_.hidden;
  const std::int64_t queries = tokens * config_.query_width();
  const std::int64_t keys = tokens * config_.kv_width();
  const std::int64_t head_rows = std::min(plan_.head_rows, tokens);
  const DType low = plan_.compute;
  const bool selective = plan_.recompute == Recompute::selective;
  std::vector<View*> views;
  const auto add = [&](View& view, std::int64_t count, DType dtype) {
    view = View(nullptr, static_cast<std::uint64_t>(count), dtype);
    views.push_back(&view);
  };
  for (View& boundary : boundaries_) add(boundary, hidden, low);
  for (const LayerField& field : layer_fields(config_, low)) {
    for (LayerActivations& layer :
         std::span(layers_).first(selective && field.cheap ? 1 : layers_.size())) {
      add(field.view(layer), tokens * field.width, field.dtype);
    }
  }
  add(backward_.dattended, queries, low);
  add(backward_.dq, queries, low);
  add(backward_.dk, keys, low);
  add(backward_.dv, keys, low);
  add(backward_.dnormed, hidden, low);
  add(gradient_, hidden, low);
  add(head_.normed, hidden, low);
  add(head_.inverse, tokens, DType::f32);
  add(head_.logits, head_rows * config_.vocab, low);
  add(rope_table_, plan_.max_seq * config_.head_dim, DType::f32);
  add(total_, 2, DType::f64);
  return views;
}

std::size_t Activations::bytes_for(const ModelConfig& config, const ActivationPlan& plan) {
  Activations sizes(config, plan);
  std::size_t bytes = 0;
  for (const View* view : sizes.sized_views()) bytes += aligned_bytes(*view);
  return bytes;
}

Activations::Activations(const ModelConfig& config, const ActivationPlan& plan,
                         const atoll::Device& device)
    : Activations(config, plan) {
  memory_ = device.allocate(bytes_for(config, plan));
  auto* next = static_cast<std::byte*>(memory_.data());
  for (View* view : sized_views()) {
    view->data = next;
    next += aligned_bytes(*view);
  }
  if (plan.recompute == Recompute::selective) {
    for (const LayerField& field : layer_fields(config_, plan.compute)) {
      if (!field.cheap) continue;
      for (LayerActivations& layer : layers_) field.view(layer) = field.view(layers_.front());
    }
  }
  head_.dnormed = backward_.dnormed;  // the head's backward ends before any layer's begins
}

void Activations::require_fits(const Batch& batch) const {
  require(batch.rows > 0 && batch.seq > 0, "a batch of {} rows of {} tokens: both must be positive",
          batch.rows, batch.seq);
  require(batch.seq <= plan_.max_seq && batch.rows <= plan_.max_tokens / batch.seq,
          "a batch of {} rows of {} tokens; activations were planned for {} tokens in sequences of "
          "at most {}",
          batch.rows, batch.seq, plan_.max_tokens, plan_.max_seq);
}

// Cuts a view, which has room for max_tokens, to the tokens of the batch.
View Activations::cut(View view, const Batch& batch) const {
  const std::uint64_t width = view.count / static_cast<std::uint64_t>(plan_.max_tokens);
  return view.part(0, static_cast<std::uint64_t>(batch.size()) * width);
}

View Activations::boundary(std::int64_t n, const Batch& batch) const {
  return cut(boundaries_.at(static_cast<std::size_t>(n)), batch);
}

LayerActivations Activations::layer(std::int64_t n, const Batch& batch) const {
  LayerActivations layer =
      layers_.at(plan_.recompute == Recompute::full ? 0 : static_cast<std::size_t>(n));
  for (const LayerField& field : layer_fields(config_, plan_.compute)) {
    field.view(layer) = cut(field.view(layer), batch);
  }
  return layer;
}

BackwardScratch Activations::backward(const Batch& batch) const {
  return {cut(backward_.dattended, batch), cut(backward_.dq, batch), cut(backward_.dk, batch),
          cut(backward_.dv, batch), cut(backward_.dnormed, batch)};
}

HeadActivations Activations::head(const Batch& batch) const {
  return {cut(head_.normed, batch), cut(head_.inverse, batch), cut(head_.dnormed, batch),
          head_.logits};
}

View Activations::gradient(const Batch& batch) const { return cut(gradient_, batch); }

// Each block of rows reads and writes the head's whole f32 gradient: 8 bytes per element for 2
// FLOPs per row. On an H100 (989 TFLOP/s, 3.35 TB/s), up to 1,181 rows are limited by bandwidth.
// CPUs compute fewer FLOPs per byte, and 512 rows of logits save memory.
std::int64_t usual_head_rows(atoll::DeviceKind device) {
  return device == atoll::DeviceKind::cuda ? 2048 : 512;
}

LargestShapes largest_shapes(const ModelConfig& config, const ActivationPlan& plan) {
  const std::int64_t rows = std::max<std::int64_t>(1, plan.max_tokens / plan.max_seq);
  return {
      {rows, plan.max_seq, config.heads, config.kv_heads, config.head_dim, config.sliding_window},
      config.hidden,
      plan.compute,
      std::max({config.qkv_bias ? config.query_width() : 0, config.o_bias ? config.hidden : 0,
                config.mlp_bias ? std::max(config.ffn, config.hidden) : 0}),
      config.qk_norm,
      config.ffn};
}

}  // namespace train
