// The GPUs themselves: partitions, memory, clocks, driver.
#include <fmt/format.h>

#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

void mig(const Machine& machine, Verdict& verdict) {
  each_gpu(machine, verdict, fact::mig, [&](std::size_t gpu, std::string_view value) {
    if (value != "yes") return;
    const std::size_t parts = machine.gpu(gpu).partitions.size();
    verdict.add(
        Subject(machine.gpu(gpu)),
        {.severity = Severity::warning,
         .evidence = parts == 0 ? "MIG is on"
                                : fmt::format("MIG is on, with {}", plural(parts, "instance")),
         .consequence = "its instances use neither NVLink nor peer-to-peer transfers",
         .fix = "when its jobs have ended: nvidia-smi -i INDEX -mig 0"});
  });
}

void ecc_remap(const Machine& machine, Verdict& verdict) {
  const auto failed = machine.gpu_facts[fact::ecc_remap_failed];
  for (std::size_t gpu = 0; gpu < failed.size(); ++gpu)
    if (failed[gpu] == "yes")
      verdict.add(
          Subject(machine.gpu(gpu)),
          {.severity = Severity::error,
           .evidence = "a memory row could not be remapped: no spare rows are left",
           .consequence = "jobs on this GPU will fail with memory errors",
           .fix = "take it out of service (nvidia-smi -q -i INDEX -d ROW_REMAPPER) and have "
                  "it replaced"});
  each_gpu(machine, verdict, fact::ecc_remap_pending, [&](std::size_t gpu, std::string_view value) {
    if (value != "yes") return;
    verdict.add(
        Subject(machine.gpu(gpu)),
        {.severity = Severity::warning,
         .evidence = "a memory row is to be remapped",
         .consequence = "the row stays in use until then, and an error in it that cannot be "
                        "corrected ends the job",
         .fix = "drain the GPU and reset it: nvidia-smi -r -i INDEX"});
  });
}

// A power cap under load is how GPUs are meant to work; heat and brakes are not.
bool is_trouble(std::string_view reasons) {
  for (const std::string_view word : {"thermal", "brake", "slowdown", "hw_"})
    if (reasons.find(word) != std::string_view::npos) return true;
  return false;
}

void throttle(const Machine& machine, Verdict& verdict) {
  each_gpu(machine, verdict, fact::throttle, [&](std::size_t gpu, std::string_view value) {
    if (value == "none") return;
    verdict.add(Subject(machine.gpu(gpu)),
                {.severity = is_trouble(value) ? Severity::warning : Severity::info,
                 .evidence = fmt::format("clocks are held down: {}",
                                         fmt::join(words_of(value, " ,"), ", ")),
                 .consequence = "a synchronous job runs at the pace of its slowest GPU",
                 .fix = "nvidia-smi -q -i INDEX -d PERFORMANCE,TEMPERATURE,POWER; look at fans, "
                        "inlet air and power supplies"});
  });
}

void power_cap(const Machine& machine, Verdict& verdict) {
  if (machine.topology.gpus.empty()) return verdict.not_checked("no GPUs");
  Numbers limits(machine.gpu_facts[fact::power_limit_w]),
      defaults(machine.gpu_facts[fact::power_default_w]);
  for (std::size_t gpu = 0; gpu < machine.topology.gpus.size(); ++gpu) {
    const auto limit = limits[gpu], usual = defaults[gpu];
    if (!limit || !usual) {
      verdict.lacks(*machine.host_of_gpu(gpu).host,
                    limit ? fact::power_default_w : fact::power_limit_w);
      continue;
    }
    verdict.looked();
    if (*limit > *usual - 1) continue;
    verdict.add(
        Subject(machine.gpu(gpu)),
        {.severity = Severity::warning,
         .evidence = fmt::format("the power limit is {:g} W, {:g} W by default", *limit, *usual),
         .consequence = "clocks drop under load",
         .fix = fmt::format("unless it is meant so: nvidia-smi -i INDEX -pl {:.0f}", *usual)});
  }
}

void persistence(const Machine& machine, Verdict& verdict) {
  each_gpu(machine, verdict, fact::persistence, [&](std::size_t gpu, std::string_view value) {
    if (value != "no") return;
    verdict.add(Subject(machine.gpu(gpu)),
                {.severity = Severity::info,
                 .evidence = "persistence mode is off",
                 .consequence = "the driver forgets the GPU between jobs: each start takes "
                                "seconds longer, and settings are lost",
                 .fix = "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1"});
  });
}

constexpr CheckRow rows[] = {
    {"mig", "MIG is off", mig},
    {"ecc_remap", "No memory rows wait to be remapped", ecc_remap},
    {"throttle", "Clocks are not held down", throttle},
    {"power_cap", "Power limits are the default ones", power_cap},
    {"persistence", "Persistence mode is on", persistence},
};

}  // namespace

const std::span<const CheckRow> gpu_checks(rows);

}  // namespace atoll_v1::atoll::doctor
