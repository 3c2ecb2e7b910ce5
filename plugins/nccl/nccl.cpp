#include "nccl.hpp"

#include <fmt/format.h>

#include <array>

#include "atoll/cuda/context.hpp"
#include "atoll/plugin_names.hpp"

namespace atoll_nccl {
namespace {

atoll_status status_of(ncclResult_t result) {
  if (result == ncclRemoteError) return ATOLL_PEER_LOST;
  const bool is_misuse = result == ncclInvalidArgument || result == ncclInvalidUsage;
  return is_misuse ? ATOLL_INVALID_ARGUMENT : ATOLL_BACKEND;
}

}  // namespace

void check(ncclResult_t result, std::string_view call, ncclComm_t comm) {
  if (result == ncclSuccess) return;
  const char* noted = ncclGetLastError(comm);
  std::string more =
      noted != nullptr && *noted != '\0' ? fmt::format(" ({})", noted) : std::string();
  if (more.find("Duplicate GPU") != std::string::npos) {
    more +=
        ": ranks can share a GPU only if each rank is a process of its own with a different "
        "NCCL_HOSTID";
  }
  throw Error(status_of(result), fmt::format("{}: {}{}", call, ncclGetErrorString(result), more));
}

void check(cudaError_t result, std::string_view call) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // clears the error, so that the next CUDA call does not report it
  throw Error(result == cudaErrorMemoryAllocation ? ATOLL_OUT_OF_MEMORY : ATOLL_BACKEND,
              fmt::format("{}: {}", call, cudaGetErrorString(result)));
}

ncclDataType_t type_of(std::int32_t dtype) {
  // The NCCL types, in the order of the enumerators of atoll_dtype. NCCL has no 16-bit integers,
  // and 8-bit floating-point types only for some GPUs. Operations only move these types, so types
  // of the same size represent them.
  constexpr std::array types{ncclFloat32, ncclBfloat16, ncclFloat16, ncclFloat64, ncclInt32,
                             ncclInt64,   ncclUint8,    ncclInt8,    ncclFloat16, ncclUint32,
                             ncclUint64,  ncclUint8,    ncclUint8,   ncclFloat16, ncclUint8};
  static_assert(types.size() == atoll_abi::dtypes.size());
  if (atoll_abi::within(types, dtype)) return types[static_cast<std::size_t>(dtype)];
  throw Error(ATOLL_INVALID_ARGUMENT, fmt::format("unknown dtype {}", dtype));
}

ncclRedOp_t op_of(std::int32_t op) {
  // The NCCL operators, in the order of the enumerators of atoll_reduce_op.
  constexpr std::array ops{ncclSum, ncclAvg, ncclMin, ncclMax, ncclProd};
  static_assert(ops.size() == ATOLL_BAND);  // capability() refuses operators of bits
  if (atoll_abi::within(ops, op)) return ops[static_cast<std::size_t>(op)];
  throw Error(ATOLL_INVALID_ARGUMENT, fmt::format("unknown reduction {}", op));
}

Current::Current(int device) {
  check(cudaGetDevice(&before_), "cudaGetDevice");
  if (device == before_) {
    before_ = -1;
  } else {
    check(cudaSetDevice(device), "cudaSetDevice");
  }
}

Current::~Current() {
  if (before_ >= 0 && atoll_abi::has_cuda_context(before_)) cudaSetDevice(before_);
}

}  // namespace atoll_nccl
