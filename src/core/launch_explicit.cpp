// Processes started by hand or by a script, with ATOLL_RANK and ATOLL_SIZE and, for more than one rank,
// ATOLL_ADDR and ATOLL_TOKEN.
#include <fmt/format.h>

#include "atoll/error.hpp"
#include "core/launch.hpp"

namespace atoll_v1::atoll::launch {

std::optional<Job> find_explicit(const Config& config) {
  if (config.rank < 0 && config.size < 0) return std::nullopt;
  if (config.rank < 0 || config.size < 1 || config.rank >= config.size) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("ATOLL_RANK={} and ATOLL_SIZE={}: expected 0 <= rank < size",
                            config.rank, config.size));
  }
  Job job{"explicit", config.rank, config.size, configured_endpoint(config), nullptr};
  if (job.size > 1 && !job.agreed) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("rank {} of {} was set by ATOLL_RANK: also set ATOLL_ADDR (host:port of rank "
                    "0) and ATOLL_TOKEN (a secret of the job)",
                    job.rank, job.size));
  }
  return job;
}

}  // namespace atoll_v1::atoll::launch
