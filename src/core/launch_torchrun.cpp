// torchrun, and launchers that set the same variables: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
// The agent of torchrun listens on MASTER_PORT, so the store uses the next port or ATOLL_PORT.
#include <fmt/format.h>

#include <algorithm>

#include "atoll/error.hpp"
#include "core/launch.hpp"

namespace atoll_v1::atoll::launch {

std::optional<Job> find_torchrun(const Config& config) {
  const std::optional<int> rank = number("RANK", 0);
  const std::optional<int> size = number("WORLD_SIZE", 1);
  const std::optional<std::string> address = variable("MASTER_ADDR");
  if (!rank || !size || !address) return std::nullopt;
  Job job{"torchrun", *rank, *size, configured_endpoint(config), nullptr};
  if (*rank >= *size) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("RANK={} and WORLD_SIZE={}: expected rank < size", *rank, *size));
  }
  if (*size == 1 || job.agreed) return job;

  const int port = config.port != 0 ? config.port : number("MASTER_PORT", 1).value_or(0) + 1;
  if (port < 2 || port > 65535) {
    throw Error(
        ErrorCode::invalid_argument,
        "no port for the store: set MASTER_PORT (the store uses the next port) or ATOLL_PORT");
  }
  const std::vector<net::Address> addresses = net::resolve(*address, port);
  if (config.token.empty() && !std::ranges::all_of(addresses, net::is_loopback)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("MASTER_ADDR={} can be reached from other hosts: set ATOLL_TOKEN to a "
                            "secret of the job on every rank",
                            *address));
  }
  job.agreed = Endpoint{"", {*address}, port, config.token};
  return job;
}

}  // namespace atoll_v1::atoll::launch
