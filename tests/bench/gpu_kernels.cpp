// Times each operation of a training step at the shapes of Mistral-7B on one GPU, and compares the
// time with a lower bound: the time to read and write the necessary bytes at the bandwidth of a
// copy, or the time of the matrix products at the matrix peak. The bandwidth and the peak are
// measured in the same run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "atoll/error.hpp"
#include "device/ops.hpp"
#include "model/activations.hpp"
#include "model/config.hpp"
#include "model/cuda/cuda_ops.hpp"
#include "model/rope.hpp"

namespace {

using atoll::Buffer;
using atoll::ConstView;
using atoll::Device;
using atoll::DType;
using atoll::View;
using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string model = "mistral-7b";
  std::int64_t tokens = 8192;
  std::int64_t seq = 2048;
  double seconds = 0.2;
  std::string json;
};

// The bytes that an operation must move and the FLOPs that it must compute. The larger of the two
// resulting times is the lower bound of the operation.
struct Floor {
  double bytes = 0;
  double flops = 0;
};

class Table {
 public:
  Table(const Arguments& arguments, const Device& gpu)
      : arguments_(arguments), gpu_(gpu), stream_(gpu_.stream({.name = "bench"})) {
    bandwidth_ = copy_bandwidth();
    peak_ = train::cuda::matrix_peak_flops(gpu_, DType::bf16);
    fmt::print("{}: copies {:.0f} GB/s (read and written), bf16 products {:.1f} TFLOP/s\n",
               gpu_.name(), bandwidth_ / 1e9, peak_ / 1e12);
    fmt::print("{:<28} {:>10} {:>10} {:>8}  by\n", "operation", "us", "floor us", "share");
  }

  atoll::Stream& stream() { return stream_; }

  // Allocates a tensor of normally distributed values. Integer tensors are filled with 0.
  View tensor(DType dtype, std::int64_t count) {
    const auto n = static_cast<std::size_t>(count);
    memory_.push_back(gpu_.allocate(n * size_of(dtype)));
    const View view = memory_.back().view(dtype);
    if (dtype == DType::i32 || dtype == DType::f64) {
      stream_.zero(view.data, view.bytes());
      return view;
    }
    const Buffer values = gpu_.allocate(n * sizeof(float));
    gpu_.ops().fill_normal(stream_, values.view(DType::f32), {1, ++seed_, 0, 0.0f, 0.5f});
    gpu_.ops().cast(stream_, view, values.view(DType::f32));
    stream_.synchronize();
    return view;
  }
  // Returns random token ids below `vocab`.
  View ids(std::int64_t count, std::int64_t vocab) {
    const View view = tensor(DType::i32, count);
    std::vector<std::int32_t> values(static_cast<std::size_t>(count));
    std::mt19937 random(7);
    for (auto& id : values) {
      id = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(vocab));
    }
    stream_.copy(view.data, values.data(), view.bytes());
    stream_.synchronize();
    return view;
  }
  // Returns the positions of tokens in documents of `length` tokens each.
  View positions(std::int64_t count, std::int64_t length) {
    const View view = tensor(DType::i32, count);
    std::vector<std::int32_t> values(static_cast<std::size_t>(count));
    for (std::size_t t = 0; t < values.size(); ++t) {
      values[t] = static_cast<std::int32_t>(static_cast<std::int64_t>(t) % length);
    }
    stream_.copy(view.data, values.data(), view.bytes());
    stream_.synchronize();
    return view;
  }
  void release() {
    stream_.synchronize();
    memory_.clear();
  }

  void row(const std::string& name, const Floor& floor, const std::function<void()>& operation) {
    add(name, floor, time_of(operation));
  }

  // Times `operation` while `load`, which takes at least some milliseconds, runs on `other`.
  void row_beside(const std::string& name, const Floor& floor, atoll::Stream& other,
                  const std::function<void()>& load, const std::function<void()>& operation) {
    const auto seconds_of = [](atoll::Stream& stream, int n, const std::function<void()>& work) {
      stream.synchronize();
      const auto start = Clock::now();
      for (int i = 0; i < n; ++i) work();
      stream.synchronize();
      return std::chrono::duration<double>(Clock::now() - start).count();
    };
    seconds_of(other, 1, load);
    const double of_load = seconds_of(other, 1, load), once = time_of(operation);
    // The loads take 4 times as long as the operations alone, so that they outlast slow operations.
    constexpr int operations = 8;
    const int loads = static_cast<int>(4 * operations * once / of_load) + 1;
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 5; ++i) {
      for (int l = 0; l < loads; ++l) load();
      best = std::min(best, seconds_of(stream_, operations, operation) / operations);
      other.synchronize();
    }
    add(name, floor, best);
  }

  void add(const std::string& name, const Floor& floor, double seconds) {
    const double by_memory = floor.bytes / bandwidth_, by_products = floor.flops / peak_;
    const double least = std::max(by_memory, by_products);
    const char* const by = by_memory > by_products ? "memory" : "products";
    fmt::print("{:<28} {:10.1f} {:10.1f} {:6.1f} %  {}\n", name, seconds * 1e6, least * 1e6,
               100 * least / seconds, by);
    rows_.push_back({{"operation", name},
                     {"us", seconds * 1e6},
                     {"floor_us", least * 1e6},
                     {"share", least / seconds},
                     {"by", by}});
  }

  nlohmann::json json() const {
    return {{"model", arguments_.model},
            {"tokens", arguments_.tokens},
            {"seq", arguments_.seq},
            {"device", gpu_.name()},
            {"copy_GBps", bandwidth_ / 1e9},
            {"peak_tflops", peak_ / 1e12},
            {"rows", rows_}};
  }

 private:
  // Returns the time of one operation when many are enqueued in a row: the best of five batches.
  double time_of(const std::function<void()>& operation) {
    const auto batch = [&](int n) {
      stream_.synchronize();
      const auto start = Clock::now();
      for (int i = 0; i < n; ++i) operation();
      stream_.synchronize();
      return std::chrono::duration<double>(Clock::now() - start).count();
    };
    batch(2);  // not measured, because the first calls also set up the kernels
    const double once = batch(1);
    constexpr int batches = 5;
    const int n = static_cast<int>(std::clamp(arguments_.seconds / batches / once, 1.0, 1e4));
    double best = once;
    for (int i = 0; i < batches; ++i) best = std::min(best, batch(n) / n);
    return best;
  }

  double copy_bandwidth() {
    const std::size_t bytes = std::min<std::size_t>(std::size_t{1} << 30, gpu_.memory_bytes() / 8);
    const Buffer from = gpu_.allocate(bytes), to = gpu_.allocate(bytes);
    return 2 * static_cast<double>(bytes) /
           time_of([&] { stream_.copy(to.data(), from.data(), bytes); });
  }

  const Arguments& arguments_;
  Device gpu_;
  atoll::Stream stream_;
  std::vector<Buffer> memory_;
  std::uint64_t seed_ = 0;
  double bandwidth_ = 0, peak_ = 0;
  nlohmann::json rows_ = nlohmann::json::array();
};

struct Bench {
  Table& table;
  train::Ops& ops;
  const train::ModelConfig& model;
  std::int64_t tokens, seq;
  double t = static_cast<double>(tokens);
  // Number of rows of logits that the trainer computes at a time.
  std::int64_t piece = std::min(tokens, train::usual_head_rows(atoll::DeviceKind::cuda));

  View low(std::int64_t count) const { return table.tensor(DType::bf16, count); }
  View full(std::int64_t count) const { return table.tensor(DType::f32, count); }

  void linears() const;
  void groups(train::Ops& with, const char* type) const;
  void in_fp8(const Device& gpu) const;
  void rows_of_tokens() const;
  void attention() const;
  double product_with_keys(std::int64_t documents, std::int64_t length) const;
  void ends() const;
  void optimizer(const Device& gpu) const;
  void beside(const Device& gpu) const;
};

void Bench::linears() const {
  struct Shape {
    const char* name;
    std::int64_t in, out;
    std::int64_t tokens;
    train::WriteMode wgrad = train::WriteMode::overwrite;
  };
  const Shape shapes[] = {{"q", model.hidden, model.query_width(), tokens},
                          {"kv", model.hidden, model.kv_width(), tokens},
                          {"o", model.query_width(), model.hidden, tokens},
                          {"gate_up", model.hidden, model.ffn, tokens},
                          {"down", model.ffn, model.hidden, tokens},
                          {"head", model.hidden, model.vocab, piece, train::WriteMode::accumulate}};
  for (const auto& [name, in, out, rows, wgrad] : shapes) {
    const train::LinearShape shape{rows, in, out};
    const double n = static_cast<double>(in), m = static_cast<double>(out);
    const double r = static_cast<double>(rows);
    // Number of times that the kernel passes over the weight gradient: once to write it, and once
    // more to read it if it accumulates.
    const double passes = wgrad == train::WriteMode::accumulate ? 2 : 1;
    const double flops = 2 * r * n * m;
    const View x = low(rows * in), y = low(rows * out), weight = low(in * out);
    const View dweight = full(in * out);
    auto& stream = table.stream();
    table.row(fmt::format("linear {} forward", name), {2 * (r * n + r * m + n * m), flops},
              [&] { ops.linear_forward(stream, shape, x, weight, y); });
    // If the output is as wide as the model, the trainer adds a residual to the product, so time
    // that too.
    if (out == model.hidden) {
      const View residual = low(rows * out);
      table.row(fmt::format("linear {} + residual", name), {2 * (r * n + 2 * r * m + n * m), flops},
                [&] {
                  const train::LinearsForward::Layer layer{out, weight, y, residual};
                  ops.linears_forward(stream, {rows, in, x, {&layer, 1}});
                });
    }
    table.row(fmt::format("linear {} dgrad", name), {2 * (r * n + r * m + n * m), flops},
              [&] { ops.linear_dgrad(stream, shape, y, weight, x, train::WriteMode::overwrite); });
    table.row(fmt::format("linear {} wgrad", name),
              {2 * (r * n + r * m) + 4 * passes * n * m, flops},
              [&] { ops.linear_wgrad(stream, shape, y, x, dweight, wgrad); });
    table.release();
  }
}

void Bench::in_fp8(const Device& gpu) const {
  std::unique_ptr<train::Ops> with;
  try {
    with = train::cuda::make_ops(gpu, {.fp8 = true});
  } catch (const atoll::Error& error) {
    if (error.code() != atoll::ErrorCode::unsupported) throw;
    return fmt::print("no rows in fp8: {}\n", error.what());
  }
  groups(*with, "fp8");
}

// Linear layers with one input, as the trainer calls them. The limits assume bf16, so the share of
// rows in fp8 can exceed 100 %.
void Bench::groups(train::Ops& with, const char* type) const {
  struct Group {
    const char* name;
    std::int64_t in;
    std::vector<std::int64_t> outs;
  };
  const Group all[] = {
      {"q, k, v", model.hidden, {model.query_width(), model.kv_width(), model.kv_width()}},
      {"gate, up", model.hidden, {model.ffn, model.ffn}},
      {"down", model.ffn, {model.hidden}}};
  for (const auto& [name, in, outs] : all) {
    const View x = low(tokens * in), dx = low(tokens * in);
    std::vector<train::LinearsForward::Layer> forward;
    std::vector<train::LinearsBackward::Layer> backward;
    const double n = static_cast<double>(in);
    double bytes = 2 * t * n, gradient_bytes = 4 * t * n, flops = 0;
    for (const std::int64_t out : outs) {
      const View y = low(tokens * out), weight = low(in * out);
      forward.push_back({out, weight, y});
      backward.push_back({out, y, weight, full(in * out), train::WriteMode::overwrite});
      const double m = static_cast<double>(out);
      bytes += 2 * (t * m + n * m);
      gradient_bytes += 2 * (t * m + n * m) + 4 * n * m;
      flops += 2 * t * n * m;
    }
    auto& stream = table.stream();
    table.row(fmt::format("{} forward {}", name, type), {bytes, flops}, [&] {
      with.linears_forward(stream, {tokens, in, x, forward});
    });
    table.row(fmt::format("{} backward {}", name, type), {gradient_bytes, 2 * flops}, [&] {
      with.linears_backward(stream, {tokens, in, x, dx, backward});
    });
    table.release();
  }
}

void Bench::rows_of_tokens() const {
  auto& stream = table.stream();
  const double h = static_cast<double>(model.hidden), f = static_cast<double>(model.ffn);
  const double q = static_cast<double>(model.query_width());
  const std::int64_t wide = tokens * model.hidden;
  const View x = low(wide), y = low(wide), dx = low(wide), weight = low(model.hidden);
  const View inverse = full(tokens), dweight = full(model.hidden);
  constexpr auto overwrite = train::WriteMode::overwrite;
  table.row("rms_norm forward", {4 * t * h}, [&] {
    ops.rms_norm_forward(stream, {model.hidden, 1e-5f, x, weight, y, inverse});
  });
  table.row("rms_norm backward", {6 * t * h}, [&] {
    ops.rms_norm_backward(stream,
                          {model.hidden, x, weight, inverse, y, dx, overwrite, dweight, overwrite});
  });
  const View heads = low(tokens * model.query_width()), angles = full(seq * model.head_dim);
  const std::vector<float> values = train::rope_table(model, seq);
  stream.copy(angles.data, values.data(), angles.bytes());
  stream.synchronize();
  table.row("rope", {4 * t * q}, [&] {
    ops.rope(stream,
             {seq, model.heads, model.head_dim, heads, angles, train::RopeDirection::forward});
  });
  table.release();
  const View gate = low(tokens * model.ffn), up = low(tokens * model.ffn);
  const View out = low(tokens * model.ffn);
  table.row("swiglu forward", {6 * t * f}, [&] { ops.swiglu_forward(stream, gate, up, out); });
  const View dgate = low(tokens * model.ffn), dup = low(tokens * model.ffn);
  table.row("swiglu backward", {10 * t * f}, [&] {
    ops.swiglu_backward(stream, {gate, up, out, dgate, dup});
  });
  table.release();
}

void Bench::attention() const {
  auto& stream = table.stream();
  const std::int64_t rows = tokens / seq;
  train::AttentionShape shape{
      rows, seq, model.heads, model.kv_heads, model.head_dim, model.sliding_window};
  const std::int64_t wide = tokens * model.query_width(), narrow = tokens * model.kv_width();
  const View q = low(wide), out = low(wide), dout = low(wide), dq = low(wide);
  const View k = low(narrow), v = low(narrow), dk = low(narrow), dv = low(narrow);
  const View lse = full(tokens * model.heads);
  // Forward moves q, k, v, out and the log-sum-exp; backward also reads dout and writes dq, dk, dv.
  const double each = 2 * static_cast<double>(wide + narrow);
  const double statistics = 4 * t * static_cast<double>(model.heads);
  const double forward = 2 * each + statistics, backward = 4 * each + statistics;
  table.row("attention forward", {forward, 2 * product_with_keys(rows, seq)}, [&] {
    ops.attention_forward(stream, {shape, q, k, v, out, lse});
  });
  table.row("attention backward", {backward, 5 * product_with_keys(rows, seq)}, [&] {
    ops.attention_backward(stream, {shape, q, k, v, out, lse, dout, dq, dk, dv});
  });
  // Packed rows: each document occupies an eighth of a row.
  const std::int64_t length = seq % 8 == 0 ? seq / 8 : seq, documents = tokens / length;
  const View positions = table.positions(tokens, length);
  shape.documents = documents;
  table.row("attention packed forward", {forward, 2 * product_with_keys(documents, length)}, [&] {
    ops.attention_forward(stream, {shape, q, k, v, out, lse, positions});
  });
  table.row("attention packed backward", {backward, 5 * product_with_keys(documents, length)}, [&] {
    ops.attention_backward(stream, {shape, q, k, v, out, lse, dout, dq, dk, dv, positions});
  });
  table.release();
}

// Returns the FLOPs of one matrix product of all queries with the keys that they can see. Forward
// needs two of these products, and backward needs five.
double Bench::product_with_keys(std::int64_t documents, std::int64_t length) const {
  const auto s = static_cast<double>(length);
  const double window =
      model.sliding_window > 0 ? std::min(static_cast<double>(model.sliding_window), s) : s;
  const double pairs =
      static_cast<double>(documents) * (window * (window + 1) / 2 + (s - window) * window);
  return 2 * pairs * static_cast<double>(model.query_width());
}

void Bench::ends() const {
  auto& stream = table.stream();
  const double h = static_cast<double>(model.hidden), vocab = static_cast<double>(model.vocab);
  const View ids = table.ids(tokens, model.vocab), embedded = low(tokens * model.hidden);
  const View words = low(model.vocab * model.hidden), dwords = full(model.vocab * model.hidden);
  table.row("embedding forward", {4 * t * h},
            [&] { ops.embedding_forward(stream, ids, words, embedded, model.hidden); });
  table.row("embedding backward", {4 * vocab * h + 2 * t * h}, [&] {
    ops.embedding_backward(
        stream, {model.vocab, model.hidden, ids, embedded, dwords, train::WriteMode::overwrite});
  });
  const View padding = table.ids(tokens, 1);
  table.row("embedding backward, padding", {4 * vocab * h + 2 * t * h}, [&] {
    ops.embedding_backward(stream, {model.vocab, model.hidden, padding, embedded, dwords,
                                    train::WriteMode::overwrite});
  });
  table.release();
  const View labels = table.ids(piece, model.vocab), logits = low(piece * model.vocab);
  const View total = table.tensor(DType::f64, 2);
  const double count = static_cast<double>(piece) * vocab;
  // The operation runs in place, so repeated calls read gradients instead of logits. This does not
  // change the time of a call.
  table.row(fmt::format("cross_entropy of {}", piece), {4 * count}, [&] {
    ops.cross_entropy(stream, {model.vocab, labels, logits, logits, 1.0f, total});
  });
  table.release();
}

void Bench::optimizer(const Device& gpu) const {
  auto& stream = table.stream();
  const std::int64_t count = model.hidden * model.ffn;
  const auto n = static_cast<double>(count);
  const View weights = full(count), gradient = full(count), weights_low = low(count);
  const View moment1 = full(count), moment2 = full(count), figures = table.tensor(DType::f64, 2);
  stream.zero(moment1.data, moment1.bytes());
  stream.zero(moment2.data, moment2.bytes());
  const double one = 1;
  stream.copy(figures.data, &one, sizeof one);
  stream.synchronize();
  const auto adamw = [&](View first, View second, std::uint64_t key, unsigned blocks) {
    gpu.ops().adamw(stream, {weights, gradient, first, second, weights_low, 1e-4f, 0.9f, 0.95f,
                             1e-8f, 0.1f, figures.as<double>(), nullptr, key, 0, blocks});
  };
  const View low1 = low(count), low2 = low(count);
  stream.zero(low1.data, low1.bytes());
  stream.zero(low2.data, low2.bytes());
  table.row("adamw", {30 * n}, [&] { adamw(moment1, moment2, 0, 0); });
  table.row("adamw, bf16 moments", {22 * n}, [&] { adamw(low1, low2, 7, 0); });
  for (const unsigned blocks : {4u, 16u}) {
    table.row(fmt::format("adamw of {} blocks", blocks), {30 * n},
              [&] { adamw(moment1, moment2, 0, blocks); });
  }
  table.row("adamw of 16, bf16 moments", {22 * n}, [&] { adamw(low1, low2, 7, 16); });
  const View blocks =
      table.tensor(DType::f64, (count + static_cast<std::int64_t>(atoll::norm_block) - 1) /
                                   static_cast<std::int64_t>(atoll::norm_block));
  table.row("sum_squares", {4 * n}, [&] { gpu.ops().sum_squares(stream, blocks, gradient); });
  const View of_model = table.tensor(
      DType::f64, train::parameter_count(model) / static_cast<std::int64_t>(atoll::norm_block));
  const View norm = table.tensor(DType::f64, 3);
  table.row("clip_factor of all blocks", {8 * static_cast<double>(of_model.count)},
            [&] { gpu.ops().clip_factor(stream, norm, of_model, {1.0f}); });
  constexpr std::int64_t ranks = 8;
  const View own = low(count / ranks), all = low(count / ranks * ranks);
  table.row("sum of 8 parts in bf16", {2 * (n + n / ranks)},
            [&] { gpu.ops().reduce(stream, own, all, atoll::ReduceOp::sum, 0); });
  table.row("cast f32 to bf16", {6 * n}, [&] { gpu.ops().cast(stream, weights_low, weights); });
  table.row("add f32", {12 * n}, [&] { gpu.ops().add(stream, weights, gradient); });
  table.release();
}

// Times a product beside updates of few blocks, which hold multiprocessors as collectives do. Shows
// whether the product should leave them to the other work.
void Bench::beside(const Device& gpu) const {
  atoll::Stream other = gpu.stream({.name = "other", .priority = atoll::StreamPriority::high});
  // An update of this size outlasts several products.
  const std::int64_t count = 8 * model.hidden * model.ffn;
  const View weights = full(count), gradient = full(count);
  const View x = low(tokens * model.hidden), y = low(tokens * model.ffn);
  const View weight = low(model.hidden * model.ffn);
  const train::LinearShape shape{tokens, model.hidden, model.ffn};
  const double n = static_cast<double>(model.hidden), m = static_cast<double>(model.ffn);
  const Floor floor{2 * (t * n + t * m + n * m), 2 * t * n * m};
  for (const unsigned blocks : {0u, 8u, 32u}) {
    for (const int spared : {0, blocks == 0 ? 8 : static_cast<int>(blocks)}) {
      const auto with = train::cuda::make_ops(gpu, {.spared_multiprocessors = spared});
      const std::string name = fmt::format("gate beside {} blocks, {} spared", blocks, spared);
      const auto product = [&] { with->linear_forward(table.stream(), shape, x, weight, y); };
      if (blocks == 0) {
        table.row(name, floor, product);
        continue;
      }
      const auto update = [&] {
        gpu.ops().sgd(other, {weights, gradient, {}, 1e-6f, 0.1f, nullptr, blocks});
      };
      table.row_beside(name, floor, other, update, product);
      other.synchronize();
    }
  }
  table.release();
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Compares the operations of a training step on one GPU with the limits of its memory and "
      "tensor cores");
  app.option_defaults()->always_capture_default();
  app.add_option("--model", arguments.model, "preset that sets the shapes");
  app.add_option("--tokens", arguments.tokens, "tokens per micro batch");
  app.add_option("--seq", arguments.seq, "positions per row");
  app.add_option("--seconds", arguments.seconds, "time per row of the table");
  app.add_option("--json", arguments.json, "file for the figures");
  CLI11_PARSE(app, argc, argv);
  if (Device::cuda_count() == 0) {
    fmt::print("skipped: no GPU is visible\n");
    return 77;
  }
  try {
    const Device gpu = Device::cuda();
    const auto ops = train::cuda::make_ops(gpu);
    const auto model = train::preset(arguments.model);
    Table table(arguments, gpu);
    const Bench bench{table, *ops, model, arguments.tokens / arguments.seq * arguments.seq,
                      arguments.seq};
    bench.linears();
    bench.groups(*ops, "bf16");
    bench.in_fp8(gpu);
    bench.rows_of_tokens();
    bench.attention();
    bench.ends();
    bench.optimizer(gpu);
    bench.beside(gpu);
    if (arguments.json.empty()) return 0;
    std::ofstream file(arguments.json);
    file << table.json().dump(1) << '\n';
    return file ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_kernels: {}\n", error.what());
    return 1;
  }
}
