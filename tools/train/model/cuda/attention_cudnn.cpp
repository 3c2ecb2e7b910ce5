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

#include "atoll/error.hpp"
#include "core/log.hpp"
#include "device/cuda/api.hpp"
#include "model/cuda/attention.hpp"
#include "model/cuda/attention_graphs.hpp"
#include "model/cuda/kernels.hpp"

namespace train::cuda {
namespace {

namespace fe = cudnn_frontend;
using atoll::DType;
using atoll::Error;
using atoll::ErrorCode;

using Pointers = std::unordered_map<std::int64_t, void*>;
using Key = AttentionKey;

struct Plan {
  std::shared_ptr<fe::graph::Graph> graph;
  std::size_t workspace_bytes;
};

// cuDNN does both directions or none, so that the numbers of a step come from one implementation.
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
  throw Error(ErrorCode::backend, fmt::format("cuDNN: {}: {}", what, status.get_message()));
}

}  // namespace

struct Attention::Impl {
  cudnnHandle_t handle = nullptr;             // NULL: cuDNN is not there
  bool deterministic;                         // backward
  int capability = 0;                         // of the device: 90 for H100
  std::map<Key, std::optional<Plans>> plans;  // without a value: not done by cuDNN
  std::set<std::string> told;                 // reasons that the log has
  std::optional<std::size_t> reserved;        // bytes of scratch that are there for plans to come

  explicit Impl(bool deterministic_) : deterministic(deterministic_) {
    try {
      find_cudnn();
    } catch (const Error& error) {
      atoll::log::warn("{}; attention is that of our own kernels, in f32", error.what());
      return;
    }
    if (const cudnnStatus_t status = fe::detail::create_handle(&handle);
        status != CUDNN_STATUS_SUCCESS) {
      throw Error(ErrorCode::backend,
                  fmt::format("cuDNN: no handle: status {}", static_cast<int>(status)));
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
      tell(key, reason);
      return std::nullopt;
    }
    // What is done in one direction only, as a rule is not in backward.
    std::optional<Plan> backward = make(key, Direction::backward);
    std::optional<Plan> forward = backward ? make(key, Direction::forward) : std::nullopt;
    if (!forward) return std::nullopt;
    return Plans{std::move(*forward), std::move(*backward)};
  }

  // Why packed rows are not for cuDNN, whatever their plans would be; "" if they are.
  std::string objection(const Key& key) const {
    if (key.documents == 0) return "";
    // Backward of earlier ones took some of its workspace for zeros (TransformerEngine #2186).
    constexpr std::size_t oldest = 91800;
    if (version() < oldest) return "packed rows need version 9.18";
    if (capability < 90 || capability >= 110) return "packed rows need H100, B200 or their like";
    // Without this the front end takes workspace for documents of a whole row each.
    if (key.head_dim % 16 != 0) return "packed rows need heads of a multiple of 16";
    // A matrix of scores of a whole row for each document and head.
    return deterministic ? "an order of sums that is always the same takes too much memory there"
                         : "";
  }

  // Within what is reserved, if cuDNN can: scratch that grows in a step waits for the stream. A
  // smaller shape takes more than the largest only where it is done in another way, so that is
  // asked for last.
  std::optional<Plan> make(const Key& key, Direction direction) {
    std::string reason;
    std::optional<Plan> plan = build(key, direction, std::nullopt, reason);
    if (!plan) {
      tell(key, reason);
    } else if (reserved && plan->workspace_bytes > *reserved) {
      auto within = build(key, direction, reserved, reason);
      if (within && within->workspace_bytes < plan->workspace_bytes) plan = std::move(within);
    }
    return plan;
  }

  // With a workspace of at most so many bytes, but for what the front end adds. Nothing, with a
  // reason, for what cuDNN does not do.
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

  // Once for each reason, of whatever shape it is then.
  void tell(const Key& key, const std::string& reason) {
    if (!told.insert(reason).second) return;
    atoll::log::warn(
        "cuDNN does not take attention over {} x {} tokens{} of {} heads ({} of keys) of {}: {}; "
        "it is that of our own kernels, in f32",
        key.rows, key.seq, key.documents > 0 ? ", packed," : "", key.heads, key.kv_heads,
        key.head_dim, reason);
  }

  // NULL for what cuDNN does not do.
  const Plans* plans_for(cudaStream_t stream, const AttentionShape& shape, DType dtype) {
    if (handle == nullptr || dtype != DType::bf16) return nullptr;
    // Of packed rows the length is a bound, so a few plans do for all of them.
    const bool packed = shape.documents > 0;
    const std::int64_t seq = packed ? bit_ceil(shape.seq) : shape.seq;
    const Key key{shape.rows,     seq,          shape.heads,    shape.kv_heads,
                  shape.head_dim, shape.window, shape.documents};
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

  bool run(cudaStream_t stream, AttentionShape shape, atoll::ConstView positions, DType dtype,
           Direction direction, Pointers pointers, const Scratch& scratch) {
    if (!prepare_documents(shape, positions)) return false;
    constexpr std::size_t alignment = 16;  // cuDNN takes tensors to have it
    for (const auto& [tensor, address] : pointers) {
      if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) return false;
    }
    const Plans* const found = plans_for(stream, shape, dtype);
    if (!found) return false;
    const Plan& plan = found->of(direction);
    const std::size_t index_bytes = shape.documents > 0 ? DocumentIndex::bytes(shape.documents) : 0;
    const std::size_t bytes = index_bytes + plan.workspace_bytes;
    auto* const memory = bytes > 0 ? static_cast<std::byte*>(scratch(bytes)) : nullptr;
    if (shape.documents > 0) {
      const auto index = DocumentIndex::in(memory, shape.documents);
      // Grouped heads have been reported to depend on what is there (TransformerEngine #2448).
      atoll::cuda::check(cudaMemsetAsync(memory + index_bytes, 0, plan.workspace_bytes, stream),
                         "cudaMemsetAsync");
      document_index(stream, positions, shape, index);
      pointers.insert({{tensor::query_lengths, index.lengths},
                       {tensor::key_lengths, index.lengths},
                       {tensor::query_offsets, index.queries},
                       {tensor::key_offsets, index.keys},
                       {tensor::statistics_offsets, index.statistics}});
    }
    if (fe::detail::set_stream(handle, stream) != CUDNN_STATUS_SUCCESS) {
      throw Error(ErrorCode::backend, "cuDNN: it does not take the stream");
    }
    check(plan.graph->execute(handle, pointers, memory + index_bytes),
          direction == Direction::forward ? "attention_forward" : "attention_backward");
    return true;
  }

  // False where the number of documents is not known, or offsets have no room in 32 bits. Plans are
  // for exactly as many documents as there are: a plan for more would see documents of no tokens,
  // which cuDNN gets wrong in backward before 9.25 (cudnn-frontend #943).
  static bool prepare_documents(AttentionShape& shape, atoll::ConstView positions) {
    if (positions.count == 0) {
      shape.documents = 0;
      return true;
    }
    const std::int64_t elements = shape.rows * shape.seq * shape.heads * shape.head_dim;
    return shape.documents > 0 && elements <= std::numeric_limits<std::int32_t>::max();
  }

  static std::int64_t bit_ceil(std::int64_t value) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(value)));
  }

  // Data sets of unequal batches make many shapes; this bounds what they hold.
  static constexpr std::size_t most_shapes = 1024;
};

Attention::Attention(bool deterministic) : impl_(std::make_unique<Impl>(deterministic)) {}
Attention::~Attention() = default;

std::size_t Attention::cudnn_version() const noexcept { return impl_->version(); }

std::size_t Attention::scratch_bytes(cudaStream_t stream, const AttentionShape& shape,
                                     DType dtype) {
  impl_->reserved.reset();  // this may be more
  const Plans* const plans = impl_->plans_for(stream, shape, dtype);
  if (!plans) return 0;
  impl_->reserved = plans->workspace_bytes();
  // The index for as many documents as there can be.
  return plans->workspace_bytes() +
         (shape.documents > 0 ? DocumentIndex::bytes(shape.rows * shape.seq) : 0);
}

namespace {
void* address(atoll::ConstView view) { return const_cast<void*>(view.data); }
}  // namespace

bool Attention::forward(cudaStream_t stream, const AttentionForward& args, const Scratch& scratch) {
  return impl_->run(stream, args.shape, args.positions, args.q.dtype, Direction::forward,
                    {{tensor::q, address(args.q)},
                     {tensor::k, address(args.k)},
                     {tensor::v, address(args.v)},
                     {tensor::out, address(args.out)},
                     {tensor::lse, address(args.lse)}},
                    scratch);
}

bool Attention::backward(cudaStream_t stream, const AttentionBackward& args,
                         const Scratch& scratch) {
  return impl_->run(stream, args.shape, args.positions, args.q.dtype, Direction::backward,
                    {{tensor::q, address(args.q)},
                     {tensor::k, address(args.k)},
                     {tensor::v, address(args.v)},
                     {tensor::out, address(args.out)},
                     {tensor::lse, address(args.lse)},
                     {tensor::dout, address(args.dout)},
                     {tensor::dq, address(args.dq)},
                     {tensor::dk, address(args.dk)},
                     {tensor::dv, address(args.dv)}},
                    scratch);
}

}  // namespace train::cuda
