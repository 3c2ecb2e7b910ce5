#include "model/cuda/cuda_ops.hpp"

#include <algorithm>
#include <utility>

#include "atoll/cuda.hpp"
#include "atoll/cuda/runtime.hpp"
#include "fail.hpp"
#include "model/cuda/attention.hpp"
#include "model/cuda/fp8_linears.hpp"
#include "model/cuda/kernels.hpp"
#include "model/cuda/matmul.hpp"

namespace train::cuda {

using atoll::ConstView;
using atoll::Stream;
using atoll::View;
using atoll::cuda::Current;
using atoll::cuda::native;

namespace {

// Invalid ids that kernels report: CPU memory that the GPU writes, read in stream order.
class IdReport {
 public:
  struct Told {
    BadId token, label;
  };

  IdReport() {
    void* memory = nullptr;
    atoll::cuda::check(cudaHostAlloc(&memory, sizeof(Told), cudaHostAllocMapped), "cudaHostAlloc");
    told_ = std::shared_ptr<Told>(static_cast<Told*>(memory),
                                  [](Told* mapped) { cudaFreeHost(mapped); });
    *told_ = {};
  }
  // Where kernels report tokens and labels outside a vocabulary of this size.
  Told& outside(std::int64_t vocab) noexcept {
    vocab_ = vocab;
    return *told_;
  }

  // Enqueues a check that raises an Error on the stream; call after the kernels that report.
  void check_behind(Stream& stream) const {
    stream.enqueue([told = told_, vocab = vocab_] {
      const Told found = std::exchange(*told, {});
      refuse("token", found.token, vocab);
      refuse("label", found.label, vocab);
    });
  }

 private:
  static void refuse(const char* what, const BadId& found, std::int64_t vocab) {
    require(found.position == 0, "{} {} at position {} is not in the vocabulary of {}", what,
            found.id, found.position - 1, vocab);
  }

  std::shared_ptr<Told> told_;
  std::int64_t vocab_ = 0;
};

void check_head_dim(std::int64_t head_dim) {
  if (head_dim <= most_head_dim) return;
  fail(ErrorCode::unsupported, "a head of {} elements: the GPU kernels support up to {}", head_dim,
       most_head_dim);
}

void check_norm_width(std::int64_t width, atoll::DType dtype, bool aligned = true) {
  if (width <= norm_width_limit(width, dtype, aligned)) return;
  fail(ErrorCode::unsupported,
       "a row of {} {} elements: the GPU norms support up to {} in rows aligned "
       "to 16 bytes, and half as many otherwise",
       width, atoll::name(dtype), most_norm_width);
}

void require_fp8(const atoll::Device& device) {
  int major = 0, minor = 0;
  for (const auto& [value, attribute] : {std::pair(&major, cudaDevAttrComputeCapabilityMajor),
                                         std::pair(&minor, cudaDevAttrComputeCapabilityMinor)}) {
    atoll::cuda::check(cudaDeviceGetAttribute(value, attribute, device.ordinal()),
                       "cudaDeviceGetAttribute");
  }
  if (major >= 9) return;
  fail(ErrorCode::unsupported,
       "--fp8: {} has compute capability {}.{}, and products in fp8 need 9.0 (H100) or later: "
       "remove the flag",
       device.name(), major, minor);
}

// Operations share scratch memory, because one stream runs them one after another.
class CudaOps final : public Ops {
 public:
  CudaOps(const atoll::Device& device, const CudaOpsOptions& options)
      : device_(device),
        ordinal_(device.ordinal()),
        fp8_(options.fp8),
        matmul_(device),
        attention_(options.deterministic) {
    if (fp8_) require_fp8(device);
  }

  std::uint64_t device_bytes() const override { return MatMul::workspace_bytes + scratch_.bytes(); }

  void reserve(Stream& stream, const LargestShapes& of) override {
    check_norm_width(of.width, of.compute);
    const Current current(ordinal_);
    const std::int64_t tokens = of.attention.rows * of.attention.seq;
    const std::int64_t head_rows = of.head_norms ? tokens * of.attention.heads : 0;
    scratch(stream, std::max({rms_norm_partials(tokens, of.width) * sizeof(float),
                              rms_norm_partials(head_rows, of.attention.head_dim) * sizeof(float),
                              bias_partials(tokens, of.bias_width) * sizeof(float),
                              embedding_scratch(static_cast<std::uint64_t>(tokens), of.width),
                              static_cast<std::size_t>(tokens) * sizeof(double),  // loss per token
                              attention_scratch(of.attention) * sizeof(float),
                              attention_.scratch_bytes(native(stream), of.attention, of.compute),
                              fp8_ ? fp8_scratch(of) : 0}));
  }

  void run_linears_forward(Stream& stream, const LinearsForward& args) override {
    if (!fp8_) return Ops::run_linears_forward(stream, args);
    const Current current(ordinal_);
    fp8_linears_forward(native(stream), matmul_, args, scratch(stream, fp8_scratch(args)));
  }

  void run_linears_backward(Stream& stream, const LinearsBackward& args) override {
    if (!fp8_) return Ops::run_linears_backward(stream, args);
    const Current current(ordinal_);
    fp8_linears_backward(native(stream), matmul_, args, scratch(stream, fp8_scratch(args)));
  }

  void multiply(Stream& stream, const Product& product, ConstView a, ConstView b, View c,
                ConstView residual) override {
    const Current current(ordinal_);
    matmul_.run(native(stream), product, a.data, b.data, c.data, residual.data);
  }

  void compute(Stream& stream, const Operation& operation) override {
    const Current current(ordinal_);
    std::visit([&](const auto& args) { run(stream, args); }, operation);
  }

  void check_ids(Stream& stream) override { ids_.check_behind(stream); }

 private:
  void run(Stream& stream, const RmsNormForward& args) {
    check_norm_width(args.width, args.x.dtype, is_aligned(args));
    cuda::rms_norm_forward(native(stream), args);
  }

  void run(Stream& stream, const RmsNormBackward& args) {
    check_norm_width(args.width, args.x.dtype, is_aligned(args));
    const auto tokens = static_cast<std::int64_t>(args.inverse.count);
    void* const partials = scratch(stream, rms_norm_partials(tokens, args.width) * sizeof(float));
    cuda::rms_norm_backward(native(stream), args, static_cast<float*>(partials));
  }

  void run(Stream& stream, const Scale& args) { cuda::scale(native(stream), args.x, args.factor); }

  void run(Stream& stream, const AddBias& args) {
    cuda::add_bias(native(stream), args.bias, args.y);
  }

  void run(Stream& stream, const BiasBackward& args) {
    const auto tokens = static_cast<std::int64_t>(args.dy.count) / args.width;
    void* const partials = scratch(stream, bias_partials(tokens, args.width) * sizeof(float));
    cuda::bias_backward(native(stream), args, static_cast<float*>(partials));
  }

  void run(Stream& stream, const Rope& args) { cuda::rope(native(stream), args); }

  void run(Stream& stream, const AttentionForward& args) {
    check_head_dim(args.shape.head_dim);
    const bool done = attention_.forward(native(stream), args,
                                         [&](std::size_t bytes) { return scratch(stream, bytes); });
    if (!done) cuda::attention_forward(native(stream), args);
  }

  void run(Stream& stream, const AttentionBackward& args) {
    check_head_dim(args.shape.head_dim);
    const bool done = attention_.backward(
        native(stream), args, [&](std::size_t bytes) { return scratch(stream, bytes); });
    if (done) return;
    void* const deltas = scratch(stream, attention_scratch(args.shape) * sizeof(float));
    cuda::attention_backward(native(stream), args, static_cast<float*>(deltas));
  }

  void run(Stream& stream, const SwigluForward& args) {
    cuda::swiglu_forward(native(stream), args.gate, args.up, args.out);
  }

  void run(Stream& stream, const SwigluBackward& args) {
    cuda::swiglu_backward(native(stream), args);
  }

  void run(Stream& stream, const EmbeddingForward& args) {
    const std::int64_t vocab = static_cast<std::int64_t>(args.table.count) / args.width;
    cuda::embedding_forward(native(stream), args.tokens, args.table, args.out, args.width,
                            &ids_.outside(vocab).token);
  }

  void run(Stream& stream, const EmbeddingBackward& args) {
    void* const memory = scratch(stream, embedding_scratch(args.tokens.count, args.width));
    cuda::embedding_backward(native(stream), args, memory, &ids_.outside(args.vocab).token);
  }

  void run(Stream& stream, const CrossEntropy& args) {
    void* const losses = scratch(stream, args.labels.count * sizeof(double));
    cuda::cross_entropy(native(stream), args, static_cast<double*>(losses),
                        &ids_.outside(args.vocab).label);
  }

  void* scratch(Stream& stream, std::size_t bytes) {
    if (bytes > scratch_.bytes()) {
      stream.synchronize();  // queued work still uses the old scratch
      scratch_ = {};
      scratch_ = device_.allocate(bytes);
    }
    return scratch_.data();
  }

  atoll::Device device_;
  int ordinal_;
  bool fp8_;
  MatMul matmul_;
  Attention attention_;
  IdReport ids_;
  atoll::Buffer scratch_;
};

}  // namespace

void check_usable(const atoll::Device& device) {
  const int ordinal = device.ordinal();
  int bytes = 0;
  atoll::cuda::check(
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal),
      "cudaDeviceGetAttribute");
  if (static_cast<std::size_t>(bytes) < attention_shared_bytes()) {
    fail(ErrorCode::unsupported,
         "{}: a block has {} bytes of shared memory, but the attention kernels need {}; "
         "use an A100, H100, B200 or similar GPU",
         device.name(), bytes, attention_shared_bytes());
  }
  MatMul::find_library();
}

std::unique_ptr<Ops> make_ops(const atoll::Device& device, const CudaOpsOptions& options) {
  check_usable(device);
  const Current current(device.ordinal());
  return std::make_unique<CudaOps>(device, options);
}

}  // namespace train::cuda
