#include "model/simulated/simulated_ops.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "fail.hpp"

namespace train::simulated {
namespace {

using atoll::DType;

// Number of kernels of an operation, and bytes as a multiple of those of atoll's fused kernel.
struct Passes {
  int kernels = 1;
  double bytes = 1;
};

// The figures of eager PyTorch count the reads and writes of Hugging Face's modules in bf16. An
// RMSNorm casts to f32, squares, averages, scales and casts back: 36 bytes an element instead of 4.
// A rotation makes five kernels. SwiGLU stores silu(gate): 5 reads and writes instead of 3, and 9
// instead of 5 in backward. The loss casts the logits to f32 (6 bytes), takes log_softmax (8) and
// its gradient (12), casts that back (6) and copies shifted logits: 36 bytes instead of 4. It
// is an estimate that the backward of an eager norm has the factor of its forward; the factors of a
// compiled norm and of a compiled loss are estimates too.
struct Profile {
  std::string_view name;
  Passes norm_forward{}, norm_backward{2, 1}, rope{}, swiglu_forward{}, swiglu_backward{}, loss{};
  bool separate_residual = false;  // a separate kernel adds the residual
  bool flash_attention_2 = false;
  FrameworkCosts costs{};
};

// Costs of PyTorch. Its AdamW has a kernel for each step of the formula unless `fused` is set. They
// read and write 80 bytes for a parameter in f32 (torch 2.6, optim/adamw.py, _multi_tensor_adamw):
// 8 for the decay, 12 for the first moment, 20 for the second, 24 for the denominator, 16 for the
// update. One fused kernel reads and writes 30. FSDP2 copies each gathered unit into its
// parameters, and each gradient into the buffer of the reduction
// (torch/distributed/fsdp/_fully_shard, file _fsdp_collectives.py); FSDP1 copies gradients only.
// The CPU times of a launch are estimates.
//
// The head computes all logits at once: 2 bytes each in bf16, their f32 copy (4), log_softmax (4)
// and its gradient (4) (transformers, loss/loss_utils.py). A compiled loss keeps the logits and the
// gradient.
constexpr FrameworkCosts eager_costs{
    .launch = 3, .update_bytes = 80.0 / 30, .copies_units = true, .logit_bytes = 14};
constexpr FrameworkCosts compiled_costs{
    .launch = 1.3, .update_bytes = 80.0 / 30, .copies_units = true, .logit_bytes = 6};

constexpr std::array<Profile, 3> profiles = {{
    {.name = "atoll"},
    {.name = "pytorch-eager",
     .norm_forward = {6, 9},
     .norm_backward = {12, 9},
     .rope = {5, 5},
     .swiglu_forward = {2, 1.67},
     .swiglu_backward = {3, 1.8},
     .loss = {12, 9},
     .separate_residual = true,
     .flash_attention_2 = true,
     .costs = eager_costs},
    {.name = "pytorch-compile",
     .norm_backward = {2, 1.3},
     .loss = {4, 3},
     .separate_residual = true,
     .flash_attention_2 = true,
     .costs = compiled_costs},
}};

// Kernels slow down beside a collective of NCCL. The kernels of a GPT on A100 ran at these shares
// of their speed: products 0.57, attention 0.55, elementwise 0.4 (NVIDIA/nccl 1428, from a
// profile). On H100, products ran at 0.5, because they have a block for each SM (pytorch/pytorch
// 143988). Newer kernels lose less: beside updates that held 24 to 32 of the 132 SMs of an H100,
// products of cuBLASLt 13 ran at 0.75 of their speed, and the forward of a layer at 0.72
// (tests/bench/results-gpu.md). atoll's products leave out the SMs that other kernels hold, so
// atoll has these shares, and PyTorch 0.55.
double crowded_product(Framework framework) { return framework == Framework::atoll ? 0.75 : 0.55; }
double crowded_attention(Framework framework) {
  return framework == Framework::atoll ? 0.72 : 0.55;
}

const Profile& profile_of(Framework framework) {
  return profiles.at(static_cast<std::size_t>(framework));
}

double bytes_of(std::initializer_list<atoll::ConstView> views) {
  double bytes = 0;
  for (const atoll::ConstView& view : views) bytes += static_cast<double>(view.bytes());
  return bytes;
}

class SimulatedOps final : public Ops {
 public:
  explicit SimulatedOps(const SimulatedOpsOptions& options)
      : options_(options), profile_(profile_of(options.framework)), products_(options.compute) {}

  void multiply(atoll::Stream& stream, const Product& product, atoll::ConstView a,
                atoll::ConstView b, atoll::View c, atoll::ConstView residual) override {
    if (known(stream, "product", key_of(product, residual.count > 0))) return;
    const bool adds = product.mode == WriteMode::accumulate;
    const double bytes = bytes_of({a, b, c}) + (adds ? bytes_of({c}) : 0);
    const bool fused = residual.count > 0 && !profile_.separate_residual;
    const double all = bytes + (fused ? bytes_of({residual}) : 0);
    const atoll::ProductShape shape{.m = product.m,
                                    .n = product.n,
                                    .k = product.k,
                                    .bf16 = product.in == DType::bf16,
                                    .moved_bytes = static_cast<std::uint64_t>(all)};
    run_for(stream, "product", atoll::product_seconds(products_, shape),
            on_gpu(crowded_product(options_.framework)));
    if (residual.count > 0 && profile_.separate_residual)
      move(stream, "add", {}, 3 * bytes_of({c}));
  }
  void compute(atoll::Stream& stream, const Operation& operation) override {
    // In the order of the alternatives of Operation.
    constexpr std::array<const char*, std::variant_size_v<Operation>> names{"norm",
                                                                            "norm backward",
                                                                            "rope",
                                                                            "attention",
                                                                            "attention backward",
                                                                            "scale",
                                                                            "bias",
                                                                            "bias",
                                                                            "swiglu",
                                                                            "swiglu backward",
                                                                            "embedding",
                                                                            "embedding backward",
                                                                            "loss"};
    const char* const name = names.at(operation.index());
    if (known(stream, name, key_of(operation))) return;
    std::visit([&](const auto& args) { run(stream, name, args); }, operation);
  }

 protected:
  // Each 2-byte matrix is read to find its scale, read again, and written in one byte; backward
  // also needs some of them transposed. The kernels are those that `ctest -R launches` counts;
  // their times, and the share of the peak that products in fp8 reach, are not measured.
  void run_linears_forward(atoll::Stream& stream, const LinearsForward& args) override {
    double bytes = bytes_of({args.x});
    for (const auto& layer : args.layers) bytes += bytes_of({layer.weight});
    const int count = static_cast<int>(args.layers.size());
    in_fp8(stream, {2 + count, 2.5}, bytes, [&] { Ops::run_linears_forward(stream, args); });
  }
  void run_linears_backward(atoll::Stream& stream, const LinearsBackward& args) override {
    double bytes = bytes_of({args.x});
    for (const auto& layer : args.layers) bytes += bytes_of({layer.weight, layer.dy});
    const int count = static_cast<int>(args.layers.size());
    in_fp8(stream, {2 + 2 * count, 3}, bytes, [&] { Ops::run_linears_backward(stream, args); });
  }

 private:
  // Calls `multiply_all` with products at the rate of fp8, if they are in fp8.
  template <class MultiplyAll>
  void in_fp8(atoll::Stream& stream, const Passes& conversion, double bytes,
              const MultiplyAll& multiply_all) {
    if (options_.fp8) {
      move(stream, "to fp8", conversion, bytes);
      products_.peak_bf16 = options_.compute.peak_fp8;
    }
    multiply_all();
    products_.peak_bf16 = options_.compute.peak_bf16;
  }
  // Enqueues an operation whose time was measured. Returns false for any other.
  bool known(atoll::Stream& stream, const char* name, const std::string& key) const {
    const auto found = options_.times.find(key);
    if (found == options_.times.end()) {
      const bool tells = options_.not_measured != nullptr && !options_.times.empty();
      if (tells) options_.not_measured->insert(key);
      return false;
    }
    run_for(stream, name, found->second, 1);
    return true;
  }
  // CPUs have no units that a collective could hold, so nothing slows down there.
  double on_gpu(double crowded) const { return options_.compute.units > 0 ? crowded : 1; }
  void run_for(atoll::Stream& stream, const char* name, double seconds, double crowded) const {
    atoll::simulated::run(
        stream,
        {.name = name, .seconds = seconds, .use = {.compute = 1}, .crowded_speed = crowded});
  }
  void move(atoll::Stream& stream, const char* name, const Passes& passes, double bytes) const {
    for (int k = 0; k < passes.kernels; ++k) {
      const double each = bytes * passes.bytes / passes.kernels;
      atoll::simulated::run(stream, {.name = name,
                                     .seconds = atoll::moving_seconds(options_.compute, each),
                                     .use = {.compute = 1, .memory = 1},
                                     .crowded_speed = on_gpu(crowded_elementwise)});
    }
  }

  void run(atoll::Stream& stream, const char* name, const RmsNormForward& args) const {
    move(stream, name, profile_.norm_forward, bytes_of({args.x, args.y}));
  }
  void run(atoll::Stream& stream, const char* name, const RmsNormBackward& args) const {
    const double sum = args.dx_mode == WriteMode::accumulate ? bytes_of({args.dx}) : 0;
    move(stream, name, profile_.norm_backward, bytes_of({args.x, args.dy, args.dx}) + sum);
  }
  void run(atoll::Stream& stream, const char* name, const Rope& args) const {
    move(stream, name, profile_.rope, 2 * bytes_of({args.x}));
  }
  void run(atoll::Stream& stream, const char* name, const AttentionForward& args) const {
    attention(stream, name, args.shape, args.q.dtype, 1);
  }
  void run(atoll::Stream& stream, const char* name, const AttentionBackward& args) const {
    attention(stream, name, args.shape, args.q.dtype, 2.5);
  }
  void run(atoll::Stream& stream, const char* name, const Scale& args) const {
    move(stream, name, {}, 2 * bytes_of({args.x}));
  }
  void run(atoll::Stream& stream, const char* name, const AddBias& args) const {
    move(stream, name, {}, 2 * bytes_of({args.y}));
  }
  void run(atoll::Stream& stream, const char* name, const BiasBackward& args) const {
    move(stream, name, {}, bytes_of({args.dy, args.dbias}));
  }
  void run(atoll::Stream& stream, const char* name, const SwigluForward& args) const {
    move(stream, name, profile_.swiglu_forward, bytes_of({args.gate, args.up, args.out}));
  }
  void run(atoll::Stream& stream, const char* name, const SwigluBackward& args) const {
    move(stream, name, profile_.swiglu_backward,
         bytes_of({args.gate, args.up, args.dout, args.dgate, args.dup}));
  }
  void run(atoll::Stream& stream, const char* name, const EmbeddingForward& args) const {
    move(stream, name, {}, 2 * bytes_of({args.out}));
  }
  void run(atoll::Stream& stream, const char* name, const EmbeddingBackward& args) const {
    // Without accumulation the whole gradient is set to zero first.
    const double zero = args.mode == WriteMode::overwrite ? bytes_of({args.dtable}) : 0;
    move(stream, name, {}, zero + 3 * bytes_of({args.dy}));
  }
  void run(atoll::Stream& stream, const char* name, const CrossEntropy& args) const {
    move(stream, name, profile_.loss, bytes_of({args.logits}) + 2 * bytes_of({args.dlogits}));
  }

  // `products` is the number of products relative to forward, which has two for each pair of query
  // and key. The window bounds the pairs.
  void attention(atoll::Stream& stream, const char* name, const AttentionShape& shape, DType dtype,
                 double products) const {
    const auto seq = static_cast<double>(shape.seq);
    const double reach = shape.window > 0 ? std::min(seq, static_cast<double>(shape.window)) : seq;
    // Query i sees min(i + 1, reach) keys.
    const double pairs = reach * (reach + 1) / 2 + (seq - reach) * reach;
    const auto heads = static_cast<double>(shape.rows * shape.heads);
    const double flops = products * 4 * pairs * heads * static_cast<double>(shape.head_dim);
    if (options_.eager_attention) return eager(stream, name, shape, dtype, products);
    const atoll::AttentionWork work{.flops = flops,
                                    .seq = shape.seq,
                                    .bf16 = dtype == DType::bf16,
                                    .flash_attention_2 = profile_.flash_attention_2};
    run_for(stream, name, atoll::attention_seconds(options_.compute, work),
            on_gpu(crowded_attention(options_.framework)));
  }

  // Attention without a fused kernel: whole products, also of masked scores, and passes over the
  // scores: scale, mask, cast to f32, softmax, cast back. Backward makes as many passes.
  void eager(atoll::Stream& stream, const char* name, const AttentionShape& shape, DType dtype,
             double products) const {
    constexpr int passes = 5;
    constexpr double bytes_of_passes = 28;  // bytes read and written per bf16 score
    const bool backward = products > 1;
    for (int product = 0; product < (backward ? 4 : 2); ++product) {
      run_for(stream, name,
              static_cast<double>(shape.rows * shape.heads) *
                  atoll::product_seconds(options_.compute, {.m = shape.seq,
                                                            .n = shape.seq,
                                                            .k = shape.head_dim,
                                                            .bf16 = dtype == DType::bf16}),
              on_gpu(crowded_product(options_.framework)));
    }
    const double scores = static_cast<double>(shape.rows * shape.heads) *
                          static_cast<double>(shape.seq) * static_cast<double>(shape.seq);
    move(stream, name, {passes, 1}, scores * bytes_of_passes);
  }

  SimulatedOpsOptions options_;
  const Profile& profile_;
  atoll::ComputeModel products_;  // with the peak of the products that run at the moment
};

}  // namespace

std::string_view name(Framework framework) noexcept {
  return profiles[static_cast<std::size_t>(framework)].name;
}

const FrameworkCosts& costs_of(Framework framework) noexcept {
  return profiles[static_cast<std::size_t>(framework)].costs;
}

Framework framework_from_name(std::string_view text) {
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    if (profiles[i].name == text) return static_cast<Framework>(i);
  }
  fail(atoll::ErrorCode::invalid_argument,
       "framework \"{}\": use atoll, pytorch-eager or pytorch-compile", text);
}

std::unique_ptr<Ops> make_ops(const SimulatedOpsOptions& options) {
  return std::make_unique<SimulatedOps>(options);
}

}  // namespace train::simulated
