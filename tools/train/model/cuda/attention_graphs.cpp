#include "model/cuda/attention_graphs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>

#include "model/cuda/library.hpp"

// cuDNN is loaded at run time. The front end's headers look up its functions in this handle.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace train::cuda {
namespace {

namespace fe = cudnn_frontend;

// Memory layout of a graph's tensors: [rows * seq, heads * head_dim], seen as rows x heads x seq x
// head_dim. Packed rows are seen as consecutive documents of up to seq tokens ("ragged").
class Layout {
 public:
  using Attributes = fe::graph::Tensor_attributes;

  Layout(fe::graph::Graph& graph, const AttentionKey& key) : graph_(graph), key_(key) {
    if (key.documents == 0) return;
    queries_ = index(tensor::query_offsets, key.documents + 1);
    keys_ = index(tensor::key_offsets, key.documents + 1);
    statistics_ = index(tensor::statistics_offsets, key.documents + 1);
  }

  Attributes queries(tensor::Name id) const { return of(id, key_.heads, queries_); }
  Attributes keys(tensor::Name id) const { return of(id, key_.kv_heads, keys_); }
  Attributes statistics() const {
    const bool ragged = key_.documents > 0;
    return Attributes()
        .set_uid(tensor::lse)
        .set_dim({ragged ? key_.documents : key_.rows, key_.heads, key_.seq, 1})
        .set_stride({key_.heads * key_.seq, ragged ? 1 : key_.seq, ragged ? key_.heads : 1, 1})
        .set_ragged_offset(statistics_)
        .set_data_type(fe::DataType_t::FLOAT);
  }

  template <class Operation>
  void set_lengths(Operation& operation) const {
    if (key_.documents == 0) return;
    operation.set_padding_mask(true)
        .set_seq_len_q(index(tensor::query_lengths, key_.documents))
        .set_seq_len_kv(index(tensor::key_lengths, key_.documents));
  }

 private:
  using Handle = std::shared_ptr<Attributes>;

  Handle index(tensor::Name id, std::int64_t count) const {
    return graph_.tensor(Attributes()
                             .set_uid(id)
                             .set_dim({count, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(fe::DataType_t::INT32));
  }
  Attributes of(tensor::Name id, std::int64_t heads, const Handle& offsets) const {
    const std::int64_t token = heads * key_.head_dim;
    const std::int64_t sequences = key_.documents > 0 ? key_.documents : key_.rows;
    return Attributes()
        .set_uid(id)
        .set_dim({sequences, heads, key_.seq, key_.head_dim})
        .set_stride({key_.seq * token, key_.head_dim, token, 1})
        .set_ragged_offset(offsets);
  }

  fe::graph::Graph& graph_;
  const AttentionKey& key_;
  Handle queries_, keys_, statistics_;  // document offsets; null unless rows are packed
};

// Assigns a node's result its tensor id and layout.
void place(const std::shared_ptr<fe::graph::Tensor_attributes>& result,
           fe::graph::Tensor_attributes as) {
  result->set_output(true)
      .set_uid(as.get_uid())
      .set_dim(as.get_dim())
      .set_stride(as.get_stride())
      .set_ragged_offset(as.get_ragged_offset());
}

// Causal mask, with a window if there is one: cuDNN masks keys at or before query - bound.
template <class Attributes>
void set_mask(Attributes& attributes, const AttentionKey& key) {
  attributes.set_attn_scale(static_cast<float>(1.0 / std::sqrt(static_cast<double>(key.head_dim))))
      .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
  if (key.window > 0 && key.window < key.seq) {
    attributes.set_diagonal_band_left_bound(static_cast<int>(key.window));
  }
}

void describe_forward(fe::graph::Graph& graph, const AttentionKey& key) {
  const Layout layout(graph, key);
  fe::graph::SDPA_attributes attributes;
  attributes.set_name("attention_forward").set_generate_stats(true);
  set_mask(attributes, key);
  layout.set_lengths(attributes);
  const auto [result, stats] =
      graph.sdpa(graph.tensor(layout.queries(tensor::q)), graph.tensor(layout.keys(tensor::k)),
                 graph.tensor(layout.keys(tensor::v)), attributes);
  place(result, layout.queries(tensor::out));
  place(stats, layout.statistics());
  stats->set_data_type(fe::DataType_t::FLOAT);
}

void describe_backward(fe::graph::Graph& graph, const AttentionKey& key, bool deterministic) {
  const Layout layout(graph, key);
  fe::graph::SDPA_backward_attributes attributes;
  attributes.set_name("attention_backward").set_deterministic_algorithm(deterministic);
  set_mask(attributes, key);
  layout.set_lengths(attributes);
  if (key.documents > 0) {  // otherwise the workspace has room for seq tokens per document
    attributes.set_max_total_seq_len_q(key.rows * key.seq)
        .set_max_total_seq_len_kv(key.rows * key.seq);
  }
  const auto [to_q, to_k, to_v] = graph.sdpa_backward(
      graph.tensor(layout.queries(tensor::q)), graph.tensor(layout.keys(tensor::k)),
      graph.tensor(layout.keys(tensor::v)), graph.tensor(layout.queries(tensor::out)),
      graph.tensor(layout.queries(tensor::dout)), graph.tensor(layout.statistics()), attributes);
  place(to_q, layout.queries(tensor::dq));
  place(to_k, layout.keys(tensor::dk));
  place(to_v, layout.keys(tensor::dv));
}

}  // namespace

void find_cudnn() {
  constexpr auto what = "attention in bf16";
  static const Library runtime(fmt::format("libcudart.so.{}", CUDART_VERSION / 1000), what);
  static const Library library(fmt::format("libcudnn.so.{}", CUDNN_MAJOR), what);
  fe::cudnn_dlhandle = library.handle();  // cudnn-frontend finds libcudart by itself
}

std::int64_t planned_documents(std::int64_t documents, std::int64_t tokens, std::size_t version) {
  constexpr std::size_t supports_empty_documents = 92500;
  if (version < supports_empty_documents || documents <= 2) return documents;
  const auto power =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(documents)));
  const std::int64_t step = power / 2;
  return std::min((documents + step - 1) / step * step, tokens);
}

void describe_attention(fe::graph::Graph& graph, const AttentionKey& key, Direction direction,
                        bool deterministic) {
  graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  direction == Direction::forward ? describe_forward(graph, key)
                                  : describe_backward(graph, key, deterministic);
}

}  // namespace train::cuda
