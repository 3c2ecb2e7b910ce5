// The commands of atoll-train that read finished runs. They need no ranks.
#pragma once

#include <optional>

namespace train {

// Runs `atoll-train report` or `atoll-train compare` and returns the exit code, or nothing if the
// arguments start a training run.
std::optional<int> run_command(int argc, char** argv);

}  // namespace train
