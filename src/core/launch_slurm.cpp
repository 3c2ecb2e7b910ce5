// srun without a PMI plugin: Slurm provides rank and size, but cannot transport the address of the
// store.
#include <fmt/format.h>

#include "atoll/error.hpp"
#include "core/launch.hpp"

namespace atoll_v1::atoll::launch {

std::optional<Job> find_slurm(const Config& config) {
  // A batch script also has SLURM_PROCID=0, but it is not a job step.
  if (!variable("SLURM_STEP_ID")) return std::nullopt;
  const std::optional<int> rank = number("SLURM_PROCID", 0);
  std::optional<int> size = number("SLURM_STEP_NUM_TASKS", 1);
  if (!size) size = number("SLURM_NTASKS", 1);
  if (!rank || !size || *size == 1) return std::nullopt;
  Job job{"slurm", *rank, *size, configured_endpoint(config), nullptr};
  if (!job.agreed) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank {} of {} of a Slurm step without PMI: start it with `srun "
                            "--mpi=pmix`, or set ATOLL_ADDR (host:port of rank 0) and ATOLL_TOKEN "
                            "(a secret of the job)",
                            *rank, *size));
  }
  return job;
}

}  // namespace atoll_v1::atoll::launch
