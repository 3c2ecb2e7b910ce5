// Checks of the GPUs themselves: partitions, memory, clocks, power.
#include <fmt/format.h>

#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

void mig(const Machine& machine, CheckResult& result) {
  for (const GpuView& gpu : machine.gpus) {
    if (result.look(gpu, fact::mig) != "yes") continue;
    const std::size_t parts = gpu->partitions.size();
    result.add(
        gpu, {warning, parts == 0 ? "MIG is on"
                                  : fmt::format("MIG is on, with {}", plural(parts, "instance"))});
  }
}

void ecc_remap(const Machine& machine, CheckResult& result) {
  for (const GpuView& gpu : machine.gpus)
    if (gpu[fact::ecc_remap_failed] == "yes")
      result.add(gpu, {error, "a memory row could not be remapped: no spare rows are left",
                       "jobs on this GPU will fail with memory errors",
                       "take the GPU out of service (nvidia-smi -q -i INDEX -d ROW_REMAPPER) and "
                       "have it replaced"});
  for (const GpuView& gpu : machine.gpus)
    if (result.look(gpu, fact::ecc_remap_pending) == "yes")
      result.add(gpu, {warning, "a memory row waits to be remapped"});
}

// True if the GPU's clocks are reduced because of heat, a power brake or a hardware slowdown. A
// power cap under load is normal operation.
bool is_problem(std::string_view reasons) {
  for (const std::string_view word : {"thermal", "brake", "slowdown", "hw_"})
    if (reasons.find(word) != std::string_view::npos) return true;
  return false;
}

void throttle(const Machine& machine, CheckResult& result) {
  for (const GpuView& gpu : machine.gpus) {
    const std::string_view reasons = result.look(gpu, fact::throttle);
    if (reasons.empty() || reasons == "none") continue;
    result.add(gpu,
               {is_problem(reasons) ? warning : info,
                fmt::format("clocks are reduced: {}", fmt::join(words_of(reasons, " ,"), ", "))});
  }
}

void power_cap(const Machine& machine, CheckResult& result) {
  for (const GpuView& gpu : machine.gpus) {
    const auto limit = gpu.number(fact::power_limit_w), usual = gpu.number(fact::power_default_w);
    if (!limit || !usual) {
      result.lacks(gpu.host(), limit ? fact::power_default_w : fact::power_limit_w);
      continue;
    }
    result.looked();
    if (*limit > *usual - 1) continue;
    result.add(
        gpu,
        {warning, fmt::format("the power limit is {:g} W, but {:g} W by default", *limit, *usual),
         "", fmt::format("unless this is intended: nvidia-smi -i INDEX -pl {:.0f}", *usual)});
  }
}

void persistence(const Machine& machine, CheckResult& result) {
  for (const GpuView& gpu : machine.gpus)
    if (result.look(gpu, fact::persistence) == "no")
      result.add(gpu, {info, "persistence mode is off"});
}

constexpr CheckRow rows[] = {
    {"mig", "MIG is off", mig, "no GPUs",
     "MIG instances use neither NVLink nor peer-to-peer transfers",
     "after the GPU's jobs have ended: nvidia-smi -i INDEX -mig 0"},
    {"ecc_remap", "No memory rows wait to be remapped", ecc_remap, "no GPUs",
     "the GPU uses the row until its next reset; an uncorrectable error in it ends the job",
     "drain the GPU and reset it: nvidia-smi -r -i INDEX"},
    {"throttle", "Clocks are not reduced", throttle, "no GPUs",
     "a synchronous job runs at the pace of its slowest GPU",
     "nvidia-smi -q -i INDEX -d PERFORMANCE,TEMPERATURE,POWER; check fans, inlet air and power "
     "supplies"},
    {"power_cap", "Power limits have their default values", power_cap, "no GPUs",
     "the GPU lowers its clocks under load"},
    {"persistence", "Persistence mode is on", persistence, "no GPUs",
     "the driver resets the GPU between jobs: each start takes seconds longer, and settings are "
     "lost",
     "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1"},
};

}  // namespace

const std::span<const CheckRow> gpu_checks(rows);

}  // namespace atoll_v1::atoll::doctor
