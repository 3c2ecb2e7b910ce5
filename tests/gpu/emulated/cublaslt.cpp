// cuBLASLt for the emulated GPU. Contains the functions that the trainer calls, with one simple
// loop for all matrix products. The library has the file name of the real cuBLASLt and uses the
// streams of the program that loads it.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "emulated.hpp"

struct cublasLtContext {};

namespace {

struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t stride;  // number of elements from the start of a column to the start of the next
};
struct Description {
  cublasOperation_t left = CUBLAS_OP_N, right = CUBLAS_OP_N;
  const float *left_scale = nullptr, *right_scale = nullptr;  // device memory, for fp8
  bool sums_fast = false;  // sums with fewer bits, allowed for fp8 alone
};

// The id of the only algorithm, which the heuristic returns for every product.
constexpr std::uint64_t only = 4;

const Layout& layout(cublasLtMatrixLayout_t handle) {
  return *reinterpret_cast<const Layout*>(handle);
}

bool is_fp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
bool known(cudaDataType_t type) {
  return type == CUDA_R_32F || type == CUDA_R_16BF || is_fp8(type);
}

// The real library's rules for fp8 on an H100: the left operand transposed, not both e5m2, and
// columns whose bytes are multiples of 16.
bool allowed_in_fp8(const Description& description, const Layout& left, const Layout& right,
                    const Layout& out) {
  constexpr std::int64_t granularity = 16;
  const bool one_e4m3 = left.type == CUDA_R_8F_E4M3 || right.type == CUDA_R_8F_E4M3;
  return is_fp8(left.type) && is_fp8(right.type) && one_e4m3 && !is_fp8(out.type) &&
         description.left == CUBLAS_OP_T && description.right == CUBLAS_OP_N &&
         description.left_scale != nullptr && description.right_scale != nullptr &&
         left.stride % granularity == 0 && right.stride % granularity == 0 &&
         out.stride % granularity == 0;
}

// Whether the real library has algorithms for these types.
bool allowed(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t left, cublasLtMatrixLayout_t right,
             cublasLtMatrixLayout_t out) {
  const auto& description = *reinterpret_cast<const Description*>(desc);
  if (!is_fp8(layout(left).type) && !is_fp8(layout(right).type)) return !description.sums_fast;
  return allowed_in_fp8(description, layout(left), layout(right), layout(out));
}

bool aligned(std::initializer_list<const void*> addresses) {
  return std::ranges::all_of(addresses, [](const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
  });
}

// Returns the values of all 256 bytes in an fp8 format.
const std::array<float, 256>& numbers_of(cudaDataType_t type) {
  const auto make = [](__nv_fp8_interpretation_t format) {
    std::array<float, 256> numbers{};
    for (std::size_t byte = 0; byte < numbers.size(); ++byte) {
      const auto storage = static_cast<__nv_fp8_storage_t>(byte);
      numbers[byte] = __half2float(__half(__nv_cvt_fp8_to_halfraw(storage, format)));
    }
    return numbers;
  };
  static const auto e4m3 = make(__NV_E4M3), e5m2 = make(__NV_E5M2);
  return type == CUDA_R_8F_E4M3 ? e4m3 : e5m2;
}

float read(const void* data, const Layout& of, std::uint64_t row, std::uint64_t column) {
  const std::uint64_t at = row + column * static_cast<std::uint64_t>(of.stride);
  if (of.type == CUDA_R_32F) return static_cast<const float*>(data)[at];
  if (is_fp8(of.type)) {
    return numbers_of(of.type)[static_cast<const std::uint8_t*>(data)[at]];
  }
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
}

void write(void* data, const Layout& of, std::uint64_t row, std::uint64_t column, float value) {
  const std::uint64_t at = row + column * static_cast<std::uint64_t>(of.stride);
  if (of.type == CUDA_R_32F) {
    static_cast<float*>(data)[at] = value;
  } else {
    static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(value);
  }
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "refused by the emulated GPU"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Description);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete reinterpret_cast<Description*>(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  auto& description = *reinterpret_cast<Description*>(desc);
  if (attribute == CUBLASLT_MATMUL_DESC_FAST_ACCUM) {
    std::int8_t is_fast = 0;
    if (bytes != sizeof is_fast) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&is_fast, value, bytes);
    description.sums_fast = is_fast != 0;
    return CUBLAS_STATUS_SUCCESS;
  }
  if (attribute == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER ||
      attribute == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER) {
    const bool of_left = attribute == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER;
    if (bytes != sizeof(const float*)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(of_left ? &description.left_scale : &description.right_scale, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (bytes != sizeof(cublasOperation_t)) return CUBLAS_STATUS_INVALID_VALUE;
  const bool left = attribute == CUBLASLT_MATMUL_DESC_TRANSA;
  if (!left && attribute != CUBLASLT_MATMUL_DESC_TRANSB) return CUBLAS_STATUS_NOT_SUPPORTED;
  std::memcpy(left ? &description.left : &description.right, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* handle, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t stride) {
  if (!known(type) || stride < static_cast<std::int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
  delete reinterpret_cast<Layout*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t{};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, std::size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t left,
    cublasLtMatrixLayout_t right, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t out,
    cublasLtMatmulPreference_t, int wanted, cublasLtMatmulHeuristicResult_t* results, int* found) {
  *found = 0;
  if (!allowed(desc, left, right, out)) return CUBLAS_STATUS_NOT_SUPPORTED;
  *found = std::min(wanted, 1);
  if (wanted > 0) results[0] = {};
  if (wanted > 0) results[0].algo.data[0] = only;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void*, std::size_t,
                              cudaStream_t stream) {
  const float factor = *static_cast<const float*>(alpha), kept = *static_cast<const float*>(beta);
  if (algorithm->data[0] != only || !allowed(desc, a_layout, b_layout, d_layout)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const Description description = *reinterpret_cast<Description*>(desc);
  const Layout left = layout(a_layout), right = layout(b_layout), old = layout(c_layout),
               out = layout(d_layout);
  const bool left_turned = description.left == CUBLAS_OP_T;
  const bool right_turned = description.right == CUBLAS_OP_T;
  const std::uint64_t m = left_turned ? left.columns : left.rows;
  const std::uint64_t k = left_turned ? left.rows : left.columns;
  const std::uint64_t n = right_turned ? right.rows : right.columns;
  if (k != (right_turned ? right.columns : right.rows) || out.rows != m || out.columns != n) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool in_fp8 = is_fp8(left.type) || is_fp8(right.type);
  if (in_fp8 && !aligned({a, b, c, d})) return CUBLAS_STATUS_NOT_SUPPORTED;
  ++emulated::launches().products;
  emulated::enqueue(stream, [=] {
    const float scaled =
        in_fp8 ? factor * *description.left_scale * *description.right_scale : factor;
    for (std::uint64_t column = 0; column < n; ++column) {
      for (std::uint64_t row = 0; row < m; ++row) {
        float sum = 0;
        for (std::uint64_t i = 0; i < k; ++i) {
          sum += (left_turned ? read(a, left, i, row) : read(a, left, row, i)) *
                 (right_turned ? read(b, right, column, i) : read(b, right, i, column));
        }
        const float before = kept == 0 ? 0 : kept * read(c, old, row, column);
        write(d, out, row, column, scaled * sum + before);
      }
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // end of extern "C"
