// Cross entropy with one block of threads per row of logits, which is read twice and written once.
// 16-bit logits are never copied to f32 memory.
#include <algorithm>
#include <cmath>

#include "model/cuda/kernels.hpp"
#include "model/cuda/rows.cuh"

namespace train::cuda {
namespace {

constexpr float log2_e = 1.44269504f;

// Calls body(pack, index) for this thread's packs of a row, loading several packs at a time.
template <int n, class T, class Body>
__device__ __forceinline__ void each_pack(const T* row, int packs, const Body& body) {
  constexpr int ahead = 4, stride = static_cast<int>(threads);
  for (int first = static_cast<int>(threadIdx.x); first < packs; first += ahead * stride) {
    Pack<T, n> read[ahead];
#pragma unroll
    for (int k = 0; k < ahead; ++k) {
      const int i = first + k * stride;
      if (i < packs) read[k] = reinterpret_cast<const Pack<T, n>*>(row)[i];
    }
#pragma unroll
    for (int k = 0; k < ahead; ++k) {
      const int i = first + k * stride;
      if (i < packs) body(read[k], i);
    }
  }
}

// Online maximum, and sum of exponentials relative to it, of one thread's part of a row.
struct Running {
  float maximum = Maximum::none();
  float sum = 0;
  // Rescales the sum once per pack, without branches. NaN propagates.
  template <class T, int n>
  __device__ void add(const Pack<T, n>& pack) {
    float most = maximum;
#pragma unroll
    for (int e = 0; e < n; ++e) most = fmaxf(most, convert<float>(pack.values[e]));
    sum *= exp2f((maximum - most) * log2_e);
#pragma unroll
    for (int e = 0; e < n; ++e) sum += exp2f((convert<float>(pack.values[e]) - most) * log2_e);
    maximum = most;
  }
};

// Computes the loss of each row. A thread handles n elements at a time.
template <class In, class Out, int n>
__global__ void __launch_bounds__(threads)
    loss_of_rows(const In* logits, Out* dlogits, const std::int32_t* labels, double* losses,
                 int vocab, float scale, BadId* bad) {
  __shared__ float shared[warps];
  const std::int64_t first = std::int64_t{blockIdx.x} * vocab;
  const In* const row = logits + first;
  const std::int32_t label = labels[blockIdx.x];
  if (label < 0 || label >= vocab) {
    if (threadIdx.x == 0) {
      losses[blockIdx.x] = 0;
      if (label >= vocab) report(bad, label, blockIdx.x);
    }
    if (dlogits == nullptr) return;
    for (int i = static_cast<int>(threadIdx.x); i < vocab; i += threads) {
      dlogits[first + i] = convert<Out>(0.0f);
    }
    return;
  }
  Running mine;
  each_pack<n>(row, vocab / n, [&](const Pack<In, n>& pack, int) { mine.add(pack); });
  const float below_label = convert<float>(row[label]);
  const float maximum = over_block<Maximum>(mine.maximum, shared);
  const float sum = over_block<Sum>(mine.sum * exp2f((mine.maximum - maximum) * log2_e), shared);
  const float log_sum = logf(sum), below = below_label - maximum;
  if (threadIdx.x == 0) {
    losses[blockIdx.x] = static_cast<double>(log_sum) - static_cast<double>(below);
  }
  if (dlogits == nullptr) return;
  const float factor = scale / sum;
  Out* const to_row = dlogits + first;
  each_pack<n>(row, vocab / n, [&](const Pack<In, n>& from, int i) {
    Pack<Out, n> to;
#pragma unroll
    for (int e = 0; e < n; ++e) {
      const float value = convert<float>(from.values[e]);
      to.values[e] = convert<Out>(exp2f((value - maximum) * log2_e) * factor);
    }
    reinterpret_cast<Pack<Out, n>*>(to_row)[i] = to;
    // The label's element is computed separately, because p - 1 would cancel for p near 1.
    if (i == label / n) to_row[label] = convert<Out>(expm1f(below - log_sum) * scale);
  });
}

// A single block: each thread sums rows at a stride, then pairs are added at halving distances.
__global__ void __launch_bounds__(threads)
    add_losses(double* total, const double* losses, const std::int32_t* labels,
               std::uint64_t rows) {
  __shared__ double sums[threads];
  __shared__ double valids[threads];
  double sum = 0, valid = 0;
  for (std::uint64_t i = threadIdx.x; i < rows; i += threads) {
    sum += losses[i];
    valid += labels[i] >= 0 ? 1.0 : 0.0;
  }
  sums[threadIdx.x] = sum;
  valids[threadIdx.x] = valid;
  for (unsigned half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x >= half) continue;
    sums[threadIdx.x] += sums[threadIdx.x + half];
    valids[threadIdx.x] += valids[threadIdx.x + half];
  }
  if (threadIdx.x != 0) return;
  total[0] += sums[0];
  total[1] += valids[0];
}

}  // namespace

void cross_entropy(cudaStream_t stream, const CrossEntropy& args, double* losses, BadId* bad) {
  if (args.labels.count == 0) return;
  const bool wanted = args.dlogits.count != 0;
  const atoll::DType out = wanted ? args.dlogits.dtype : args.logits.dtype;
  with_compute_type(args.logits.dtype, [&]<class In>(Type<In>) {
    with_compute_type(out, [&]<class Out>(Type<Out>) {
      constexpr int n = std::min(pack_of<In>, pack_of<Out>);
      const bool packed = args.vocab % n == 0 && is_aligned(args.logits.data, sizeof(In) * n) &&
                          (!wanted || is_aligned(args.dlogits.data, sizeof(Out) * n));
      start("cross_entropy", packed ? loss_of_rows<In, Out, n> : loss_of_rows<In, Out, 1>,
            {static_cast<unsigned>(args.labels.count), stream}, pointer<In>(args.logits),
            wanted ? pointer<Out>(args.dlogits) : nullptr, args.labels.as<std::int32_t>(), losses,
            static_cast<int>(args.vocab), args.scale, bad);
    });
  });
  start("cross_entropy", add_losses, {1, stream}, args.total.as<double>(), losses,
        args.labels.as<std::int32_t>(), args.labels.count);
}

}  // namespace train::cuda
