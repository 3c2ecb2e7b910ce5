// Limits that the figures of a whole run must keep, for scripts and CI.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace train {

struct Gates {
  double min_mfu = 0;            // least MFU, from 0 to 1; 0: no limit
  std::uint64_t max_memory = 0;  // most bytes of a rank; 0: no limit
};

// Exit codes of atoll-train for a run that ended well but missed a limit.
inline constexpr int mfu_gate_exit = 3;
inline constexpr int memory_gate_exit = 4;

struct MissedGate {
  int exit_code = 0;
  std::string message;  // names the flag, the figure and the limit
};

// Compares the run's mean MFU and the most memory of any rank with the limits. An unknown MFU
// misses its limit.
std::vector<MissedGate> missed_gates(const Gates& gates, std::optional<double> mfu,
                                     std::uint64_t memory);

}  // namespace train
