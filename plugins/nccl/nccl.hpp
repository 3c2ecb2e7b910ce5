// Translates types, reductions and errors between atoll and NCCL.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "sdk/backend.hpp"

namespace atoll_nccl {

using namespace atoll_sdk;

// Throws an Error unless the call succeeded. The text contains the name of the call, NCCL's
// description of the result, and NCCL's last error for `comm`, which may be null. The status is
// ATOLL_PEER_LOST for a remote error, ATOLL_INVALID_ARGUMENT for invalid use, and ATOLL_BACKEND
// otherwise. `result` must not be ncclInProgress.
void check(ncclResult_t result, std::string_view call, ncclComm_t comm = nullptr);
void check(cudaError_t result, std::string_view call);

// Combines the results of two calls in one NCCL group. Returns the first error; without an error,
// returns ncclInProgress if either call is in progress.
inline ncclResult_t worse(ncclResult_t a, ncclResult_t b) {
  const bool fine = a == ncclSuccess || a == ncclInProgress;
  if (!fine) return a;
  return b == ncclSuccess ? a : b;
}

ncclDataType_t type_of(std::int32_t dtype);
ncclRedOp_t op_of(std::int32_t op);

// Makes a GPU the current device of the thread for the lifetime of this object. The destructor
// restores the previous device, unless that would create a CUDA context.
class Current {
 public:
  explicit Current(int device);
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current();

 private:
  int before_ = -1;
};

}  // namespace atoll_nccl
