// Defines the functions of the folder cuda for builds without CUDA.
#include "fail.hpp"
#include "model/cuda/cuda_ops.hpp"

namespace train::cuda {
namespace {

[[noreturn]] void refuse() {
  fail(ErrorCode::unsupported, "this build of the trainer is without CUDA");
}

}  // namespace

void check_usable(const atoll::Device&) { refuse(); }

std::unique_ptr<Ops> make_ops(const atoll::Device&, const CudaOpsOptions&) { refuse(); }

double matrix_peak_flops(const atoll::Device&, atoll::DType, double) { refuse(); }

}  // namespace train::cuda
