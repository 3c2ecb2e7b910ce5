#include "model/cpu/cpu_ops.hpp"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "fail.hpp"
#include "model/cpu/kernels.hpp"
#include "model/cpu/scratch.hpp"

namespace train::cpu {

using atoll::ConstView;
using atoll::Stream;
using atoll::View;

namespace {

// Tokens per partial sum of a norm's weight gradient, independent of the number of threads.
constexpr std::size_t norm_rows = 64;
// Threads split columns at multiples of this, so that each has whole cache lines.
constexpr std::size_t column_step = 64;

void require_ids(const char* what, ConstView ids, std::int64_t vocab, std::int32_t lowest) {
  const auto* values = ids.as<std::int32_t>();
  for (std::uint64_t i = 0; i < ids.count; ++i) {
    require(values[i] >= lowest && values[i] < vocab,
            "{} {} at position {} is not in the vocabulary of {}", what, values[i], i, vocab);
  }
}

// Positions must start at 0 in each row, then increase by 1 or restart at 0.
void check_positions(ConstView positions, std::int64_t seq) {
  const auto* values = positions.as<std::int32_t>();
  for (std::uint64_t i = 0; i < positions.count; ++i) {
    const bool begins = i % to_size(seq) == 0;
    require(values[i] == 0 || (!begins && values[i] == values[i - 1] + 1),
            "token {} has position {}: it must be 0 or one more than the previous token's", i,
            values[i]);
  }
}

// The stream's worker runs the enqueued calls one at a time, so they share scratch memory.
class CpuOps final : public Ops {
 public:
  explicit CpuOps(const CpuOpsOptions& options)
      : threads_(std::max(1, options.threads)),
        matmul_(threads_, options.bf16),
        scratch_(to_size(threads_)) {}

  void multiply(Stream& stream, const Product& product, ConstView a, ConstView b, View c,
                ConstView residual) override {
    stream.enqueue([this, product, a, b, c, residual] {
      matmul_.run(product, a.data, b.data, c.data);
      split(residual.count, column_step, [&](Range r) { cpu::add(c, residual, c, r); });
    });
  }

  void compute(Stream& stream, const Operation& operation) override {
    stream.enqueue(
        [this, operation] { std::visit([this](const auto& args) { run(args); }, operation); });
  }

 private:
  void run(const RmsNormForward& args) {
    split(args.inverse.count, 1, [&](Range r) { cpu::rms_norm_forward(args, r); });
  }

  void run(const RmsNormBackward& args) {
    const std::size_t tokens = args.inverse.count;
    const std::size_t width = to_size(args.width);
    const std::size_t blocks = (tokens + norm_rows - 1) / norm_rows;
    const bool wanted = args.dweight_mode != WriteMode::none;
    float* partials = wanted ? shared_.reserve(blocks * width) : nullptr;
    each(blocks, [&](std::size_t block) {
      const Range range{block * norm_rows, std::min(tokens, (block + 1) * norm_rows)};
      cpu::rms_norm_backward(args, range, wanted ? partials + block * width : nullptr);
    });
    if (!wanted) return;
    split(width, column_step,
          [&](Range columns) { rms_norm_weight(args, partials, blocks, columns); });
  }

  void run(const Scale& args) {
    split(args.x.count, column_step, [&](Range r) { cpu::scale(args, r); });
  }

  void run(const AddBias& args) {
    split(args.y.count / args.bias.count, 1, [&](Range r) { cpu::add_bias(args, r); });
  }

  void run(const BiasBackward& args) {
    split(to_size(args.width), column_step, [&](Range r) { cpu::bias_backward(args, r); });
  }

  void run(const Rope& args) {
    check_positions(args.positions, args.seq);
    const std::size_t tokens = args.x.count / to_size(args.heads * args.head_dim);
    split(tokens, 1, [&](Range r) { cpu::rope(args, r); });
  }

  void run(const AttentionForward& args) {
    if (in_bf16(args.q)) {
      attention(args, attention_forward_scratch_bf16, attention_forward_bf16);
    } else {
      attention(args, attention_forward_scratch, cpu::attention_forward);
    }
  }

  void run(const AttentionBackward& args) {
    if (in_bf16(args.q)) {
      attention(args, attention_backward_scratch_bf16, attention_backward_bf16);
    } else {
      attention(args, attention_backward_scratch, cpu::attention_backward);
    }
  }

  void run(const SwigluForward& args) {
    split(args.gate.count, column_step, [&](Range r) { cpu::swiglu_forward(args, r); });
  }

  void run(const SwigluBackward& args) {
    split(args.gate.count, column_step, [&](Range r) { cpu::swiglu_backward(args, r); });
  }

  void run(const EmbeddingForward& args) {
    require_ids("token", args.tokens, static_cast<std::int64_t>(args.table.count) / args.width, 0);
    const std::size_t bytes = to_size(args.width) * size_of(args.table.dtype);
    const auto* from = static_cast<const std::byte*>(args.table.data);
    auto* to = static_cast<std::byte*>(args.out.data);
    split(args.tokens.count, 1, [&](Range range) {
      for (std::size_t i = range.first; i < range.last; ++i) {
        const auto id = to_size(args.tokens.as<std::int32_t>()[i]);
        std::memcpy(to + i * bytes, from + id * bytes, bytes);
      }
    });
  }

  void run(const EmbeddingBackward& args) {
    require_ids("token", args.tokens, args.vocab, 0);
    split(to_size(args.width), column_step, [&](Range r) { cpu::embedding_backward(args, r); });
  }

  void run(const CrossEntropy& args) {
    const std::size_t tokens = args.labels.count;
    require_ids("label", args.labels, args.vocab, std::numeric_limits<std::int32_t>::min());
    if (row_losses_.size() < tokens) row_losses_.resize(tokens);
    double* losses = row_losses_.data();
    split(tokens, 1, [&](Range range) { cpu::cross_entropy(args, range, losses); });
    auto* total = args.total.as<double>();
    for (std::size_t i = 0; i < tokens; ++i) {
      total[0] += losses[i];
      total[1] += args.labels.as<std::int32_t>()[i] >= 0 ? 1.0 : 0.0;
    }
  }

  bool in_bf16(ConstView q) const {
    return q.dtype == atoll::DType::bf16 && bf16_ != Bf16Instructions::none;
  }

  template <class Args>
  void attention(const Args& args, std::size_t (*scratch)(const AttentionShape&),
                 void (*kernel)(const Args&, const AttentionTask&)) {
    check_positions(args.positions, args.shape.seq);
    const std::size_t kv_heads = to_size(args.shape.kv_heads);
    for (Scratch& of_thread : scratch_) of_thread.reserve(scratch(args.shape));
    each(to_size(args.shape.rows) * kv_heads, [&](std::size_t i) {
      float* const of_thread = scratch_[to_size(omp_get_thread_num())].reserve(0);
      kernel(args, {i / kv_heads, i % kv_heads, of_thread, bf16_});
    });
  }

  // Runs body(Range) on [0, count), divided among the threads at multiples of `step`.
  template <class Body>
  void split(std::size_t count, std::size_t step, const Body& body) const {
    if (count == 0) return;
    const std::size_t steps = (count + step - 1) / step;
    const auto parts = static_cast<std::size_t>(threads_);
#pragma omp parallel for num_threads(threads_) schedule(static)
    for (std::size_t part = 0; part < parts; ++part) {
      const std::size_t first = std::min(count, steps * part / parts * step);
      const std::size_t last = std::min(count, steps * (part + 1) / parts * step);
      if (first < last) body(Range{first, last});
    }
  }

  // Runs body(i) for i in [0, count); threads take one index at a time.
  template <class Body>
  void each(std::size_t count, const Body& body) const {
#pragma omp parallel for num_threads(threads_) schedule(dynamic, 1)
    for (std::size_t i = 0; i < count; ++i) body(i);
  }

  int threads_;
  MatMul matmul_;
  Bf16Instructions bf16_ = matmul_.instructions();
  std::vector<Scratch> scratch_;  // scratch memory of each thread
  Scratch shared_;
  std::vector<double> row_losses_;
};

}  // namespace

std::unique_ptr<Ops> make_ops(const CpuOpsOptions& options) {
  if (options.deterministic) leave_out_amx();
  return std::make_unique<CpuOps>(options);
}

}  // namespace train::cpu
