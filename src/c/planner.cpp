// The functions of planner.h: simulated devices and the time of arithmetic. This source is a part
// of libatoll_planner.
#include "atoll/planner.h"

#include "atoll/planner.hpp"
#include "atoll/tooling/fabric_model.hpp"
#include "c/handles.hpp"

using namespace atoll::c;

struct atoll_compute_model {
  atoll::ComputeModel model;
};

namespace atoll_v1::atoll::c {
namespace {

simulated::DeviceOptions simulated_options(const atoll_simulated_options& wanted) {
  simulated::DeviceOptions result{.memory_bytes = wanted.memory_bytes,
                                  .units = wanted.units,
                                  .launch_seconds = wanted.launch_seconds};
  if (wanted.name != nullptr) result.name = wanted.name;
  if (wanted.memory_gbyte_s != 0) result.memory_gbyte_s = wanted.memory_gbyte_s;
  if (wanted.intra_gbyte_s != 0 || wanted.inter_gbyte_s != 0) {
    FabricModel links;
    links.intra_gbyte_s = wanted.intra_gbyte_s;
    links.inter_gbyte_s = wanted.inter_gbyte_s;
    if (wanted.nics != 0) links.nics = wanted.nics;
    result.links = links.to_text();
  }
  return result;
}

}  // namespace
}  // namespace atoll_v1::atoll::c

atoll_status atoll_simulated_open(const atoll_simulated_options* given, atoll_device** device) {
  return create(device, "device", [&] {
    return atoll::simulated::make_device(simulated_options(options(given, "options")));
  });
}
atoll_status atoll_simulated_run(atoll_stream* stream, const atoll_timed_work* given) {
  return guard([&] {
    const atoll_timed_work work = options(&at(given, "work"), "work");
    atoll::simulated::run(at(stream, "stream").stream, {.name = text_or_empty(work.name),
                                                        .latency = work.latency,
                                                        .seconds = work.seconds,
                                                        .use = {.compute = work.compute,
                                                                .memory = work.memory,
                                                                .intra = work.intra,
                                                                .inter = work.inter}});
  });
}
atoll_status atoll_simulated_time(const atoll_device* device, double* seconds) {
  return guard(
      [&] { at(seconds, "seconds") = atoll::simulated::host_time(at(device, "device").device); });
}
atoll_status atoll_simulated_spend(const atoll_device* device, double seconds) {
  return guard([&] { atoll::simulated::spend(at(device, "device").device, seconds); });
}

atoll_status atoll_compute_model_open(const char* name, atoll_compute_model** model) {
  return create(model, "model", [&] { return atoll::find_compute_model(text(name, "name")); });
}
void atoll_compute_model_close(atoll_compute_model* model) { release(model); }
atoll_status atoll_product_seconds(const atoll_compute_model* model, int64_t m, int64_t n,
                                   int64_t k, int32_t bf16, uint64_t moved_bytes, double* seconds) {
  return guard([&] {
    at(seconds, "seconds") =
        product_seconds(at(model, "model").model,
                        {.m = m, .n = n, .k = k, .bf16 = bf16 != 0, .moved_bytes = moved_bytes});
  });
}
atoll_status atoll_attention_seconds(const atoll_compute_model* model, double flops, int64_t seq,
                                     int32_t bf16, double* seconds) {
  return guard([&] {
    at(seconds, "seconds") = attention_seconds(at(model, "model").model,
                                               {.flops = flops, .seq = seq, .bf16 = bf16 != 0});
  });
}
atoll_status atoll_moving_seconds(const atoll_compute_model* model, double bytes, double* seconds) {
  return guard([&] { at(seconds, "seconds") = moving_seconds(at(model, "model").model, bytes); });
}
