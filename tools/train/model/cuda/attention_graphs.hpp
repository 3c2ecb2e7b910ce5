// Describes attention as cuDNN front-end graphs: tensors, their layout and the operation. Needs no
// GPU.
#pragma once

#include <cudnn_frontend.h>

#include <cstddef>
#include <cstdint>

#include "model/ops.hpp"

namespace train::cuda {

// Loads cuDNN for the front end's headers. Throws Error(not_found).
void find_cudnn();

// Ids of the tensors in a graph.
namespace tensor {
enum Name : std::int64_t {
  q = 1,
  k,
  v,
  out,
  lse,
  dout,
  dq,
  dk,
  dv,
  query_lengths,
  key_lengths,
  query_offsets,
  key_offsets,
  statistics_offsets
};
}  // namespace tensor

enum class Direction {
  forward,
  backward
};

// Cache key of a pair of graphs, one per direction. `documents` is 0 unless rows are packed.
using AttentionKey = AttentionShape;

// Returns for how many documents to plan, so that few plans serve batches of unequal numbers of
// documents: `documents` rounded up to 1, 2, 3, 4, 6, 8, 12, ..., but at most `tokens`. The surplus
// documents are empty. cuDNN before 9.25 computes wrong results with empty documents
// (cudnn-frontend #943), so that a plan then has exactly `documents`. `version` is 92500 for cuDNN
// 9.25.0.
std::int64_t planned_documents(std::int64_t documents, std::int64_t tokens, std::size_t version);

// If `deterministic`, backward sums in a fixed order.
void describe_attention(cudnn_frontend::graph::Graph& graph, const AttentionKey& key,
                        Direction direction, bool deterministic);

}  // namespace train::cuda
