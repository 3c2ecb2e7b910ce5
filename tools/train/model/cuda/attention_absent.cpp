// Replaces attention_cudnn.cpp in builds without cuDNN's headers.
#include "model/cuda/attention.hpp"

namespace train::cuda {

struct Attention::Impl {};

Attention::Attention(bool) {}
Attention::~Attention() = default;

std::size_t Attention::cudnn_version() const noexcept { return 0; }

std::size_t Attention::scratch_bytes(cudaStream_t, const AttentionShape&, atoll::DType) {
  return 0;
}

bool Attention::forward(cudaStream_t, const AttentionForward&, const Scratch&) { return false; }

bool Attention::backward(cudaStream_t, const AttentionBackward&, const Scratch&) { return false; }

}  // namespace train::cuda
