// Translates to and from NCCL: types, reductions, errors. The only header here that includes
// nccl.h.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "sdk/guard.hpp"

namespace atoll_nccl {

using namespace atoll_sdk;

// Throws an Error with the name of the call, NCCL's text, and NCCL's last error about `comm`, which
// may be null. The status is ATOLL_PEER_LOST for a remote error, ATOLL_INVALID_ARGUMENT for invalid
// use, and ATOLL_BACKEND otherwise. `result` is not ncclInProgress.
void check(ncclResult_t result, std::string_view call, ncclComm_t comm = nullptr);
void check(cudaError_t result, std::string_view call);

ncclDataType_t type_of(std::int32_t dtype);
ncclRedOp_t op_of(std::int32_t op);

// Makes a device current for the lifetime of this object and restores the previous device then,
// unless that would create a context.
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
