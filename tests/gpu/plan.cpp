// Measures the operations of a model on a GPU, and predicts a step from them.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "atoll/device.hpp"
#include "atoll/planner.hpp"
#include "model/config.hpp"
#include "plan/cluster.hpp"
#include "plan/measure.hpp"
#include "plan/simulate.hpp"
#include "unit/train/data_temporary.hpp"

using train_test::TemporaryFolder;

TEST_CASE("--measure on a GPU: a prediction finds the time of every operation") {
  plan::Job job;
  job.model = train::preset("mistral-tiny", 256);
  job.model.layers = 2;
  job.model.hidden = 64;
  job.model.heads = 4;
  job.model.kv_heads = 2;
  job.model.head_dim = 16;
  job.model.ffn = 96;
  job.seq = 32;
  job.micro_batch = 2;
  job.micro_batches = 2;
  job.strategy = atoll::fsdp::Strategy::no_shard;
  for (const atoll::DType dtype : {atoll::DType::f32, atoll::DType::bf16}) {
    CAPTURE(atoll::name(dtype));
    job.dtype = dtype;
    const plan::MeasureOptions options{.device = "cuda", .seconds = 0.01};
    const TemporaryFolder folder;
    const auto file = folder.write("machine.json", plan::measure_here(job, options, 0));
    const plan::MeasuredMachine machine = plan::read_machine(file);
    const atoll::Device gpu = atoll::Device::cuda(0);
    CHECK(machine.gpu == gpu.name());
    CHECK(machine.memory_bytes == gpu.memory_bytes());
    CHECK(machine.process_bytes == 0);
    CHECK(machine.times.size() > 10);
    CHECK(machine.kernel_gbyte_s.at("adamw") > 0);

    // use() keeps the cluster's links, and its peak if that of the measured GPU is published.
    plan::Job planned = job;
    planned.cluster.compute = atoll::find_compute_model("H100");
    planned.cluster.ranks_per_host = 1;
    planned.cluster.fabric.intra_gbyte_s = 361;
    planned.mesh = {1, 1};
    plan::use(machine, planned.cluster);
    CHECK_FALSE(planned.cluster.is_cpu());
    const double published = atoll::find_compute_model("H100").peak_bf16;
    CHECK(planned.cluster.compute.peak_bf16 ==
          (plan::has_model(machine.gpu) ? published : machine.peak_bf16));
    CHECK(planned.cluster.fabric.intra_gbyte_s == 361);
    const plan::Prediction prediction = plan::simulate(planned);
    CAPTURE(nlohmann::json(prediction.not_measured).dump());
    CHECK(prediction.not_measured.empty());
    // A step has two micro batches and two layers, so it takes longer than each operation once.
    double once = 0;
    for (const auto& [operation, seconds] : machine.times) once += seconds;
    CHECK(prediction.compute_s > once);
    CHECK(prediction.step_s >= prediction.compute_s);
  }
}
