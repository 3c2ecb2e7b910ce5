// cuBLASLt expects column-major matrices, and a row-major matrix is the transpose of the
// column-major one in the same memory. c = a b is therefore computed as c^T = b^T a^T: the operands
// change places and keep their transposition flags.
#include "model/cuda/matmul.hpp"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "fail.hpp"
#include "model/cuda/library.hpp"

namespace train::cuda {
namespace {

using atoll::DType;

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

// The types of the operands of a product.
using Types = std::array<cudaDataType_t, 2>;

cudaDataType_t type_of(DType dtype) { return is_bf16(dtype) ? CUDA_R_16BF : CUDA_R_32F; }
cudaDataType_t type_of(Fp8 format) { return format == Fp8::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2; }

std::string_view name(cudaDataType_t type) {
  if (type == CUDA_R_8F_E4M3) return "e4m3";
  if (type == CUDA_R_8F_E5M2) return "e5m2";
  return atoll::name(type == CUDA_R_16BF ? DType::bf16 : DType::f32);
}

// Alignment of an address in bytes, capped where algorithms stop distinguishing it.
std::uint32_t alignment(const void* address) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  return 1u << std::min(8, std::countr_zero(value));
}

struct ProductKey {
  Product product;
  std::array<std::uint32_t, 3> alignments;
  Types types;
  friend auto operator<=>(const ProductKey&, const ProductKey&) = default;
};

std::string to_string(const ProductKey& key) {
  const auto [a, b] = key.types;
  return fmt::format("matrix product {} x {} x {}, {} to {}", key.product.m, key.product.n,
                     key.product.k,
                     a == b ? std::string(name(a)) : fmt::format("{} by {}", name(a), name(b)),
                     atoll::name(key.product.out));
}

struct Prepared {
  Owned<cublasLtMatmulDesc_t> desc;
  Owned<cublasLtMatrixLayout_t> left, right, out;
  cublasLtMatmulAlgo_t algorithm;
};

// The arguments of one matrix product: c = a b + kept * old.
struct Call {
  cudaStream_t stream;
  const void* a;
  const void* b;
  const void* old;
  void* c;
  float kept;
  std::array<const float*, 2> inverses = {};  // Fp8Scale::inverse of a and b if they are fp8
};

}  // namespace

struct MatMul::Impl {
  explicit Impl(const atoll::Device& device)
      : handle(make_handle(lt)), workspace(device.allocate(workspace_bytes)) {}

  CublasLt lt;
  Owned<cublasLtHandle_t> handle;
  atoll::Buffer workspace;
  std::map<ProductKey, Prepared> cache;

  static Owned<cublasLtHandle_t> make_handle(const CublasLt& lt) {
    cublasLtHandle_t made = nullptr;
    lt.check(lt.create(&made), "cublasLtCreate");
    return Owned<cublasLtHandle_t>(made, lt.destroy);
  }

  // Describes a row-major matrix of `rows` x `columns` as stored.
  Owned<cublasLtMatrixLayout_t> layout(cudaDataType_t type, std::int64_t rows,
                                       std::int64_t columns) const {
    cublasLtMatrixLayout_t made = nullptr;
    lt.check(lt.layout_create(&made, type, static_cast<std::uint64_t>(columns),
                              static_cast<std::uint64_t>(rows), columns),
             "cublasLtMatrixLayoutCreate");
    return Owned<cublasLtMatrixLayout_t>(made, lt.layout_destroy);
  }

  template <class Value>
  void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
           const Value& value) const {
    lt.check(lt.desc_set(desc, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }

  Owned<cublasLtMatmulDesc_t> description(const ProductKey& key) const {
    cublasLtMatmulDesc_t made = nullptr;
    lt.check(lt.desc_create(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    Owned<cublasLtMatmulDesc_t> desc(made, lt.desc_destroy);
    const auto operation = [](Operand operand) {
      return operand == Operand::transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    };
    set(made, CUBLASLT_MATMUL_DESC_TRANSA, operation(key.product.b));
    set(made, CUBLASLT_MATMUL_DESC_TRANSB, operation(key.product.a));
    if (key.types == Types{CUDA_R_8F_E4M3, CUDA_R_8F_E4M3}) {
      set(made, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
    }
    return desc;
  }

  Owned<cublasLtMatmulPreference_t> preference(const ProductKey& key) const {
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

  // Sets the scales of fp8 operands: the addresses of the inverse scales of b and a.
  void set_scales(const Prepared& with, const Call& call) const {
    if (call.inverses[0] == nullptr) return;
    set(with.desc.get(), CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.inverses[1]);
    set(with.desc.get(), CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.inverses[0]);
  }

  // The algorithm that cuBLASLt expects to be fastest for a product.
  cublasLtMatmulAlgo_t algorithm(const ProductKey& key, const Prepared& made) const {
    const auto preferred = preference(key);
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    lt.check(lt.heuristic(handle.get(), made.desc.get(), made.left.get(), made.right.get(),
                          made.out.get(), made.out.get(), preferred.get(), 1, &result, &found),
             to_string(key));
    if (found == 0) {
      fail(ErrorCode::unsupported, "cuBLASLt has no algorithm for a {}", to_string(key));
    }
    return result.algo;
  }

  const Prepared& prepared(const ProductKey& key, const Call& call) {
    if (const auto found = cache.find(key); found != cache.end()) return found->second;
    if (cache.size() >= most_shapes) cache.clear();
    const Product& product = key.product;
    const auto operand = [&](cudaDataType_t type, Operand kind, std::int64_t rows,
                             std::int64_t columns) {
      return kind == Operand::plain ? layout(type, rows, columns) : layout(type, columns, rows);
    };
    Prepared made{description(key),
                  operand(key.types[1], product.b, product.k, product.n),
                  operand(key.types[0], product.a, product.m, product.k),
                  layout(type_of(product.out), product.m, product.n),
                  {}};
    set_scales(made, call);
    made.algorithm = algorithm(key, made);
    return cache.emplace(key, std::move(made)).first->second;
  }

  // cuBLASLt computes c = a b + kept * old, and does not read `old` if kept is 0.
  static Call call_of(cudaStream_t stream, const Product& product, const void* a, const void* b,
                      void* c, const void* residual) {
    const bool adds = residual != nullptr || product.mode == WriteMode::accumulate;
    return {stream, a, b, residual != nullptr ? residual : c, c, adds ? 1.0f : 0.0f};
  }

  void run(const Product& product, const Types& types, const Call& call) {
    const ProductKey key{
        product,
        {alignment(call.a), alignment(call.b), std::min(alignment(call.old), alignment(call.c))},
        types};
    const Prepared& with = prepared(key, call);
    const float one = 1;
    set_scales(with, call);
    lt.check(
        lt.matmul(handle.get(), with.desc.get(), &one, call.b, with.left.get(), call.a,
                  with.right.get(), &call.kept, call.old, with.out.get(), call.c, with.out.get(),
                  &with.algorithm, workspace.data(), workspace.bytes(), call.stream),
        to_string(key));
  }
};

void MatMul::find_library() { const CublasLt found; }

MatMul::MatMul(const atoll::Device& device) : impl_(std::make_unique<Impl>(device)) {}

MatMul::~MatMul() = default;

void MatMul::run(cudaStream_t stream, const Product& product, const void* a, const void* b, void* c,
                 const void* residual) {
  const cudaDataType_t type = type_of(product.in);
  impl_->run(product, {type, type}, Impl::call_of(stream, product, a, b, c, residual));
}

void MatMul::run(cudaStream_t stream, const Product& product, const Fp8Operand& a,
                 const Fp8Operand& b, void* c, const void* residual) {
  Call call = Impl::call_of(stream, product, a.data, b.data, c, residual);
  call.inverses = {a.inverse, b.inverse};
  impl_->run(product, {type_of(a.format), type_of(b.format)}, call);
}

}  // namespace train::cuda
