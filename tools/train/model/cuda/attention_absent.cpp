// In place of attention_cudnn.cpp, in a build without cuDNN's headers.
#include "model/cuda/attention.hpp"

namespace train::cuda {

struct Attention::Impl {};

Attention::Attention() = default;
Attention::~Attention() = default;

bool Attention::forward(cudaStream_t, const AttentionForward&, const Scratch&) { return false; }

bool Attention::backward(cudaStream_t, const AttentionBackward&, const Scratch&) { return false; }

}  // namespace train::cuda
