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
  }
  ~Impl() {
    if (handle != nullptr) fe::detail::destroy_handle(handle);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Within what is reserved, if cuDNN can: scratch that grows in a step waits for the stream. A smaller
  // shape takes more than the largest only where it is done in another way, so that is asked for last.
  std::optional<Plan> make(const Key& key) {
    std::string reason;
    std::optional<Plan> plan = build(key, std::nullopt, reason);
    if (!plan) {
      tell(key, reason);
    } else if (reserved && plan->workspace_bytes > *reserved) {
      auto within = build(key, reserved, reason);
      if (within && within->workspace_bytes < plan->workspace_bytes) plan = std::move(within);
    }
    return plan;
  }

  // With a workspace of at most so many bytes, but for what the front end adds. Nothing, with a reason, for
  // what cuDNN does not do.
  std::optional<Plan> build(const Key& key, std::optional<std::size_t> limit, std::string& reason) {
    auto graph = std::make_shared<fe::graph::Graph>();
    describe_attention(*graph, key, deterministic);
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
        "cuDNN does not take {} over {} x {} tokens{} of {} heads ({} of keys) of {}: {}; it is "
        "that of our own kernels, in f32",
        what, key.rows, key.seq, key.documents > 0 ? ", packed," : "", key.heads, key.kv_heads,
        key.head_dim, reason);
  }

  // NULL for what cuDNN does not do.
  const Plan* plan(cudaStream_t stream, const AttentionShape& shape, DType dtype,
                   Direction direction) {
    if (handle == nullptr || dtype != DType::bf16) return nullptr;
    const Key key{shape.rows,     shape.seq,    shape.heads,     shape.kv_heads,
                  shape.head_dim, shape.window, shape.documents, direction};
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
    const Plan* const found = plan(stream, shape, dtype, direction);
    if (!found) return false;
    const Plan& plan = *found;
    const std::size_t index_bytes = shape.documents > 0 ? DocumentIndex::bytes(shape.documents) : 0;
    const std::size_t bytes = index_bytes + plan.workspace_bytes;
    auto* const memory = bytes > 0 ? static_cast<std::byte*>(scratch(bytes)) : nullptr;
    if (shape.documents > 0) {
      const auto index = DocumentIndex::in(memory, shape.documents);
      document_index(stream, positions, shape, shape.documents, index);
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

  // The documents that a plan has room for, in place of those that there are: a power of two, so that plans
  // are few. False where their number is not known, or offsets have no room in 32 bits.
  static bool prepare_documents(AttentionShape& shape, atoll::ConstView positions) {
    if (positions.count == 0) {
      shape.documents = 0;
      return true;
    }
    const std::int64_t elements = shape.rows * shape.seq * shape.heads * shape.head_dim;
    if (shape.documents == 0 || elements > std::numeric_limits<std::int32_t>::max()) return false;
    shape.documents = room_for(shape.documents);
    return true;
  }
  static std::int64_t room_for(std::int64_t documents) {
    if (documents == 0) return 0;
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(documents)));
  }

  // Data sets of unequal batches make many shapes; this bounds what they hold.
  static constexpr std::size_t most_shapes = 1024;
};

Attention::Attention(bool deterministic) : impl_(std::make_unique<Impl>(deterministic)) {}
Attention::~Attention() = default;

std::size_t Attention::scratch_bytes(cudaStream_t stream, const AttentionShape& of, DType dtype) {
  AttentionShape shape = of;
  shape.documents = Impl::room_for(of.documents);
  const std::size_t index = shape.documents > 0 ? DocumentIndex::bytes(shape.documents) : 0;
  std::optional<std::size_t> reserved = std::exchange(impl_->reserved, {});  // this may be more
  std::size_t most = 0;
  for (const auto direction : {Direction::forward, Direction::backward}) {
    const Plan* const plan = impl_->plan(stream, shape, dtype, direction);
    if (!plan) continue;
    most = std::max(most, plan->workspace_bytes);
    reserved = std::max(reserved.value_or(0), most);
  }
  impl_->reserved = reserved;
  return most + index;
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
