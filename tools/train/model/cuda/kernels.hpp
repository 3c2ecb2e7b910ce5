// Kernel launchers for CudaOps. Arguments have been checked, the device is current, and work is
// enqueued on `stream`. Sums have a fixed order on every GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "model/ops.hpp"

namespace train::cuda {

// An id outside the vocabulary, as reported by a kernel.
struct alignas(8) BadId {
  std::int32_t id;
  std::int32_t position;  // counted from 1; 0: no invalid id
};

// Norm rows may have up to norm_width_limit() elements: most_norm_width if rows and views are
// aligned to 16 bytes, otherwise half as many, because of registers.
inline constexpr std::int64_t most_norm_width = 8192;
std::int64_t norm_width_limit(std::int64_t width, atoll::DType dtype, bool aligned = true);
bool is_aligned(const RmsNormForward& args);
bool is_aligned(const RmsNormBackward& args);
void rms_norm_forward(cudaStream_t stream, const RmsNormForward& args);
// `partials` must have rms_norm_partials() floats. It is unused if the weight's gradient is not
// computed.
void rms_norm_backward(cudaStream_t stream, const RmsNormBackward& args, float* partials);
std::size_t rms_norm_partials(std::int64_t tokens, std::int64_t width);

void scale(cudaStream_t stream, atoll::View x, float factor);
void add_bias(cudaStream_t stream, atoll::ConstView bias, atoll::View y);
// `partials` must have bias_partials() floats.
void bias_backward(cudaStream_t stream, const BiasBackward& args, float* partials);
std::size_t bias_partials(std::int64_t tokens, std::int64_t width);
// Sums `count` rows of partial sums, in a fixed order, into dweight [width].
void add_partials(cudaStream_t stream, atoll::View dweight, const float* partials, int width,
                  int count, WriteMode mode);

void rope(cudaStream_t stream, const Rope& args);
// Attention in f32 arithmetic, for heads of up to most_head_dim elements.
inline constexpr std::int64_t most_head_dim = 256;
void attention_forward(cudaStream_t stream, const AttentionForward& args);
// `scratch` must have attention_scratch() floats.
void attention_backward(cudaStream_t stream, const AttentionBackward& args, float* scratch);
std::size_t attention_scratch(const AttentionShape& shape);
// Shared memory per block that the attention kernels need. sm_80 has enough; sm_86 and sm_89 do
// not.
std::size_t attention_shared_bytes();

// Describes packed documents to cuDNN: [documents] lengths in tokens, and [documents + 1] element
// offsets into q, into k, and into lse, which has one value per token and head.
struct DocumentIndex {
  std::int32_t *lengths, *queries, *keys, *statistics;

  static std::size_t bytes(std::int64_t documents);
  // Places the index in `memory`, which must have bytes(documents) bytes.
  static DocumentIndex in(void* memory, std::int64_t documents);
};
// Fills the index for exactly shape.documents documents: surplus documents join the last one, and
// missing documents get no tokens.
void document_index(cudaStream_t stream, atoll::ConstView positions, const AttentionShape& shape,
                    const DocumentIndex& index);

void swiglu_forward(cudaStream_t stream, atoll::ConstView gate, atoll::ConstView up,
                    atoll::View out);
void swiglu_backward(cudaStream_t stream, const SwigluBackward& args);

void embedding_forward(cudaStream_t stream, atoll::ConstView tokens, atoll::ConstView table,
                       atoll::View out, std::int64_t width, BadId* bad);
// `scratch` must have embedding_scratch(number of tokens, width) bytes.
void embedding_backward(cudaStream_t stream, const EmbeddingBackward& args, void* scratch,
                        BadId* bad);
std::size_t embedding_scratch(std::uint64_t tokens, std::int64_t width);

// `losses` receives one f64 for each row.
void cross_entropy(cudaStream_t stream, const CrossEntropy& args, double* losses, BadId* bad);

}  // namespace train::cuda
