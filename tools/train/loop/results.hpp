// Writes the results of a run so that a failure to write one does not lose the others.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "atoll/world.hpp"
#include "loop/options.hpp"

namespace train {

class Results {
 public:
  explicit Results(atoll::World& world) : world_(world) {}

  // Calls `write`. If it throws an Error, keeps it as the failure of `what`, logs a warning on rank
  // 0 and returns false. A later success with the same `what` removes the failure. After a failure
  // of the job every Error is rethrown. Always rethrown are timeout, peer_lost, aborted,
  // out_of_memory, backend and internal, because a collective may throw these on one rank only. If
  // `write` is collective, it must throw every other Error on all ranks.
  bool attempt(const std::string& what, const std::function<void()>& write);

  // Collective. Throws Error(io) on every rank if an attempt of any rank has failed; the error has
  // all failures, and first `ended`: why the run ended early, "" if it is complete.
  void finish(const std::string& ended);

 private:
  atoll::World& world_;
  std::map<std::string, std::string> failures_;
};

// Throws Error(io) if a file that the run writes could not be written: the results in `out`,
// checkpoints, --export and --trace. Changes nothing. Every rank calls it.
void check_results(const atoll::World& world, const RunOptions& options,
                   const std::filesystem::path& out);

}  // namespace train
