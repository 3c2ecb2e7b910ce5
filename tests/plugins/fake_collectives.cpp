#include "fake_collectives.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace fake_gpu {
namespace {

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
    case ncclNumTypes:
      break;
  }
  return 8;
}

// A bf16 number, whose arithmetic rounds every result to the nearest one, as NCCL's does.
struct Bf16 {
  Bf16() = default;
  Bf16(float value) {  // NOLINT(google-explicit-constructor)
    std::uint32_t word = 0;
    std::memcpy(&word, &value, sizeof(word));
    bits = static_cast<std::uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
  }
  operator float() const {  // NOLINT(google-explicit-constructor)
    const std::uint32_t word = std::uint32_t{bits} << 16;
    float value = 0;
    std::memcpy(&value, &word, sizeof(value));
    return value;
  }
  std::uint16_t bits = 0;
};

template <class T>
T combine(T a, T b, int op) {
  if (op == ncclMin) return std::min(a, b);
  if (op == ncclMax) return std::max(a, b);
  if (op == ncclProd) return static_cast<T>(a * b);
  return static_cast<T>(a + b);
}

// Reduces `count` elements of the src of all ranks, from element `first` on, into dst.
template <class T>
void reduce_as(const std::vector<Shared>& calls, void* dst, std::size_t first, std::size_t count) {
  const Call& own = *calls.front();
  std::vector<T> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t r = 0; r < calls.size(); ++r) {
      const auto value = static_cast<const T*>(calls[r]->src)[first + i];
      result[i] = r == 0 ? value : combine(result[i], value, own.op);
    }
    if (own.op == ncclAvg)
      result[i] = static_cast<T>(result[i] / static_cast<T>(static_cast<float>(calls.size())));
  }
  std::memcpy(dst, result.data(), count * sizeof(T));
}

// Reduces `count` elements of all ranks into dst. Returns false for f16, whose reductions are not
// implemented. The nccl backend requests sums of bf16 and f16 only for Reduction::natively().
bool reduce(const std::vector<Shared>& calls, void* dst, std::size_t first, std::size_t count) {
  switch (static_cast<int>(calls.front()->type)) {
    case ncclFloat32:
      reduce_as<float>(calls, dst, first, count);
      return true;
    case ncclBfloat16:
      reduce_as<Bf16>(calls, dst, first, count);
      return true;
    case ncclFloat64:
      reduce_as<double>(calls, dst, first, count);
      return true;
    case ncclInt32:
      reduce_as<std::int32_t>(calls, dst, first, count);
      return true;
    case ncclInt64:
      reduce_as<std::int64_t>(calls, dst, first, count);
      return true;
    case ncclUint8:
      reduce_as<std::uint8_t>(calls, dst, first, count);
      return true;
    case ncclInt8:
      reduce_as<std::int8_t>(calls, dst, first, count);
      return true;
    case ncclUint32:
      reduce_as<std::uint32_t>(calls, dst, first, count);
      return true;
    case ncclUint64:
      reduce_as<std::uint64_t>(calls, dst, first, count);
      return true;
    default:
      return false;
  }
}

// Checks that all ranks place their buffers at the same position in registered windows. NCCL uses
// symmetric kernels for such buffers, and they access the windows of other ranks at the offset that
// the caller uses in its own window.
bool agree_on_windows(const Call& a, const Call& b) {
  const bool gathers = a.kind == Kind::all_gather, scatters = a.kind == Kind::reduce_scatter;
  const bool all = a.kind == Kind::all_reduce || a.kind == Kind::all_to_all;
  if (!gathers && !scatters && !all) return true;
  const bool in_windows = (a.src_place.window < 0) == (b.src_place.window < 0) &&
                          (a.dst_place.window < 0) == (b.dst_place.window < 0);
  const bool alike =
      (gathers || a.src_place == b.src_place) && (scatters || a.dst_place == b.dst_place);
  if (in_windows && alike) return true;
  std::fputs("fake NCCL: ranks use windows at different places\n", stderr);
  return false;
}

bool agree(const std::vector<Shared>& calls) {
  return std::ranges::all_of(calls, [&](const Shared& call) {
    const Call& first = *calls.front();
    return call->kind == first.kind && call->count == first.count && call->type == first.type &&
           call->peer == first.peer && call->op == first.op && agree_on_windows(first, *call);
  });
}

// Runs one collective. The data is copied through temporary buffers, because the result of one rank
// may overwrite the input of another rank.
bool run(const std::vector<Shared>& calls) {
  if (!agree(calls)) return false;
  const Call& first = *calls.front();
  const std::size_t n = calls.size(), bytes = first.count * size_of(first.type);
  std::vector<std::vector<char>> results(n, std::vector<char>(bytes));
  const auto root = static_cast<std::size_t>(first.peer);
  switch (first.kind) {
    case Kind::all_gather:
      for (std::size_t r = 0; r < n; ++r) std::memcpy(results[r].data(), calls[r]->src, bytes);
      for (const Shared& call : calls) {
        for (std::size_t r = 0; r < n; ++r) {
          std::memcpy(static_cast<char*>(call->dst) + r * bytes, results[r].data(), bytes);
        }
      }
      return true;
    case Kind::all_to_all:
      for (auto& result : results) result.resize(n * bytes);
      for (std::size_t r = 0; r < n; ++r) std::memcpy(results[r].data(), calls[r]->src, n * bytes);
      for (std::size_t to = 0; to < n; ++to) {
        for (std::size_t from = 0; from < n; ++from) {
          std::memcpy(static_cast<char*>(calls[to]->dst) + from * bytes,
                      results[from].data() + to * bytes, bytes);
        }
      }
      return true;
    case Kind::broadcast:
      std::memcpy(results[0].data(), calls[root]->src, bytes);
      for (const Shared& call : calls) std::memcpy(call->dst, results[0].data(), bytes);
      return true;
    case Kind::reduce:
      if (!reduce(calls, results[0].data(), 0, first.count)) return false;
      std::memcpy(calls[root]->dst, results[0].data(), bytes);
      return true;
    case Kind::all_reduce:
      if (!reduce(calls, results[0].data(), 0, first.count)) return false;
      for (const Shared& call : calls) std::memcpy(call->dst, results[0].data(), bytes);
      return true;
    case Kind::reduce_scatter:
      for (std::size_t r = 0; r < n; ++r) {
        if (!reduce(calls, results[r].data(), r * first.count, first.count)) return false;
      }
      for (std::size_t r = 0; r < n; ++r) std::memcpy(calls[r]->dst, results[r].data(), bytes);
      return true;
    case Kind::send:
    case Kind::recv:
      break;
  }
  return false;
}

void run_ready(Clique& clique) {
  const auto some = [&] {
    return std::ranges::all_of(clique.collectives, [](const auto& q) { return !q.empty(); });
  };
  while (!clique.broken && some()) {
    std::vector<Shared> calls;
    for (auto& queue : clique.collectives) {
      calls.push_back(queue.front());
      queue.pop_front();
    }
    clique.broken = !run(calls);
    for (const Shared& call : calls) call->done = !clique.broken;
  }
  for (auto& [pair, queues] : clique.messages) {
    auto& [sends, receives] = queues;
    while (!clique.broken && !sends.empty() && !receives.empty()) {
      const Shared from = sends.front(), to = receives.front();
      clique.broken = from->count != to->count || from->type != to->type;
      if (!clique.broken) std::memmove(to->dst, from->src, from->count * size_of(from->type));
      from->done = to->done = !clique.broken;
      sends.pop_front();
      receives.pop_front();
    }
  }
}

}  // namespace

void arrive(Clique& clique, int rank, const Shared& call) {
  if (call->kind == Kind::send) {
    clique.messages[{rank, call->peer}].first.push_back(call);
  } else if (call->kind == Kind::recv) {
    clique.messages[{call->peer, rank}].second.push_back(call);
  } else {
    clique.collectives[static_cast<std::size_t>(rank)].push_back(call);
  }
  run_ready(clique);
}

}  // namespace fake_gpu
