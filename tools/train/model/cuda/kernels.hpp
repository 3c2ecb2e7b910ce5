// The kernels of this folder, as CudaOps launches them: arguments are checked, the device is
// current, everything is enqueued on `stream`. Sums have one order, whatever the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "model/ops.hpp"

namespace train::cuda {

// An id that is not in the vocabulary, as a kernel found it.
struct alignas(8) BadId {
  std::int32_t id;
  std::int32_t position;  // from 1; 0: none was found
};

// Rows of up to norm_width_limit() elements: most_norm_width where they are multiples of 16 bytes,
// as views are that begin at one (`aligned`), else half as many, which is what registers hold then.
inline constexpr std::int64_t most_norm_width = 8192;
std::int64_t norm_width_limit(std::int64_t width, atoll::DType dtype, bool aligned = true);
bool is_aligned(const RmsNormForward& args);
bool is_aligned(const RmsNormBackward& args);
void rms_norm_forward(cudaStream_t stream, const RmsNormForward& args);
// partials: f32, rms_norm_partials(); unused where the gradient of the weight is not wanted.
void rms_norm_backward(cudaStream_t stream, const RmsNormBackward& args, float* partials);
std::size_t rms_norm_partials(std::int64_t tokens, std::int64_t width);

void rope_table(cudaStream_t stream, atoll::View table, std::int64_t head_dim, double theta);
void rope(cudaStream_t stream, const Rope& args);
// In f32, for heads of up to most_head_dim elements.
inline constexpr std::int64_t most_head_dim = 256;
void attention_forward(cudaStream_t stream, const AttentionForward& args);
// scratch: f32, attention_scratch().
void attention_backward(cudaStream_t stream, const AttentionBackward& args, float* scratch);
std::size_t attention_scratch(const AttentionShape& shape);
// Of shared memory, that a block of these kernels takes at most: sm_80 has it, sm_86 and sm_89 do
// not.
std::size_t attention_shared_bytes();

// Where the documents of packed rows lie, as cuDNN is told: [documents] lengths in tokens, and
// [documents + 1] numbers of elements that lie before each document and, last, behind them all: of
// q, of k, and of the logarithms of sums, of which a token has one for each head.
struct DocumentIndex {
  std::int32_t *lengths, *queries, *keys, *statistics;

  static std::size_t bytes(std::int64_t documents);
  static DocumentIndex in(void* memory, std::int64_t documents);  // of bytes(documents)
};
// For shape.documents: documents beyond these are taken for a part of the last, and, where there
// are fewer, the rest have no tokens.
void document_index(cudaStream_t stream, atoll::ConstView positions, const AttentionShape& shape,
                    const DocumentIndex& index);

void swiglu_forward(cudaStream_t stream, atoll::ConstView gate, atoll::ConstView up,
                    atoll::View out);
void swiglu_backward(cudaStream_t stream, const SwigluBackward& args);

void embedding_forward(cudaStream_t stream, atoll::ConstView tokens, atoll::ConstView table,
                       atoll::View out, std::int64_t width, BadId* bad);
// scratch: embedding_scratch() bytes for as many tokens.
void embedding_backward(cudaStream_t stream, const EmbeddingBackward& args, void* scratch,
                        BadId* bad);
std::size_t embedding_scratch(std::uint64_t tokens);

// losses: f64, one for each row.
void cross_entropy(cudaStream_t stream, const CrossEntropy& args, double* losses, BadId* bad);

}  // namespace train::cuda
