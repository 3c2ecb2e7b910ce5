// NCCL's words, and its results as errors. The only header here that includes nccl.h.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace atoll_sdk::nccl {

// Throws Error(ATOLL_BACKEND, ATOLL_PEER_LOST for a remote error, ATOLL_INVALID_ARGUMENT) with the
// name of the call, NCCL's text, and what it noted last about `comm`, which may be NULL. A result
// of ncclInProgress is none that a call ends with.
void check(ncclResult_t result, std::string_view call, ncclComm_t comm = nullptr);
void check(cudaError_t result, std::string_view call);

ncclDataType_t type_of(std::int32_t dtype);
ncclRedOp_t op_of(std::int32_t op);

// The device is current as long as this lives, then the one before.
class Current {
 public:
  explicit Current(int device);
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current();

 private:
  int before_ = -1;
};

}  // namespace atoll_sdk::nccl
