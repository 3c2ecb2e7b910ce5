// cuBLASLt for the emulated GPU. Contains the functions that the trainer calls, with one simple
// loop for all matrix products. The library has the file name of the real cuBLASLt and uses the
// streams of the program that loads it.
#include <cublasLt.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

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
};

// Algorithms: cuBLASLt's first choice is not the fastest, and another does not run at all.
constexpr std::uint64_t fast = 0, slow = 1, broken = 2;
constexpr std::array<std::uint64_t, 3> algorithms{slow, broken, fast};

const Layout& layout(cublasLtMatrixLayout_t handle) {
  return *reinterpret_cast<const Layout*>(handle);
}

bool known(cudaDataType_t type) { return type == CUDA_R_32F || type == CUDA_R_16BF; }

float read(const void* data, const Layout& of, std::uint64_t row, std::uint64_t column) {
  const std::uint64_t at = row + column * static_cast<std::uint64_t>(of.stride);
  if (of.type == CUDA_R_32F) return static_cast<const float*>(data)[at];
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
  if (attribute == CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET) {
    std::int32_t count = 0;
    if (bytes != sizeof count) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&count, value, bytes);
    return count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
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

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  constexpr int known_algorithms = 3;
  *found = std::clamp(wanted, 0, known_algorithms);
  for (int i = 0; i < *found; ++i) {
    results[i] = {};
    // A caller that wants one algorithm gets one without delay.
    results[i].algo.data[0] = wanted == 1 ? fast : algorithms[static_cast<std::size_t>(i)];
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  return algorithm->data[0] == fast || algorithm->data[0] == slow ? CUBLAS_STATUS_SUCCESS
                                                                  : CUBLAS_STATUS_NOT_SUPPORTED;
}

std::size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void*, std::size_t,
                              cudaStream_t stream) {
  const std::uint64_t chosen = algorithm->data[0];
  if (chosen != fast && chosen != slow) return CUBLAS_STATUS_NOT_SUPPORTED;
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
  const float factor = *static_cast<const float*>(alpha), kept = *static_cast<const float*>(beta);
  emulated::enqueue(stream, [=] {
    if (chosen == slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (std::uint64_t column = 0; column < n; ++column) {
      for (std::uint64_t row = 0; row < m; ++row) {
        float sum = 0;
        for (std::uint64_t i = 0; i < k; ++i) {
          sum += (left_turned ? read(a, left, i, row) : read(a, left, row, i)) *
                 (right_turned ? read(b, right, column, i) : read(b, right, i, column));
        }
        const float before = kept == 0 ? 0 : kept * read(c, old, row, column);
        write(d, out, row, column, factor * sum + before);
      }
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // end of extern "C"
