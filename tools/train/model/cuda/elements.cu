// Kernels that touch each element once: biases, SwiGLU and rotary embedding.
#include <cmath>

#include "model/cuda/kernels.hpp"
#include "model/cuda/rows.cuh"

namespace train::cuda {
namespace {

using atoll::DType;

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <class T, int n>
__global__ void __launch_bounds__(threads)
    swiglu_packs(const T* gate, const T* up, T* out, std::uint64_t packs) {
  for (std::uint64_t i = first_item(); i < packs; i += items_stride()) {
    const auto gates = reinterpret_cast<const Pack<T, n>*>(gate)[i];
    const auto ups = reinterpret_cast<const Pack<T, n>*>(up)[i];
    Pack<T, n> to;
#pragma unroll
    for (int e = 0; e < n; ++e) {
      const float g = convert<float>(gates.values[e]);
      to.values[e] = convert<T>(g * sigmoid(g) * convert<float>(ups.values[e]));
    }
    reinterpret_cast<Pack<T, n>*>(out)[i] = to;
  }
}

// With s = sigmoid(g): d(silu)/dg = s + g s (1 - s). A thread reads a pack before overwriting it.
template <class T, int n>
__global__ void __launch_bounds__(threads)
    swiglu_backward_packs(const T* gate, const T* up, const T* dout, T* dgate, T* dup,
                          std::uint64_t packs) {
  for (std::uint64_t i = first_item(); i < packs; i += items_stride()) {
    const auto gates = reinterpret_cast<const Pack<T, n>*>(gate)[i];
    const auto ups = reinterpret_cast<const Pack<T, n>*>(up)[i];
    const auto douts = reinterpret_cast<const Pack<T, n>*>(dout)[i];
    Pack<T, n> dgates, dups;
#pragma unroll
    for (int e = 0; e < n; ++e) {
      const float g = convert<float>(gates.values[e]), u = convert<float>(ups.values[e]);
      const float dy = convert<float>(douts.values[e]);
      const float s = sigmoid(g), silu = g * s;
      dgates.values[e] = convert<T>(dy * u * (silu * (1.0f - s) + s));
      dups.values[e] = convert<T>(dy * silu);
    }
    reinterpret_cast<Pack<T, n>*>(dgate)[i] = dgates;
    reinterpret_cast<Pack<T, n>*>(dup)[i] = dups;
  }
}

template <class T>
__global__ void __launch_bounds__(threads) multiply(T* x, float factor, std::uint64_t count) {
  for (std::uint64_t i = first_item(); i < count; i += items_stride()) {
    x[i] = convert<T>(convert<float>(x[i]) * factor);
  }
}

template <class T>
__global__ void __launch_bounds__(threads)
    add_to_rows(const T* bias, T* y, std::uint64_t width, std::uint64_t count) {
  for (std::uint64_t i = first_item(); i < count; i += items_stride()) {
    y[i] = convert<T>(convert<float>(y[i]) + convert<float>(bias[i % width]));
  }
}

// A thread rotates n pairs (k, k + head_dim / 2) of a head.
template <class T, int n>
__global__ void __launch_bounds__(threads)
    rotate(T* x, const float* table, const std::int32_t* positions, std::uint64_t packs, int seq,
           int heads, int head_dim, float direction) {
  const int half = head_dim / 2, of_head = half / n;
  const auto of_token = static_cast<std::uint64_t>(heads) * static_cast<std::uint64_t>(of_head);
  for (std::uint64_t i = first_item(); i < packs; i += items_stride()) {
    const std::uint64_t token = i / of_token;
    const auto rest = static_cast<int>(i % of_token);
    const int head = rest / of_head, k = rest % of_head * n;
    const std::uint64_t position =
        positions == nullptr ? token : static_cast<std::uint32_t>(positions[token]);
    const float* const cosine =
        table + position % static_cast<std::uint64_t>(seq) * static_cast<std::uint64_t>(head_dim) +
        k;
    T* const low = x +
                   (token * static_cast<std::uint64_t>(heads) + static_cast<std::uint64_t>(head)) *
                       static_cast<std::uint64_t>(head_dim) +
                   k;
    auto lows = *reinterpret_cast<Pack<T, n>*>(low);
    auto highs = *reinterpret_cast<Pack<T, n>*>(low + half);
#pragma unroll
    for (int e = 0; e < n; ++e) {
      const float a = convert<float>(lows.values[e]), b = convert<float>(highs.values[e]);
      const float c = cosine[e], s = cosine[half + e] * direction;
      lows.values[e] = convert<T>(a * c - b * s);
      highs.values[e] = convert<T>(b * c + a * s);
    }
    *reinterpret_cast<Pack<T, n>*>(low) = lows;
    *reinterpret_cast<Pack<T, n>*>(low + half) = highs;
  }
}

// Calls body.operator()<T, n>(done, packs) for packs of 16 bytes, then for the remaining elements.
template <class Body>
void in_packs(DType dtype, std::uint64_t count, bool aligned, const Body& body) {
  with_compute_type(dtype, [&]<class T>(Type<T>) {
    constexpr int n = pack_of<T>;
    const std::uint64_t packs = aligned ? count / n : 0;
    if (packs > 0) body.template operator()<T, n>(std::uint64_t{0}, packs);
    if (count > packs * n) body.template operator()<T, 1>(packs * n, count - packs * n);
  });
}

}  // namespace

void swiglu_forward(cudaStream_t stream, atoll::ConstView gate, atoll::ConstView up,
                    atoll::View out) {
  in_packs(gate.dtype, gate.count, all_aligned(gate, up, out),
           [&]<class T, int n>(std::uint64_t done, std::uint64_t packs) {
             start("swiglu_forward", swiglu_packs<T, n>, {blocks_for(packs), stream},
                   pointer<T>(gate) + done, pointer<T>(up) + done, pointer<T>(out) + done, packs);
           });
}

void swiglu_backward(cudaStream_t stream, const SwigluBackward& args) {
  in_packs(args.gate.dtype, args.gate.count,
           all_aligned(args.gate, args.up, args.dout, args.dgate, args.dup),
           [&]<class T, int n>(std::uint64_t done, std::uint64_t packs) {
             start("swiglu_backward", swiglu_backward_packs<T, n>, {blocks_for(packs), stream},
                   pointer<T>(args.gate) + done, pointer<T>(args.up) + done,
                   pointer<T>(args.dout) + done, pointer<T>(args.dgate) + done,
                   pointer<T>(args.dup) + done, packs);
           });
}

void scale(cudaStream_t stream, atoll::View x, float factor) {
  if (x.count == 0) return;
  with_compute_type(x.dtype, [&]<class T>(Type<T>) {
    start("scale", multiply<T>, {blocks_for(x.count), stream}, pointer<T>(x), factor, x.count);
  });
}

void add_bias(cudaStream_t stream, atoll::ConstView bias, atoll::View y) {
  if (y.count == 0) return;
  with_compute_type(y.dtype, [&]<class T>(Type<T>) {
    start("add_bias", add_to_rows<T>, {blocks_for(y.count), stream}, pointer<T>(bias),
          pointer<T>(y), bias.count, y.count);
  });
}

void rope(cudaStream_t stream, const Rope& args) {
  if (args.x.count == 0) return;
  with_compute_type(args.x.dtype, [&]<class T>(Type<T>) {
    constexpr int n = pack_of<T>;
    const bool packed = args.head_dim / 2 % n == 0 && is_aligned(args.x.data, 16);
    const std::uint64_t packs = args.x.count / 2 / (packed ? n : 1);
    start("rope", packed ? rotate<T, n> : rotate<T, 1>, {blocks_for(packs), stream},
          pointer<T>(args.x), args.table.as<float>(),
          args.positions.count == 0 ? nullptr : args.positions.as<std::int32_t>(), packs,
          static_cast<int>(args.seq), static_cast<int>(args.heads), static_cast<int>(args.head_dim),
          args.direction == RopeDirection::inverse ? -1.0f : 1.0f);
  });
}

}  // namespace train::cuda
