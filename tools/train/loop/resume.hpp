// --resume: continues the training that a checkpoint has saved.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "atoll/fsdp.hpp"
#include "atoll/world.hpp"
#include "loop/optimizer.hpp"
#include "loop/options.hpp"
#include "loop/setup.hpp"

namespace train {

// What a checkpoint records besides weights and moments.
using Extra = std::map<std::string, std::string>;

// The properties of a run that a resumed run must share, each by the name that
// --resume-with-changes uses: data, seed, global_batch, optimizer, frozen and model.
nlohmann::json same_run(const RunOptions& options, const Setup& setup,
                        const atoll::fsdp::Engine& engine);
// Returns the entries that a checkpoint of this run records after `done` steps.
Extra recorded_by(const nlohmann::json& run, std::int64_t done);

struct Resumed {
  std::int64_t done = 0;  // number of completed steps
  nlohmann::json extra;   // entries that the checkpoint records, parsed
};

// Loads the checkpoint of --resume. Returns nothing if --resume is auto and there is no checkpoint.
// With auto, a damaged checkpoint is skipped with a warning. Collective. Throws the errors of
// RunOptimizer::load(), Error(mismatch) for a checkpoint of another training or of another kind of
// optimizer, before it is loaded, and Error(invalid_argument) for one with more than --steps steps.
std::optional<Resumed> resume(atoll::World& world, const RunOptions& options,
                              const nlohmann::json& same_run, RunOptimizer& optimizer);

}  // namespace train
