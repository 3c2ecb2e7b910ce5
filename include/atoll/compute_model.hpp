// How long arithmetic takes on a device: a model by shapes, for simulations and plans. Pure
// functions.
//
// A product is cut into tiles, which the compute units process in waves; the last wave is seldom
// full. The model starts from the rate that was measured for large products on the device. It takes
// away what the last wave leaves idle, and the time in which a tile fills its pipeline. A product
// that moves more bytes than it computes is limited by the memory. Everything else (norms,
// activation functions, updates) takes the time of the bytes that it reads and writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/error.hpp"

namespace atoll_v1::atoll {

// Dense products in FLOP/s by the data sheet: bf16 with f32 sums on tensor cores (f16 on a V100),
// and f32 without them. Where a sheet gives only the rate with sparsity, it is half of that.
struct PeakRates {
  double bf16 = 0, f32 = 0;
};
// Finds a GPU by the name that its driver reports. The rates are 0 for a GPU that the table of
// models (topology/gpu_models.cpp) does not have, and for a part of one (MIG).
ATOLL_API PeakRates peak_rates(std::string_view gpu);

struct ComputeModel {
  std::string name;      // "H100"
  double peak_bf16 = 0;  // PeakRates: the base of MFU
  double peak_f32 = 0;   // TF32 is not used
  // The measured rates of large products, and of attention over long sequences, as parts of
  // peak_bf16 or peak_f32.
  double best_product = 1;
  double best_attention = 1;
  double flash_attention_2 = 1;  // attention by FlashAttention-2, which PyTorch uses
  int units = 0;                 // compute units (SMs); 0: products have no tiles, as on CPUs
  double memory_gbyte_s = 0;     // bandwidth of the memory that kernels reach
  std::uint64_t memory_bytes = 0;
  std::uint64_t reserved_bytes = 0;  // context, libraries and NCCL's buffers of one rank
  double kernel_s = 0;               // least time of a kernel
  double launch_s = 0;               // time of the host to launch a kernel
  std::string source;                // where the figures come from
};

// Finds a device by a name such as "H100", "NVIDIA H200 SXM" or "a100-40gb". Throws
// Error(not_found), which lists the known names.
ATOLL_API const ComputeModel& find_compute_model(std::string_view name);
// Returns the names of the table, in its order.
ATOLL_API std::vector<std::string> compute_model_names();

struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  bool bf16 = true;               // type of both operands; else f32
  std::uint64_t moved_bytes = 0;  // bytes of operands and result
};

// Seconds of one kernel, without the host's launch.
ATOLL_API double product_seconds(const ComputeModel& model, const ProductShape& shape);
ATOLL_API double moving_seconds(const ComputeModel& model, double bytes);
struct AttentionWork {
  double flops = 0;      // operations, with the masked half left out
  std::int64_t seq = 0;  // tokens of a sequence
  bool bf16 = true;
  bool flash_attention_2 = false;  // else the device's fastest kernel
};
// Seconds of causal attention, without the host's launch.
ATOLL_API double attention_seconds(const ComputeModel& model, const AttentionWork& work);

}  // namespace atoll_v1::atoll
