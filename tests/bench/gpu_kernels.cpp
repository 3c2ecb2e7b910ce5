// Times each operation of a training step at the shapes of Mistral-7B on one GPU, and compares the
// time with a lower bound: the time to read and write the necessary bytes at the bandwidth of a
// copy, or the time of the matrix products at the matrix peak. The bandwidth and the peak are
// measured in the same run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
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
  void fill(const View& view, const void* values) {
    stream_.copy(view.data, values, view.bytes());
    stream_.synchronize();
  }
  // Returns a tensor of integers, each made by `next` from its index.
  template <class Next>
  View integers(std::int64_t count, const Next& next) {
    const View view = tensor(DType::i32, count);
    std::vector<std::int32_t> values(view.count);
    for (std::int64_t i = 0; i < count; ++i) {
      values[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(next(i));
    }
    fill(view, values.data());
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
  static double seconds_of(atoll::Stream& stream, int n, const std::function<void()>& work) {
    stream.synchronize();
    const auto start = Clock::now();
    for (int i = 0; i < n; ++i) work();
    stream.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  // Returns the time of one operation when many are enqueued in a row: the best of five batches.
  double time_of(const std::function<void()>& operation) {
    seconds_of(stream_, 2, operation);  // the first calls also set up the kernels
    const double once = seconds_of(stream_, 1, operation);
    constexpr int batches = 5;
    const int n = static_cast<int>(std::clamp(arguments_.seconds / batches / once, 1.0, 1e4));
    double best = once;
    for (int i = 0; i < batches; ++i) best = std::min(best, seconds_of(stream_, n, operation) / n);
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
  atoll::Stream& stream = table.stream();
  double t = static_cast<double>(tokens);
  // Number of rows of logits that the trainer computes at a time.
  std::int64_t piece = std::min(tokens, train::usual_head_rows(atoll::DeviceKind::cuda));

  View low(std::int64_t count) const { return table.tensor(DType::bf16, count); }
  View full(std::int64_t count) const { return table.tensor(DType::f32, count); }
  View zeros(DType dtype, std::int64_t count) const {
    const View view = table.tensor(dtype, count);
    stream.zero(view.data, view.bytes());
    return view;
  }

  void linears() const;
  void groups(train::Ops& with, const char* type) const;
  void in_fp8(const Device& gpu) const;
  void rows_of_tokens() const;
  void attention() const;
  void ends() const;
  void optimizer(const Device& gpu) const;
  void beside(const Device& gpu) const;

  // Returns the FLOPs of one matrix product of all queries with the keys that they can see. Forward
  // needs two of these products, and backward needs five.
  double product_with_keys(std::int64_t documents, std::int64_t length) const {
    const auto s = static_cast<double>(length);
    const double window =
        model.sliding_window > 0 ? std::min(static_cast<double>(model.sliding_window), s) : s;
    const double pairs =
        static_cast<double>(documents) * (window * (window + 1) / 2 + (s - window) * window);
    return 2 * pairs * static_cast<double>(model.query_width());
  }
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
    // The kernel writes the weight gradient, and reads it first if it accumulates.
    const double passes = wgrad == train::WriteMode::accumulate ? 2 : 1;
    const double flops = 2 * r * n * m;
    const View x = low(rows * in), y = low(rows * out), weight = low(in * out);
    const View dweight = full(in * out);
    table.row(fmt::format("linear {} forward", name), {2 * (r * n + r * m + n * m), flops},
              [&] { ops.linear_forward(stream, shape, x, weight, y); });
    // The trainer adds a residual to products as wide as the model: times these with one as well.
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

// Groups of linear layers that share their input, as the trainer calls them. The limits assume
// bf16, so rows in fp8 can reach more than 100 % of them.
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
  const double h = static_cast<double>(model.hidden), f = static_cast<double>(model.ffn);
  const double q = static_cast<double>(model.query_width());
  const std::int64_t wide = tokens * model.hidden;
  const View x = low(wide), y = low(wide), dx = low(wide), weight = low(model.hidden);
  const View inverse = full(tokens), dweight = full(model.hidden);
  constexpr auto overwrite = train::WriteMode::overwrite;
  table.row("rms_norm forward", {4 * t * h}, [&] {
    ops.run(stream, train::RmsNormForward{model.hidden, 1e-5f, x, weight, y, inverse});
  });
  table.row("rms_norm backward", {6 * t * h}, [&] {
    ops.run(stream, train::RmsNormBackward{model.hidden, x, weight, inverse, y, dx, overwrite,
                                           dweight, overwrite});
  });
  const View heads = low(tokens * model.query_width()), angles = full(seq * model.head_dim);
  const std::vector<float> values = train::rope_table(model, seq);
  table.fill(angles, values.data());
  table.row("rope", {4 * t * q}, [&] {
    ops.run(stream, train::Rope{seq, model.heads, model.head_dim, heads, angles,
                                train::RopeDirection::forward});
  });
  table.release();
  const std::int64_t ffn = tokens * model.ffn;
  const View gate = low(ffn), up = low(ffn), out = low(ffn), dgate = low(ffn), dup = low(ffn);
  table.row("swiglu forward", {6 * t * f}, [&] {
    ops.run(stream, train::SwigluForward{gate, up, out});
  });
  table.row("swiglu backward", {10 * t * f}, [&] {
    ops.run(stream, train::SwigluBackward{gate, up, out, dgate, dup});
  });
  table.release();
}

void Bench::attention() const {
  train::AttentionShape shape{tokens / seq,        seq, model.heads, model.kv_heads, model.head_dim,
                              model.sliding_window};
  const std::int64_t wide = tokens * model.query_width(), narrow = tokens * model.kv_width();
  const View q = low(wide), out = low(wide), dout = low(wide), dq = low(wide);
  const View k = low(narrow), v = low(narrow), dk = low(narrow), dv = low(narrow);
  const View lse = full(tokens * model.heads);
  // Forward moves q, k, v, out and the log-sum-exp; backward also reads dout and writes dq, dk, dv.
  const double each = 2 * static_cast<double>(wide + narrow);
  const double statistics = 4 * t * static_cast<double>(model.heads);
  const double forward = 2 * each + statistics, backward = 4 * each + statistics;
  for (const bool packed : {false, true}) {
    // Packed rows: each document occupies an eighth of a row.
    const std::int64_t length = packed && seq % 8 == 0 ? seq / 8 : seq, documents = tokens / length;
    const auto in_document = [&](std::int64_t token) { return token % length; };
    const View positions = packed ? table.integers(tokens, in_document) : View{};
    shape.documents = packed ? documents : 0;
    const double product = product_with_keys(documents, length);
    const std::string name = packed ? "attention packed" : "attention";
    table.row(name + " forward", {forward, 2 * product}, [&] {
      ops.run(stream, train::AttentionForward{shape, q, k, v, out, lse, positions});
    });
    table.row(name + " backward", {backward, 5 * product}, [&] {
      ops.run(stream,
              train::AttentionBackward{shape, q, k, v, out, lse, dout, dq, dk, dv, positions});
    });
  }
  table.release();
}

void Bench::ends() const {
  const double h = static_cast<double>(model.hidden), vocab = static_cast<double>(model.vocab);
  std::mt19937 random(7);
  const auto token = [&](std::int64_t) {
    return random() % static_cast<std::uint32_t>(model.vocab);
  };
  const View ids = table.integers(tokens, token), embedded = low(tokens * model.hidden);
  const View words = low(model.vocab * model.hidden), dwords = full(model.vocab * model.hidden);
  table.row("embedding forward", {4 * t * h}, [&] {
    ops.run(stream, train::EmbeddingForward{ids, words, embedded, model.hidden});
  });
  const auto backward = [&](const char* name, const View& of) {
    table.row(name, {4 * vocab * h + 2 * t * h}, [&] {
      ops.run(stream, train::EmbeddingBackward{model.vocab, model.hidden, of, embedded, dwords,
                                               train::WriteMode::overwrite});
    });
  };
  backward("embedding backward", ids);
  backward("embedding backward, padding", table.tensor(DType::i32, tokens));  // all ids are 0
  table.release();
  const View labels = table.integers(piece, token), logits = low(piece * model.vocab);
  const View total = table.tensor(DType::f64, 2);
  const double count = static_cast<double>(piece) * vocab;
  // The operation runs in place, so repeated calls read gradients instead of logits. This does not
  // change the time of a call.
  table.row(fmt::format("cross_entropy of {}", piece), {4 * count}, [&] {
    ops.run(stream, train::CrossEntropy{model.vocab, labels, logits, logits, 1.0f, total});
  });
  table.release();
}

void Bench::optimizer(const Device& gpu) const {
  const std::int64_t count = model.hidden * model.ffn;
  const auto n = static_cast<double>(count);
  const View weights = full(count), gradient = full(count), weights_low = low(count);
  const View moment1 = zeros(DType::f32, count), moment2 = zeros(DType::f32, count);
  const View low1 = zeros(DType::bf16, count), low2 = zeros(DType::bf16, count);
  const View figures = table.tensor(DType::f64, 2);
  table.fill(figures, std::array{1.0, 0.0}.data());
  for (const unsigned blocks : {0u, 4u, 16u}) {
    for (const bool narrow : {false, true}) {
      if (narrow && blocks == 4) continue;
      const std::string name = blocks == 0 ? "adamw" : fmt::format("adamw of {} blocks", blocks);
      table.row(name + (narrow ? ", bf16 moments" : ""), {(narrow ? 22 : 30) * n}, [&] {
        gpu.ops().adamw(stream, {weights, gradient, narrow ? low1 : moment1,
                                 narrow ? low2 : moment2, weights_low, 1e-4f, 0.9f, 0.95f, 1e-8f,
                                 0.1f, figures.as<double>(), nullptr, narrow ? 7u : 0u, 0, blocks});
      });
    }
  }
  constexpr std::int64_t block = atoll::norm_block;
  const View blocks = table.tensor(DType::f64, (count + block - 1) / block);
  table.row("sum_squares", {4 * n}, [&] { gpu.ops().sum_squares(stream, blocks, gradient); });
  const View of_model = table.tensor(DType::f64, train::parameter_count(model) / block);
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

// Times a matrix product beside optimizer updates of few thread blocks, which hold multiprocessors
// as collectives do.
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
    const std::string name = fmt::format("gate beside {} blocks", blocks);
    const auto product = [&] { ops.linear_forward(stream, shape, x, weight, y); };
    const auto update = [&] {
      gpu.ops().sgd(other, {weights, gradient, {}, 1e-6f, 0.1f, nullptr, blocks});
    };
    if (blocks == 0) table.row(name, floor, product);
    if (blocks > 0) table.row_beside(name, floor, other, update, product);
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
