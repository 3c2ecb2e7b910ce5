// A training job that may never run: model, machines and settings.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "atoll/fsdp.hpp"
#include "atoll/planner.hpp"
#include "atoll/tooling/fabric_model.hpp"
#include "model/activations.hpp"
#include "model/config.hpp"
#include "model/simulated/simulated_ops.hpp"

namespace plan {

// Hosts that are all alike.
struct Cluster {
  int hosts = 1;
  int ranks_per_host = 1;
  atoll::ComputeModel compute{};
  atoll::FabricModel fabric{};
  // Times of operations of the model, and rates of the library's kernels. Both are empty unless
  // atoll-plan --measure measured them on this machine.
  train::simulated::OpTimes times{};
  std::map<std::string, double, std::less<>> kernel_gbyte_s{};
  std::uint64_t process_bytes = 0;  // bytes of a process beside its buffers; 0 if not measured
  std::string inside_source{},
      between_source{};  // where the rates inside and between hosts come from

  bool is_cpu() const noexcept { return compute.units == 0; }
};

struct Job {
  train::ModelConfig model{};
  Cluster cluster{};
  atoll::fsdp::Strategy strategy = atoll::fsdp::Strategy::hybrid_shard;
  atoll::MeshShape mesh{};  // replicate x shard
  std::int64_t seq = 2048;
  std::int64_t micro_batch = 1;  // rows of a micro batch of a rank
  int micro_batches = 1;         // number of micro batches of a rank in a step
  atoll::DType dtype = atoll::DType::bf16;
  atoll::DType reduce_dtype = atoll::DType::f32;
  atoll::DType moments = atoll::DType::f32;
  train::Recompute recompute = train::Recompute::none;
  int prefetch = 1;
  int reduce_buffers = 2;
  bool clips = true;
  bool eager_attention = false;
  bool fp8 = false;  // products of the layers are in fp8
  train::simulated::Framework framework = train::simulated::Framework::atoll;

  int ranks() const noexcept { return cluster.hosts * cluster.ranks_per_host; }
  // Tokens of all ranks in a step.
  double tokens() const noexcept {
    return static_cast<double>(ranks()) * static_cast<double>(seq * micro_batch) * micro_batches;
  }
};

}  // namespace plan
