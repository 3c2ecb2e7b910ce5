#include "nccl.hpp"

#include <fmt/format.h>

#include "atoll/cuda/context.hpp"
#include "atoll/plugin.h"
#include "sdk/guard.hpp"

namespace atoll_nccl {
namespace {

atoll_status status_of(ncclResult_t result) {
  switch (result) {
    case ncclRemoteError:
      return ATOLL_PEER_LOST;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return ATOLL_INVALID_ARGUMENT;
    case ncclSuccess:
    case ncclUnhandledCudaError:
    case ncclSystemError:
    case ncclInternalError:
    case ncclInProgress:
    case ncclNumResults:
      break;
  }
  return ATOLL_BACKEND;
}

}  // namespace

void check(ncclResult_t result, std::string_view call, ncclComm_t comm) {
  if (result == ncclSuccess) return;
  const char* noted = ncclGetLastError(comm);
  std::string more =
      noted != nullptr && *noted != '\0' ? fmt::format(" ({})", noted) : std::string();
  if (more.find("Duplicate GPU") != std::string::npos) {
    more += ": ranks can share a GPU only if each rank is a process with a different NCCL_HOSTID";
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
  switch (dtype) {
    case ATOLL_F32:
      return ncclFloat32;
    case ATOLL_BF16:
      return ncclBfloat16;
    case ATOLL_F16:
      return ncclFloat16;
    case ATOLL_F64:
      return ncclFloat64;
    case ATOLL_I32:
      return ncclInt32;
    case ATOLL_I64:
      return ncclInt64;
    case ATOLL_U8:
      return ncclUint8;
  }
  throw Error(ATOLL_INVALID_ARGUMENT, fmt::format("unknown dtype {}", dtype));
}

ncclRedOp_t op_of(std::int32_t op) {
  switch (op) {
    case ATOLL_SUM:
      return ncclSum;
    case ATOLL_AVG:
      return ncclAvg;
    case ATOLL_MIN:
      return ncclMin;
    case ATOLL_MAX:
      return ncclMax;
  }
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
