// cuBLASLt expects column-major matrices, and a row-major matrix is the transpose of the
// column-major one in the same memory. c = a b is therefore computed as c^T = b^T a^T: the operands
// change places and keep their transposition flags.
#include "model/cuda/matmul.hpp"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <map>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "atoll/cuda.hpp"
#include "atoll/cuda/runtime.hpp"
#include "fail.hpp"
#include "model/cuda/cuda_ops.hpp"
#include "model/cuda/library.hpp"

namespace train::cuda {
namespace {

using atoll::DType;
using atoll::cuda::Current;
using atoll::cuda::native;

// Limits the cache: batches of unequal length produce many shapes.
constexpr std::size_t most_shapes = 2048;

#define ATOLL_CUBLASLT(function, name) \
  decltype(::name)* function = library.find<decltype(::name)>(#name)

// The functions of cuBLASLt that MatMul calls.
struct CublasLt {
  Library library{fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), "matrix products on GPUs"};
  ATOLL_CUBLASLT(create, cublasLtCreate);
  ATOLL_CUBLASLT(destroy, cublasLtDestroy);
  ATOLL_CUBLASLT(status_string, cublasLtGetStatusString);
  ATOLL_CUBLASLT(desc_create, cublasLtMatmulDescCreate);
  ATOLL_CUBLASLT(desc_destroy, cublasLtMatmulDescDestroy);
  ATOLL_CUBLASLT(desc_set, cublasLtMatmulDescSetAttribute);
  ATOLL_CUBLASLT(layout_create, cublasLtMatrixLayoutCreate);
  ATOLL_CUBLASLT(layout_destroy, cublasLtMatrixLayoutDestroy);
  ATOLL_CUBLASLT(preference_create, cublasLtMatmulPreferenceCreate);
  ATOLL_CUBLASLT(preference_destroy, cublasLtMatmulPreferenceDestroy);
  ATOLL_CUBLASLT(preference_set, cublasLtMatmulPreferenceSetAttribute);
  ATOLL_CUBLASLT(heuristic, cublasLtMatmulAlgoGetHeuristic);
  ATOLL_CUBLASLT(matmul, cublasLtMatmul);

  void check(cublasStatus_t status, std::string_view what) const {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    fail(status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorCode::out_of_memory : ErrorCode::backend,
         "cuBLASLt: {}: {}", what, status_string(status));
  }
};

#undef ATOLL_CUBLASLT

// Owns a cuBLASLt handle, which is a pointer to an opaque struct.
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;

cudaDataType_t type_of(DType dtype) { return is_bf16(dtype) ? CUDA_R_16BF : CUDA_R_32F; }

// Alignment of an address in bytes, capped where algorithms stop distinguishing it.
std::uint32_t alignment(const void* address) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  return 1u << std::min(8, std::countr_zero(value));
}

std::string to_string(const Product& product) {
  return fmt::format("matrix product {} x {} x {}, {} to {}", product.m, product.n, product.k,
                     atoll::name(product.in), atoll::name(product.out));
}

struct Key {
  Product product;
  std::array<std::uint32_t, 3> alignments;
  friend auto operator<=>(const Key&, const Key&) = default;
};

struct Prepared {
  Owned<cublasLtMatmulDesc_t> desc;
  Owned<cublasLtMatrixLayout_t> left, right, out;
  cublasLtMatmulAlgo_t algorithm;
};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Measures square products of one size.
class PeakProduct {
 public:
  PeakProduct(const atoll::Device& device, DType dtype, std::int64_t size)
      : size_(size), dtype_(dtype), stream_(device.stream({.name = "peak"})), matmul_(device) {
    const auto elements = static_cast<std::size_t>(size * size);
    for (atoll::Buffer& matrix : matrices_) matrix = device.allocate(elements * size_of(dtype));
    fill(matrices_[0]);
    fill(matrices_[1]);
    seconds(1);
  }
  double operations() const {
    const auto n = static_cast<double>(size_);
    return 2 * n * n * n;
  }
  // Returns the time of `batch` consecutive products in seconds.
  double seconds(int batch) {
    const Product product{size_,
                          size_,
                          size_,
                          Operand::plain,
                          Operand::transposed,
                          dtype_,
                          dtype_,
                          WriteMode::overwrite};
    stream_.synchronize();
    const auto start = Clock::now();
    for (int i = 0; i < batch; ++i) {
      matmul_.run(native(stream_), product, matrices_[0].data(), matrices_[1].data(),
                  matrices_[2].data());
    }
    stream_.synchronize();
    return seconds_since(start);
  }

 private:
  // Repeats a block of normal values, because zeros need less power and run unrealistically fast.
  void fill(const atoll::Buffer& matrix) {
    std::vector<std::byte> block(std::min(matrix.bytes(), std::size_t{1} << 18));
    const atoll::View values(block.data(), block.size() / size_of(dtype_), dtype_);
    std::normal_distribution<float> normal;
    for (std::uint64_t i = 0; i < values.count; ++i) {
      const float value = normal(random_);
      if (is_bf16(dtype_)) {
        values.as<atoll::bfloat16>()[i] = atoll::to_bfloat16(value);
      } else {
        values.as<float>()[i] = value;
      }
    }
    auto* const first = static_cast<std::byte*>(matrix.data());
    stream_.copy(first, block.data(), block.size());
    for (std::size_t done = block.size(); done < matrix.bytes();) {
      const std::size_t more = std::min(done, matrix.bytes() - done);
      stream_.copy(first + done, first, more);
      done += more;
    }
    stream_.synchronize();
  }

  std::mt19937 random_{1};
  std::int64_t size_;
  DType dtype_;
  std::array<atoll::Buffer, 3> matrices_;
  atoll::Stream stream_;
  MatMul matmul_;
};

}  // namespace

struct MatMul::Impl {
  explicit Impl(const atoll::Device& device)
      : handle(make_handle(lt)), workspace(device.allocate(workspace_bytes)) {}

  CublasLt lt;
  Owned<cublasLtHandle_t> handle;
  atoll::Buffer workspace;
  std::map<Key, Prepared> cache;

  static Owned<cublasLtHandle_t> make_handle(const CublasLt& lt) {
    cublasLtHandle_t made = nullptr;
    lt.check(lt.create(&made), "cublasLtCreate");
    return Owned<cublasLtHandle_t>(made, lt.destroy);
  }

  // Describes a row-major matrix of `rows` x `columns` as stored.
  Owned<cublasLtMatrixLayout_t> layout(DType dtype, std::int64_t rows, std::int64_t columns) const {
    cublasLtMatrixLayout_t made = nullptr;
    lt.check(lt.layout_create(&made, type_of(dtype), static_cast<std::uint64_t>(columns),
                              static_cast<std::uint64_t>(rows), columns),
             "cublasLtMatrixLayoutCreate");
    return Owned<cublasLtMatrixLayout_t>(made, lt.layout_destroy);
  }

  Owned<cublasLtMatmulDesc_t> description(const Product& product) const {
    cublasLtMatmulDesc_t made = nullptr;
    lt.check(lt.desc_create(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    Owned<cublasLtMatmulDesc_t> desc(made, lt.desc_destroy);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, Operand operand) {
      const cublasOperation_t value = operand == Operand::transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
      lt.check(lt.desc_set(made, attribute, &value, sizeof value),
               "cublasLtMatmulDescSetAttribute");
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, product.b);
    set(CUBLASLT_MATMUL_DESC_TRANSB, product.a);
    return desc;
  }

  Owned<cublasLtMatmulPreference_t> preference(const Key& key) const {
    cublasLtMatmulPreference_t made = nullptr;
    lt.check(lt.preference_create(&made), "cublasLtMatmulPreferenceCreate");
    Owned<cublasLtMatmulPreference_t> preference(made, lt.preference_destroy);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      lt.check(lt.preference_set(made, attribute, &value, sizeof value),
               "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_bytes});
    // Split sums keep their parts in the workspace, in f32, and combine them in order.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignments[1]);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignments[0]);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignments[2]);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignments[2]);
    return preference;
  }

  const Prepared& prepared(const Key& key) {
    if (const auto found = cache.find(key); found != cache.end()) return found->second;
    if (cache.size() >= most_shapes) cache.clear();
    const Product& product = key.product;
    const auto operand = [&](Operand kind, std::int64_t rows, std::int64_t columns) {
      return kind == Operand::plain ? layout(product.in, rows, columns)
                                    : layout(product.in, columns, rows);
    };
    Prepared made{description(product),
                  operand(product.b, product.k, product.n),
                  operand(product.a, product.m, product.k),
                  layout(product.out, product.m, product.n),
                  {}};
    const auto preferred = preference(key);
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    lt.check(lt.heuristic(handle.get(), made.desc.get(), made.left.get(), made.right.get(),
                          made.out.get(), made.out.get(), preferred.get(), 1, &result, &found),
             to_string(product));
    if (found == 0) {
      fail(ErrorCode::unsupported, "cuBLASLt has no algorithm for a {}", to_string(product));
    }
    made.algorithm = result.algo;
    return cache.emplace(key, std::move(made)).first->second;
  }
};

void MatMul::find_library() { const CublasLt found; }

MatMul::MatMul(const atoll::Device& device) : impl_(std::make_unique<Impl>(device)) {}

MatMul::~MatMul() = default;

void MatMul::run(cudaStream_t stream, const Product& product, const void* a, const void* b, void* c,
                 const void* residual) {
  // cuBLASLt computes c = a b + kept * old, and does not read `old` if kept is 0.
  const void* const old = residual != nullptr ? residual : c;
  const bool adds = residual != nullptr || product.mode == WriteMode::accumulate;
  const Prepared& with = impl_->prepared(
      {product, {alignment(a), alignment(b), std::min(alignment(old), alignment(c))}});
  const float one = 1, kept = adds ? 1.0f : 0.0f;
  const CublasLt& lt = impl_->lt;
  lt.check(lt.matmul(impl_->handle.get(), with.desc.get(), &one, b, with.left.get(), a,
                     with.right.get(), &kept, old, with.out.get(), c, with.out.get(),
                     &with.algorithm, impl_->workspace.data(), impl_->workspace.bytes(), stream),
           to_string(product));
}

double matrix_peak_flops(const atoll::Device& device, DType dtype, double seconds) {
  constexpr std::int64_t smallest = 128, largest = 8192;
  constexpr int batch = 4;
  const Current current(device.ordinal());
  // A separate Device, so that the caller's peak_allocated_bytes() ignores this memory.
  const atoll::Device own = atoll::Device::cuda(device.ordinal());
  double best = 0;
  for (std::int64_t size = smallest; size <= largest; size *= 2) {
    try {
      PeakProduct product(own, dtype, size);
      const auto start = Clock::now();
      double once = 0;
      do {
        once = product.seconds(batch) / batch;
        best = std::max(best, product.operations() / once);
      } while (size == largest && seconds_since(start) < seconds);
      // The next size would take 8 times as long, which exceeds the time limit.
      if (8 * batch * once > seconds) break;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::out_of_memory || best == 0) throw;
      break;  // too little GPU memory is free for a workspace of this size
    }
  }
  return best;
}

}  // namespace train::cuda
