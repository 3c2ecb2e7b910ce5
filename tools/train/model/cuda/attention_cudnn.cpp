#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "atoll/error.hpp"
#include "core/log.hpp"
#include "device/cuda/api.hpp"
#include "model/cuda/attention.hpp"
#include "model/cuda/library.hpp"

// cuDNN is found at run time: the headers ask this handle for its functions.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace train::cuda {
namespace {

namespace fe = cudnn_frontend;
using atoll::DType;
using atoll::Error;
using atoll::ErrorCode;

// Names of the tensors of a graph.
enum Tensor : std::int64_t {
  q = 1,
  k,
  v,
  out,
  lse,
  dout,
  dq,
  dk,
  dv
};
using Pointers = std::unordered_map<std::int64_t, void*>;

enum class Direction {
  forward,
  backward
};

struct Key {
  std::int64_t rows, seq, heads, kv_heads, head_dim, window;
  Direction direction;
  friend auto operator<=>(const Key&, const Key&) = default;
};

struct Plan {
  std::shared_ptr<fe::graph::Graph> graph;
  std::size_t workspace_bytes;
};

// [rows * seq, heads * head_dim], seen as rows x heads x seq x head_dim.
fe::graph::Tensor_attributes tensor(Tensor id, const Key& key, std::int64_t heads) {
  const std::int64_t token = heads * key.head_dim;
  return fe::graph::Tensor_attributes()
      .set_uid(id)
      .set_dim({key.rows, heads, key.seq, key.head_dim})
      .set_stride({key.seq * token, key.head_dim, token, 1});
}

fe::graph::Tensor_attributes statistics(const Key& key) {
  return fe::graph::Tensor_attributes()
      .set_uid(Tensor::lse)
      .set_dim({key.rows, key.heads, key.seq, 1})
      .set_stride({key.heads * key.seq, key.seq, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

// What a node gives gets the place that is meant for it.
void place(const std::shared_ptr<fe::graph::Tensor_attributes>& result,
           const fe::graph::Tensor_attributes& as) {
  result->set_output(true).set_uid(as.get_uid()).set_dim(as.get_dim()).set_stride(as.get_stride());
}

// Causal, and within the window where there is one: cuDNN masks keys at or before query - bound.
template <class Attributes>
void set_mask(Attributes& attributes, const Key& key) {
  attributes.set_attn_scale(static_cast<float>(1.0 / std::sqrt(static_cast<double>(key.head_dim))))
      .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
  if (key.window > 0 && key.window < key.seq) {
    attributes.set_diagonal_band_left_bound(static_cast<int>(key.window));
  }
}

void describe_forward(fe::graph::Graph& graph, const Key& key) {
  fe::graph::SDPA_attributes attributes;
  attributes.set_name("attention_forward").set_generate_stats(true);
  set_mask(attributes, key);
  const auto [result, stats] =
      graph.sdpa(graph.tensor(tensor(Tensor::q, key, key.heads)),
                 graph.tensor(tensor(Tensor::k, key, key.kv_heads)),
                 graph.tensor(tensor(Tensor::v, key, key.kv_heads)), attributes);
  place(result, tensor(Tensor::out, key, key.heads));
  place(stats, statistics(key));
  stats->set_data_type(fe::DataType_t::FLOAT);
}

void describe_backward(fe::graph::Graph& graph, const Key& key, bool deterministic) {
  fe::graph::SDPA_backward_attributes attributes;
  attributes.set_name("attention_backward").set_deterministic_algorithm(deterministic);
  set_mask(attributes, key);
  const auto [to_q, to_k, to_v] =
      graph.sdpa_backward(graph.tensor(tensor(Tensor::q, key, key.heads)),
                          graph.tensor(tensor(Tensor::k, key, key.kv_heads)),
                          graph.tensor(tensor(Tensor::v, key, key.kv_heads)),
                          graph.tensor(tensor(Tensor::out, key, key.heads)),
                          graph.tensor(tensor(Tensor::dout, key, key.heads)),
                          graph.tensor(statistics(key)), attributes);
  place(to_q, tensor(Tensor::dq, key, key.heads));
  place(to_k, tensor(Tensor::dk, key, key.kv_heads));
  place(to_v, tensor(Tensor::dv, key, key.kv_heads));
}

void check(fe::error_t status, const char* what) {
  if (status.is_good()) return;
  throw Error(ErrorCode::backend, fmt::format("cuDNN: {}: {}", what, status.get_message()));
}

}  // namespace

struct Attention::Impl {
  cudnnHandle_t handle = nullptr;            // NULL: cuDNN is not there
  bool deterministic;                        // backward
  std::map<Key, std::optional<Plan>> plans;  // without a value: not done by cuDNN
  std::set<std::string> told;                // reasons that the log has
  std::optional<std::size_t> reserved;       // bytes of scratch that are there for plans to come

  explicit Impl(bool deterministic_) : deterministic(deterministic_) {
    try {
      constexpr auto what = "attention in bf16";
      static const Library runtime(fmt::format("libcudart.so.{}", CUDART_VERSION / 1000), what);
      static const Library library(fmt::format("libcudnn.so.{}", CUDNN_MAJOR), what);
      fe::cudnn_dlhandle = library.handle();  // and of `runtime` the headers find their own
    } catch (const Error& error) {
      atoll::log::warn("{}; attention is that of our own kernels, in f32", error.what());
      return;
    }
    if (const cudnnStatus_t status = fe::detail::create_handle(&handle);
        status != CUDNN_STATUS_SUCCESS) {
      throw Error(ErrorCode::backend,
                  fmt::format("cuDNN: no handle: status {}", static_cast<int>(status)));
    }
  }
  ~Impl() {
    if (handle != nullptr) fe::detail::destroy_handle(handle);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Within what is reserved, if cuDNN can: scratch that grows in a step waits for the stream, and
  // without a limit a smaller shape may take more than the largest.
  std::optional<Plan> make(const Key& key) {
    std::string reason;
    std::optional<Plan> plan;
    if (reserved) plan = build(key, reserved, reason);
    if (!plan) plan = build(key, std::nullopt, reason);
    if (!plan) tell(key, reason);
    return plan;
  }

  // With a workspace of at most so many bytes. Nothing, with a reason, for what cuDNN does not do.
  std::optional<Plan> build(const Key& key, std::optional<std::size_t> limit, std::string& reason) {
    auto graph = std::make_shared<fe::graph::Graph>();
    graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    key.direction == Direction::forward ? describe_forward(*graph, key)
                                        : describe_backward(*graph, key, deterministic);
    if (limit) graph->deselect_workspace_greater_than(static_cast<std::int64_t>(*limit));
    if (auto status = graph->build(handle, {fe::HeurMode_t::A}); !status.is_good()) {
      reason = status.get_message();
      return std::nullopt;
    }
    std::int64_t bytes = 0;
    check(graph->get_workspace_size(bytes), "workspace");
    return Plan{std::move(graph), static_cast<std::size_t>(bytes)};
  }

  // Once for each reason, of whatever shape it is then.
  void tell(const Key& key, const std::string& reason) {
    const char* const what =
        key.direction == Direction::forward ? "attention" : "attention backward";
    if (!told.insert(what + reason).second) return;
    atoll::log::warn(
        "cuDNN does not take {} over {} x {} tokens of {} heads ({} of keys) of {}: {}; it is that "
        "of "
        "our own kernels, in f32",
        what, key.rows, key.seq, key.heads, key.kv_heads, key.head_dim, reason);
  }

  // NULL for what cuDNN does not do.
  const Plan* plan(cudaStream_t stream, const AttentionShape& shape, DType dtype,
                   Direction direction) {
    if (handle == nullptr || dtype != DType::bf16) return nullptr;
    const Key key{shape.rows,     shape.seq,    shape.heads, shape.kv_heads,
                  shape.head_dim, shape.window, direction};
    auto found = plans.find(key);
    if (found == plans.end()) {
      if (plans.size() >= most_shapes) {
        atoll::cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");  // they may run
        plans.clear();
      }
      found = plans.emplace(key, make(key)).first;
    }
    return found->second ? &*found->second : nullptr;
  }

  bool run(cudaStream_t stream, const AttentionShape& shape, DType dtype, Direction direction,
           Pointers pointers, const Scratch& scratch) {
    constexpr std::size_t alignment = 16;  // cuDNN takes tensors to have it
    for (const auto& [tensor, address] : pointers) {
      if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) return false;
    }
    const Plan* const found = plan(stream, shape, dtype, direction);
    if (!found) return false;
    const Plan& plan = *found;
    void* const workspace = plan.workspace_bytes > 0 ? scratch(plan.workspace_bytes) : nullptr;
    if (fe::detail::set_stream(handle, stream) != CUDNN_STATUS_SUCCESS) {
      throw Error(ErrorCode::backend, "cuDNN: it does not take the stream");
    }
    check(plan.graph->execute(handle, pointers, workspace),
          direction == Direction::forward ? "attention_forward" : "attention_backward");
    return true;
  }

  // Data sets of unequal batches make many shapes; this bounds what they hold.
  static constexpr std::size_t most_shapes = 1024;
};

Attention::Attention(bool deterministic) : impl_(std::make_unique<Impl>(deterministic)) {}
Attention::~Attention() = default;

std::size_t Attention::scratch_bytes(cudaStream_t stream, const AttentionShape& shape,
                                     DType dtype) {
  std::optional<std::size_t> reserved = std::exchange(impl_->reserved, {});  // this may be more
  std::size_t most = 0;
  for (const auto direction : {Direction::forward, Direction::backward}) {
    const Plan* const plan = impl_->plan(stream, shape, dtype, direction);
    if (!plan) continue;
    most = std::max(most, plan->workspace_bytes);
    reserved = std::max(reserved.value_or(0), most);
  }
  impl_->reserved = reserved;
  return most;
}

namespace {
void* address(atoll::ConstView view) { return const_cast<void*>(view.data); }
}  // namespace

bool Attention::forward(cudaStream_t stream, const AttentionForward& args, const Scratch& scratch) {
  return impl_->run(stream, args.shape, args.q.dtype, Direction::forward,
                    {{Tensor::q, address(args.q)},
                     {Tensor::k, address(args.k)},
                     {Tensor::v, address(args.v)},
                     {Tensor::out, address(args.out)},
                     {Tensor::lse, address(args.lse)}},
                    scratch);
}

bool Attention::backward(cudaStream_t stream, const AttentionBackward& args,
                         const Scratch& scratch) {
  return impl_->run(stream, args.shape, args.q.dtype, Direction::backward,
                    {{Tensor::q, address(args.q)},
                     {Tensor::k, address(args.k)},
                     {Tensor::v, address(args.v)},
                     {Tensor::out, address(args.out)},
                     {Tensor::lse, address(args.lse)},
                     {Tensor::dout, address(args.dout)},
                     {Tensor::dq, address(args.dq)},
                     {Tensor::dk, address(args.dk)},
                     {Tensor::dv, address(args.dv)}},
                    scratch);
}

}  // namespace train::cuda
