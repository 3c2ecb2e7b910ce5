// Attention as graphs of cuDNN's front end: which tensors, how they lie, which operation. No GPU is
// needed to describe them.
#pragma once

#include <cudnn_frontend.h>

#include <compare>
#include <cstdint>

namespace train::cuda {

// Looks for cuDNN and lets the front end's headers find its functions. Throws Error(not_found).
void find_cudnn();

// Names of the tensors of a graph.
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

// Two graphs, one for each direction, are for one of these.
struct AttentionKey {
  std::int64_t rows, seq, heads, kv_heads, head_dim, window;
  std::int64_t documents;  // in all rows, where these hold several; else 0
  friend auto operator<=>(const AttentionKey&, const AttentionKey&) = default;
};

// Backward in an order of sums that is the same every time, where that is asked for.
void describe_attention(cudnn_frontend::graph::Graph& graph, const AttentionKey& key,
                        Direction direction, bool deterministic);

}  // namespace train::cuda
