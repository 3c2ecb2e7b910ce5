// Ops for simulated devices (atoll/planner.hpp): each operation takes the time of its shape, and
// nothing is computed.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "atoll/device.hpp"
#include "atoll/planner.hpp"
#include "model/ops.hpp"
#include "model/simulated/op_times.hpp"

namespace train::simulated {

// A framework determines how many kernels a step has besides matrix products, and how many bytes
// these kernels read and write.
enum class Framework {
  atoll,
  pytorch_eager,    // Hugging Face's modules, one operation at a time
  pytorch_compiled  // Hugging Face's modules through torch.compile
};
std::string_view name(Framework framework) noexcept;
// "atoll", "pytorch-eager", "pytorch-compile". Throws Error(invalid_argument) for other texts.
Framework framework_from_name(std::string_view name);

// Costs of a framework beside the operations of the model.
struct FrameworkCosts {
  double launch = 1;          // CPU time of a launch, as a multiple of ComputeModel::launch_s
  double update_bytes = 1;    // bytes that updates read and write, as a multiple of atoll's
  bool copies_units = false;  // each gathered unit and each gradient is copied once more
  double logit_bytes = 0;     // bytes of memory for each logit of a micro batch. atoll computes the
                              // head in blocks, whose memory the activations contain
};
const FrameworkCosts& costs_of(Framework framework) noexcept;

// atoll::simulated::TimedWork::crowded_speed of elementwise kernels on GPUs (NVIDIA/nccl 1428).
inline constexpr double crowded_elementwise = 0.4;

struct SimulatedOpsOptions {
  atoll::ComputeModel compute{};
  Framework framework = Framework::atoll;
  OpTimes times{};  // measured times, which replace those of `compute`
  // Receives the keys of operations that `times` does not have, unless it is empty. May be null;
  // otherwise it must live as long as the ops.
  std::set<std::string>* not_measured = nullptr;
  bool eager_attention = false;  // attention stores its scores, as without a fused kernel
  bool fp8 = false;              // products of the layers are in fp8, as with atoll-train --fp8
};

std::unique_ptr<Ops> make_ops(const SimulatedOpsOptions& options);

}  // namespace train::simulated
