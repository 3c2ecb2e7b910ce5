// Defines cuda_arithmetic() for builds without CUDA.
#include "arithmetic.hpp"
#include "atoll/error.hpp"

namespace muon {

std::shared_ptr<Arithmetic> cuda_arithmetic(const atoll::Device&) {
  throw atoll::Error(atoll::ErrorCode::unsupported, "Muon: this build is without CUDA");
}

}  // namespace muon
