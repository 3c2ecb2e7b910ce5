#include "report/gates.hpp"

#include <fmt/format.h>

namespace train {

std::vector<MissedGate> missed_gates(const Gates& gates, std::optional<double> mfu,
                                     std::uint64_t memory) {
  std::vector<MissedGate> missed;
  if (gates.min_mfu > 0 && !mfu) {
    missed.push_back(
        {mfu_gate_exit,
         "--min-mfu: no step was measured, so MFU is unknown: the first --untimed-steps "
         "after each start do not count, so run more steps"});
  } else if (gates.min_mfu > 0 && *mfu < gates.min_mfu) {
    missed.push_back({mfu_gate_exit, fmt::format("--min-mfu: MFU was {:.2f} %, below the limit of "
                                                 "{:.2f} %; report.html shows what limits it",
                                                 100 * *mfu, 100 * gates.min_mfu)});
  }
  if (gates.max_memory > 0 && memory > gates.max_memory) {
    const auto mib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / (1U << 20U); };
    missed.push_back(
        {memory_gate_exit,
         fmt::format("--max-memory: a rank used {:.1f} MiB, above the limit of {:.1f} MiB; the "
                     "memory plan in report.html shows for what",
                     mib(memory), mib(gates.max_memory))});
  }
  return missed;
}

}  // namespace train
