#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "atoll/cuda/runtime.hpp"
#include "fail.hpp"
#include "model/cuda/attention.hpp"
#include "model/cuda/attention_graphs.hpp"
#include "model/cuda/kernels.hpp"
#include "report/log.hpp"

namespace train::cuda {
namespace {

namespace fe = cudnn_frontend;
using atoll::DType;

using Pointers = std::unordered_map<std::int64_t, void*>;
using Key = AttentionKey;

struct Plan {
  std::shared_ptr<fe::graph::Graph> graph;
  std::size_t workspace_bytes;
};

// cuDNN computes both directions of a shape or none, so that a step uses one implementation.
struct Plans {
  Plan forward, backward;
  const Plan& of(Direction direction) const {
    return direction == Direction::forward ? forward : backward;
  }
  std::size_t workspace_bytes() const {
    return std::max(forward.workspace_bytes, backward.workspace_bytes);
  }
};

int capability_of_current() {
  int device = 0, major = 0, minor = 0;
  atoll::cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  for (const auto& [value, attribute] : {std::pair(&major, cudaDevAttrComputeCapabilityMajor),
                                         std::pair(&minor, cudaDevAttrComputeCapabilityMinor)}) {
    atoll::cuda::check(cudaDeviceGetAttribute(value, attribute, device), "cudaDeviceGetAttribute");
  }
  return 10 * major + minor;
}

void check(fe::error_t status, const char* what) {
  if (status.is_good()) return;
  fail(ErrorCode::backend, "cuDNN: {}: {}", what, status.get_message());
}

void* address(atoll::ConstView view) { return const_cast<void*>(view.data); }

}  // namespace

struct Attention::Impl {
  cudnnHandle_t handle = nullptr;  // null if cuDNN is absent
  bool deterministic;              // backward sums in a fixed order
  int capability = 0;              // compute capability of the GPU: 90 for an H100
  // Plans by shape; nullopt if cuDNN does not support the shape.
  std::map<Key, std::optional<Plans>> plans;
  std::set<std::string> told;           // reasons against cuDNN that were logged
  std::optional<std::size_t> reserved;  // scratch bytes available to later plans

  explicit Impl(bool deterministic_) : deterministic(deterministic_) {
    try {
      find_cudnn();
    } catch (const Error& error) {
      log::warn("{}; attention uses atoll's own f32 kernels instead", error.what());
      return;
    }
    if (const cudnnStatus_t status = fe::detail::create_handle(&handle);
        status != CUDNN_STATUS_SUCCESS) {
      fail(ErrorCode::backend, "cuDNN: creating a handle failed: status {}",
           static_cast<int>(status));
    }
    capability = capability_of_current();
  }
  ~Impl() {
    if (handle != nullptr) fe::detail::destroy_handle(handle);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::size_t version() const { return handle ? fe::detail::get_backend_version() : 0; }

  std::optional<Plans> make(const Key& key) {
    if (const std::string reason = objection(key); !reason.empty()) {
      log_reason(key, reason);
      return std::nullopt;
    }
    // Plans backward first, because cuDNN usually supports backward for fewer shapes than forward.
    std::optional<Plan> backward = make(key, Direction::backward);
    std::optional<Plan> forward = backward ? make(key, Direction::forward) : std::nullopt;
    if (!forward) return std::nullopt;
    return Plans{std::move(*forward), std::move(*backward)};
  }

  // Returns why cuDNN cannot compute packed rows of the shape `key`; empty if it can.
  std::string objection(const Key& key) const {
    if (key.documents == 0) return "";
    // cuDNN before 9.18 assumes that parts of the workspace of backward are zero (TransformerEngine
    // #2186).
    constexpr std::size_t oldest = 91800;
    if (version() < oldest) return "packed rows need version 9.18";
    if (capability < 90 || capability >= 110)
      return "packed rows need an H100, B200 or similar GPU";
    // For other head sizes, cudnn-frontend sizes the workspace as if each document filled a row.
    if (key.head_dim % 16 != 0) return "packed rows need a head_dim that is a multiple of 16";
    // Deterministic backward needs a matrix of scores of a whole row for each document and head.
    return deterministic ? "deterministic backward of packed rows needs too much memory" : "";
  }

  // Uses a plan that fits the reserved scratch if there is one, because growing the scratch waits
  // for the stream. The first attempt has no limit, since a smaller shape rarely needs more
  // scratch.
  std::optional<Plan> make(const Key& key, Direction direction) {
    std::string reason;
    std::optional<Plan> plan = build(key, direction, std::nullopt, reason);
    if (!plan) {
      log_reason(key, reason);
    } else if (reserved && plan->workspace_bytes > *reserved) {
      auto within = build(key, direction, reserved, reason);
      if (within && within->workspace_bytes < plan->workspace_bytes) plan = std::move(within);
    }
    return plan;
  }

  // Makes a plan with a workspace of at most `limit` bytes, not counting the front end's additions.
  // Returns nullopt and sets `reason` if cuDNN does not support the key's shape.
  std::optional<Plan> build(const Key& key, Direction direction, std::optional<std::size_t> limit,
                            std::string& reason) {
    auto graph = std::make_shared<fe::graph::Graph>();
    describe_attention(*graph, key, direction, deterministic);
    if (limit) graph->deselect_workspace_greater_than(static_cast<std::int64_t>(*limit));
    if (auto status = graph->build(handle, {fe::HeurMode_t::A}); !status.is_good()) {
      reason = fmt::format("{}: {}", direction == Direction::forward ? "forward" : "backward",
                           status.get_message());
      return std::nullopt;
    }
    std::int64_t bytes = 0;
    check(graph->get_workspace_size(bytes), "workspace");
    return Plan{std::move(graph), static_cast<std::size_t>(bytes)};
  }

  // Logs each reason once, with the first shape that met it.
  void log_reason(const Key& key, const std::string& reason) {
    if (!told.insert(reason).second) return;
    log::warn(
        "cuDNN does not support attention over {} x {} tokens{} with {} heads ({} of keys) of {}: "
        "{}; it uses atoll's own f32 kernels instead",
        key.rows, key.seq, key.documents > 0 ? ", packed," : "", key.heads, key.kv_heads,
        key.head_dim, reason);
  }

  // Returns null if cuDNN does not support the shape.
  const Plans* plans_for(cudaStream_t stream, const AttentionShape& shape, DType dtype) {
    if (handle == nullptr || dtype != DType::bf16) return nullptr;
    // For packed rows seq is only a bound, so rounding it up lets few plans serve all batches.
    Key key = shape;
    if (shape.documents > 0) {
      key.seq = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(shape.seq)));
    }
    auto found = plans.find(key);
    if (found == plans.end()) {
      if (plans.size() >= most_shapes) {
        // work on the stream may still use the plans
        atoll::cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        plans.clear();
      }
      found = plans.emplace(key, make(key)).first;
    }
    return found->second ? &*found->second : nullptr;
  }

  // `pointers` holds the tensors that only the backward pass uses; run() adds all others.
  template <class Args>
  bool run(cudaStream_t stream, const Args& args, Direction direction, Pointers pointers,
           const Scratch& scratch) {
    AttentionShape shape = args.shape;
    if (!prepare_documents(shape, args.positions, version())) return false;
    pointers.insert({{tensor::q, address(args.q)},
                     {tensor::k, address(args.k)},
                     {tensor::v, address(args.v)},
                     {tensor::out, address(args.out)},
                     {tensor::lse, address(args.lse)}});
    constexpr std::size_t alignment = 16;  // cuDNN assumes this alignment of tensors
    for (const auto& [tensor, data] : pointers) {
      if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0) return false;
    }
    const Plans* const found = plans_for(stream, shape, args.q.dtype);
    if (!found) return false;
    const Plan& plan = found->of(direction);
    const std::size_t index_bytes = shape.documents > 0 ? DocumentIndex::bytes(shape.documents) : 0;
    const std::size_t bytes = index_bytes + plan.workspace_bytes;
    auto* const memory = bytes > 0 ? static_cast<std::byte*>(scratch(bytes)) : nullptr;
    if (shape.documents > 0) {
      const auto index = DocumentIndex::in(memory, shape.documents);
      // Zeroed: old contents may change results of grouped heads (TransformerEngine #2448).
      atoll::cuda::check(cudaMemsetAsync(memory + index_bytes, 0, plan.workspace_bytes, stream),
                         "cudaMemsetAsync");
      document_index(stream, args.positions, shape, index);
      pointers.insert({{tensor::query_lengths, index.lengths},
                       {tensor::key_lengths, index.lengths},
                       {tensor::query_offsets, index.queries},
                       {tensor::key_offsets, index.keys},
                       {tensor::statistics_offsets, index.statistics}});
    }
    if (fe::detail::set_stream(handle, stream) != CUDNN_STATUS_SUCCESS) {
      fail(ErrorCode::backend, "cuDNN: setting the stream failed");
    }
    check(plan.graph->execute(handle, pointers, memory + index_bytes),
          direction == Direction::forward ? "attention_forward" : "attention_backward");
    return true;
  }

  // Sets the number of documents to plan for. Returns false if the number of documents is unknown
  // or offsets exceed 32 bits.
  static bool prepare_documents(AttentionShape& shape, atoll::ConstView positions,
                                std::size_t version) {
    if (positions.count == 0) {
      shape.documents = 0;
      return true;
    }
    const std::int64_t elements = shape.rows * shape.seq * shape.heads * shape.head_dim;
    if (shape.documents == 0 || elements > std::numeric_limits<std::int32_t>::max()) return false;
    shape.documents = planned_documents(shape.documents, shape.rows * shape.seq, version);
    return true;
  }

  // Limits the cache: batches of unequal length produce many shapes.
  static constexpr std::size_t most_shapes = 1024;
};

Attention::Attention(bool deterministic) : impl_(std::make_unique<Impl>(deterministic)) {}
Attention::~Attention() = default;

std::size_t Attention::cudnn_version() const noexcept { return impl_->version(); }

std::size_t Attention::scratch_bytes(cudaStream_t stream, const AttentionShape& shape,
                                     DType dtype) {
  impl_->reserved.reset();  // plan without the scratch limit of an earlier request
  const Plans* const plans = impl_->plans_for(stream, shape, dtype);
  if (!plans) return 0;
  impl_->reserved = plans->workspace_bytes();
  // Include the document index for the largest possible number of documents, one per token.
  return plans->workspace_bytes() +
         (shape.documents > 0 ? DocumentIndex::bytes(shape.rows * shape.seq) : 0);
}

bool Attention::forward(cudaStream_t stream, const AttentionForward& args, const Scratch& scratch) {
  return impl_->run(stream, args, Direction::forward, {}, scratch);
}

bool Attention::backward(cudaStream_t stream, const AttentionBackward& args,
                         const Scratch& scratch) {
  return impl_->run(stream, args, Direction::backward,
                    {{tensor::dout, address(args.dout)},
                     {tensor::dq, address(args.dq)},
                     {tensor::dk, address(args.dk)},
                     {tensor::dv, address(args.dv)}},
                    scratch);
}

}  // namespace train::cuda
