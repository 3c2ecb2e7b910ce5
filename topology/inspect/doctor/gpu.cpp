// Checks of the GPUs themselves: partitions, memory, clocks, power.
#include <fmt/format.h>

#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

void mig(const Machine& machine, CheckResult& result) {
  each_gpu(machine, result, fact::mig, [&](std::size_t gpu, std::string_view value) {
    if (value != "yes") return;
    const std::size_t parts = machine.gpu(gpu).partitions.size();
    result.add(
        machine.gpu(gpu),
        {warning,
         parts == 0 ? "MIG is on" : fmt::format("MIG is on, with {}", plural(parts, "instance")),
         "MIG instances use neither NVLink nor peer-to-peer transfers",
         "after the GPU's jobs have ended: nvidia-smi -i INDEX -mig 0"});
  });
}

void ecc_remap(const Machine& machine, CheckResult& result) {
  const auto failed = machine.gpu_facts[fact::ecc_remap_failed];
  for (std::size_t gpu = 0; gpu < failed.size(); ++gpu)
    if (failed[gpu] == "yes")
      result.add(
          machine.gpu(gpu),
          {error, "a memory row could not be remapped: no spare rows are left",
           "jobs on this GPU will fail with memory errors",
           "take the GPU out of service (nvidia-smi -q -i INDEX -d ROW_REMAPPER) and have it "
           "replaced"});
  each_gpu(machine, result, fact::ecc_remap_pending, [&](std::size_t gpu, std::string_view value) {
    if (value != "yes") return;
    result.add(
        machine.gpu(gpu),
        {warning, "a memory row waits to be remapped",
         "the GPU uses the row until its next reset; an uncorrectable error in it ends the job",
         "drain the GPU and reset it: nvidia-smi -r -i INDEX"});
  });
}

// True if the GPU's clocks are reduced because of heat, a power brake or a hardware slowdown. A
// power cap under load is normal operation.
bool is_problem(std::string_view reasons) {
  for (const std::string_view word : {"thermal", "brake", "slowdown", "hw_"})
    if (reasons.find(word) != std::string_view::npos) return true;
  return false;
}

void throttle(const Machine& machine, CheckResult& result) {
  each_gpu(machine, result, fact::throttle, [&](std::size_t gpu, std::string_view value) {
    if (value == "none") return;
    result.add(machine.gpu(gpu),
               {is_problem(value) ? warning : info,
                fmt::format("clocks are reduced: {}", fmt::join(words_of(value, " ,"), ", ")),
                "a synchronous job runs at the pace of its slowest GPU",
                "nvidia-smi -q -i INDEX -d PERFORMANCE,TEMPERATURE,POWER; check fans, inlet air "
                "and power supplies"});
  });
}

void power_cap(const Machine& machine, CheckResult& result) {
  Numbers limits(machine.gpu_facts[fact::power_limit_w]),
      defaults(machine.gpu_facts[fact::power_default_w]);
  for (std::size_t gpu = 0; gpu < machine.topology.gpus.size(); ++gpu) {
    const auto limit = limits[gpu], usual = defaults[gpu];
    if (!limit || !usual) {
      result.lacks(*machine.host_of_gpu(gpu).host,
                   limit ? fact::power_default_w : fact::power_limit_w);
      continue;
    }
    result.looked();
    if (*limit > *usual - 1) continue;
    result.add(
        machine.gpu(gpu),
        {warning, fmt::format("the power limit is {:g} W, but {:g} W by default", *limit, *usual),
         "the GPU lowers its clocks under load",
         fmt::format("unless this is intended: nvidia-smi -i INDEX -pl {:.0f}", *usual)});
  }
}

void persistence(const Machine& machine, CheckResult& result) {
  each_gpu(machine, result, fact::persistence, [&](std::size_t gpu, std::string_view value) {
    if (value != "no") return;
    result.add(machine.gpu(gpu),
               {info, "persistence mode is off",
                "the driver resets the GPU between jobs: each start takes seconds longer, and "
                "settings are lost",
                "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1"});
  });
}

constexpr CheckRow rows[] = {
    {"mig", "MIG is off", mig, "no GPUs"},
    {"ecc_remap", "No memory rows wait to be remapped", ecc_remap, "no GPUs"},
    {"throttle", "Clocks are not reduced", throttle, "no GPUs"},
    {"power_cap", "Power limits have their default values", power_cap, "no GPUs"},
    {"persistence", "Persistence mode is on", persistence, "no GPUs"},
};

}  // namespace

const std::span<const CheckRow> gpu_checks(rows);

}  // namespace atoll_v1::atoll::doctor
