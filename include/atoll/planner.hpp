// Simulated devices and a model of the time of arithmetic. A program predicts with them how fast a
// job runs, without its hardware. Link libatoll_planner (atoll::planner), which libatoll does not
// need.
//
// The streams of a simulated device are clocks: work takes modelled time, buffers have sizes and no
// memory, and collectives take the time that the model of the links gives. Engines, schedulers and
// communicators run on such a device as on a GPU.
//
//   World world = World::simulated({.rank = 0, .hosts = 4, .ranks_per_host = 8});
//   Device device = simulated::make_device({.name = "H100", .links = fabric.to_text()});
//   Stream compute = device.stream({.name = "compute"});
//   simulated::run(compute, {.name = "product", .seconds = 1e-3});
//   compute.synchronize();
//   double seconds = simulated::host_time(device);
//
// One process simulates one rank. It assumes that the other ranks make the same calls at the same
// time. Memory of such a device has addresses, but must not be read or written. Functions that
// Stream::enqueue() takes are not called.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/device.hpp"

namespace atoll_v1::atoll::simulated {

// The share of each resource of a rank that work uses while it runs, from 0 to 1.
//
// Work that uses a part of the compute units holds that part until it ends, as the resident blocks
// of a GPU do; work that uses all units shares what is left. If more than all units are held, the
// work that holds them slows down in proportion, and work that uses all units waits. If concurrent
// work uses more than 1 of another resource in total, this work slows down in proportion.
struct Use {
  double compute = 0;  // share of the compute units, such as the SMs of a GPU
  double memory = 0;   // share of the bandwidth of the device's memory
  double intra = 0;    // share of the links inside a host
  double inter = 0;    // share of the links to other hosts
};

struct TimedWork {
  std::string name;    // name of the work in traces
  double latency = 0;  // seconds before the work begins to use resources
  double seconds = 0;  // seconds that the work takes when nothing else runs
  Use use{};
  // Highest speed, relative to running alone, while other work holds compute units. 0.5 for a
  // kernel that has a block for each unit, and so needs a second round when one unit is missing.
  double crowded_speed = 1;
};

struct DeviceOptions {
  std::string name = "simulated";
  // Limit of allocated bytes; 0: no limit. An allocation beyond the limit throws
  // Error(out_of_memory).
  std::uint64_t memory_bytes = 0;
  double memory_gbyte_s = 1000;  // memory bandwidth that atoll's kernels reach
  // The bandwidth for single kernels by name ("adamw", "cast", "add", "fill", ...), where it was
  // measured.
  std::map<std::string, double, std::less<>> kernel_gbyte_s{};
  // Number of compute units (SMs); 0: none. A kernel of few thread blocks, such as an update beside
  // a forward pass, holds one unit for each block.
  int units = 0;
  double launch_seconds = 0;  // seconds of CPU time to enqueue one kernel or copy
  std::string links{};        // links as FabricModel::to_text() writes them; "" without collectives
};

// Throws Error(invalid_argument) for a bandwidth or a time that is not finite and positive (0 is
// allowed for the launch time), and for a negative number of units.
ATOLL_API Device make_device(DeviceOptions options);

// The functions below throw Error(invalid_argument) for a stream or device that is not simulated.

// Enqueues work that takes modelled time.
ATOLL_API void run(Stream& stream, TimedWork work);
// Seconds of the simulated CPU's clock, which launches and synchronize() advance.
ATOLL_API double host_time(const Device& device);
// Lets the simulated CPU spend time on other work.
ATOLL_API void spend(const Device& device, double seconds);

}  // namespace atoll_v1::atoll::simulated

namespace atoll_v1::atoll {

// A model of the time that arithmetic takes on a device, from the shapes of the operands.
//
// A matrix product is cut into tiles, which the compute units process in waves; the last wave is
// seldom full. The model starts from the rate that was measured for large products on the device.
// It lowers this rate by the share of units that the last wave leaves idle, and by the time in
// which a tile fills its pipeline. If moving the bytes of a product takes longer than its
// arithmetic, that time counts. All other work (norms, activation functions, updates) takes the
// time of the bytes that it reads and writes.
struct ComputeModel {
  std::string name;      // name of the device, such as "H100"
  double peak_bf16 = 0;  // FLOP/s in bf16 (PeakRates), the base of MFU
  double peak_f32 = 0;   // FLOP/s in f32, without TF32
  // FLOP/s in 8-bit floating point; 0: atoll's trainer has no products in fp8 on this device
  double peak_fp8 = 0;
  // The measured rates of large products, and of attention over long sequences, as fractions of
  // peak_bf16 or peak_f32.
  double best_product = 1;
  double best_attention = 1;
  double flash_attention_2 = 1;  // fraction of the peak that PyTorch's FlashAttention-2 reaches
  int units = 0;                 // number of compute units (SMs); 0: products have no tiles (CPUs)
  double memory_gbyte_s = 0;     // memory bandwidth that kernels reach
  std::uint64_t memory_bytes = 0;
  std::uint64_t reserved_bytes = 0;  // bytes of context, libraries and NCCL's buffers of one rank
  double kernel_s = 0;               // minimum time of a kernel in seconds
  double launch_s = 0;               // seconds of CPU time to launch a kernel
  std::string source;                // source of these figures, for people
};

// Finds a device by a name such as "H100", "NVIDIA H200 SXM" or "a100-40gb". Throws
// Error(not_found), which lists the known names.
ATOLL_API const ComputeModel& find_compute_model(std::string_view name);
ATOLL_API std::vector<std::string> compute_model_names();

struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  bool bf16 = true;               // true if both operands are bf16, false if they are f32
  std::uint64_t moved_bytes = 0;  // bytes of operands and result
};

// Seconds of one kernel, without its launch by the CPU.
ATOLL_API double product_seconds(const ComputeModel& model, const ProductShape& shape);
ATOLL_API double moving_seconds(const ComputeModel& model, double bytes);
struct AttentionWork {
  double flops = 0;      // number of operations, without the masked half
  std::int64_t seq = 0;  // number of tokens of a sequence
  bool bf16 = true;
  bool flash_attention_2 = false;  // true: FlashAttention-2; false: the device's fastest kernel
};
// Seconds of causal attention, without its launch by the CPU.
ATOLL_API double attention_seconds(const ComputeModel& model, const AttentionWork& work);

}  // namespace atoll_v1::atoll
