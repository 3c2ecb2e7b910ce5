#include "world/launch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>

#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/parse.hpp"
#include "core/terminal_safe.hpp"

namespace atoll_v1::atoll::launch {

std::string to_text(const Endpoint& endpoint) {
  return fmt::format("{}|{}|{}|{}", endpoint.host_id, fmt::join(endpoint.addresses, ","),
                     endpoint.port, endpoint.token);
}

Endpoint endpoint_from_text(std::string_view text) {
  const auto fields = split(text, '|');
  const auto port = fields.size() == 4 ? number_from<int>(fields[2]) : std::nullopt;
  if (!port || *port < 1 || *port > 65535 || fields[1].empty()) {
    throw Error(ErrorCode::bad_data,
                "the text that rank 0 published through the launcher is not a store address");
  }
  const auto addresses = split(fields[1], ',');
  return {
      std::string(fields[0]), {addresses.begin(), addresses.end()}, *port, std::string(fields[3])};
}

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return value;
}

std::optional<int> number(const char* name, int least) {
  const std::optional<std::string> text = variable(name);
  if (!text) return std::nullopt;
  const std::optional<int> value = number_from<int>(*text);
  require(value && *value >= least, "{}=\"{}\": expected a whole number from {}", name,
          terminal_safe(*text), least);
  return value;
}

std::optional<Endpoint> configured_endpoint(const Config& config) {
  if (config.addr.empty() || config.token.empty()) return std::nullopt;
  const auto colon = config.addr.rfind(':');
  std::string host = config.addr.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const std::string port_text = colon == std::string::npos ? "" : config.addr.substr(colon + 1);
  const int port = number_from<int>(port_text).value_or(-1);
  require(!host.empty() && port >= 0 && port <= 65535,
          "ATOLL_ADDR=\"{}\": expected host:port, with a port from 0 to 65535",
          terminal_safe(config.addr));
  require(
      port > 0 || config.rank <= 0,
      "ATOLL_ADDR=\"{}\" on rank {}: only rank 0 may choose port 0; set the port that rank 0 logs",
      terminal_safe(config.addr), config.rank);
  return Endpoint{"", {host}, port, config.token};
}

std::string next_key() {
  static std::atomic<int> count{0};
  return fmt::format("atoll-{}", count++);
}

namespace {

// Processes started by hand or by a script, with ATOLL_RANK and ATOLL_SIZE and, for more than one
// rank, ATOLL_ADDR and ATOLL_TOKEN.
std::optional<Job> find_explicit(const Config& config) {
  if (config.rank < 0 && config.size < 0) return std::nullopt;
  require(config.rank >= 0 && config.size >= 0, "{} is set, but {} is not: set both",
          config.rank >= 0 ? "ATOLL_RANK" : "ATOLL_SIZE",
          config.rank >= 0 ? "ATOLL_SIZE" : "ATOLL_RANK");
  require(config.rank >= 0 && config.rank < config.size,
          "ATOLL_RANK={} and ATOLL_SIZE={}: expected 0 <= rank < size", config.rank, config.size);
  Job job{"explicit", config.rank, config.size, configured_endpoint(config)};
  require(job.size == 1 || job.agreed, "rank {} of {} was set by ATOLL_RANK: also set {}{}{}",
          job.rank, job.size, config.addr.empty() ? "ATOLL_ADDR (host:port of rank 0)" : "",
          config.addr.empty() && config.token.empty() ? " and " : "",
          config.token.empty() ? "ATOLL_TOKEN (a secret of the job)" : "");
  return job;
}

// torchrun, and launchers that set the same variables: RANK, WORLD_SIZE, MASTER_ADDR and
// MASTER_PORT. The agent of torchrun listens on MASTER_PORT, so the store uses the next port or
// ATOLL_PORT.
std::optional<Job> find_torchrun(const Config& config) {
  const std::optional<int> rank = number("RANK", 0);
  const std::optional<int> size = number("WORLD_SIZE", 1);
  const std::optional<std::string> address = variable("MASTER_ADDR");
  if (!rank || !size || !address) return std::nullopt;
  Job job{"torchrun", *rank, *size, configured_endpoint(config)};
  require(*rank < *size, "RANK={} and WORLD_SIZE={}: expected rank < size", *rank, *size);
  if (*size == 1 || job.agreed) return job;

  const int port = config.port != 0 ? config.port : number("MASTER_PORT", 1).value_or(0) + 1;
  require(port >= 2 && port <= 65535,
          "no port for the store: set MASTER_PORT (the store uses the next port) or ATOLL_PORT");
  const bool is_on_one_host = number("LOCAL_WORLD_SIZE", 1) == size;
  require(!config.token.empty() || is_on_one_host || net::names_loopback(*address),
          "MASTER_ADDR={} can be reached from other hosts: set ATOLL_TOKEN to the same secret "
          "on every rank",
          terminal_safe(*address));
  job.agreed = Endpoint{"", {*address}, port, config.token};
  return job;
}

// srun without a PMI plugin: Slurm provides rank and size, but cannot transport the address of the
// store.
std::optional<Job> find_slurm(const Config& config) {
  // A batch script also has SLURM_PROCID=0, but it is not a job step.
  if (!variable("SLURM_STEP_ID")) return std::nullopt;
  const std::optional<int> rank = number("SLURM_PROCID", 0);
  std::optional<int> size = number("SLURM_STEP_NUM_TASKS", 1);
  if (!size) size = number("SLURM_NTASKS", 1);
  if (!rank || !size || *size == 1) return std::nullopt;
  Job job{"slurm", *rank, *size, configured_endpoint(config)};
  require(job.agreed.has_value(),
          "rank {} of {} of a Slurm step without PMI: start it with `srun --mpi=pmix`, or set "
          "ATOLL_ADDR (host:port of rank 0) and ATOLL_TOKEN (a secret of the job)",
          *rank, *size);
  return job;
}

// Rank 0 broadcasts this text and the reason if it cannot serve the store.
constexpr std::string_view failed = "failed: ";

// Returns `text`, which the callback `call` of World::`maker` has returned on this rank. Throws if
// it is a failure of rank 0, or is not the text of an endpoint.
std::string checked(std::string text, std::string_view maker, std::string_view call, int rank) {
  require(!text.starts_with(failed), ErrorCode::aborted, "rank 0 cannot serve the store: {}",
          std::string_view(text).substr(std::min(failed.size(), text.size())));
  try {
    endpoint_from_text(text);
  } catch (const Error&) {
    throw invalid(
        "World::{}: on rank {}, `{}` returned {} bytes that are not the text of rank 0: on every "
        "rank it must return this text",
        maker, rank, call, text.size());
  }
  return text;
}

}  // namespace

Job from_broadcast(int rank, int size,
                   const std::function<std::string(const std::string&)>& broadcast) {
  require(rank >= 0 && rank < size, "World::from_ranks: rank {} of {}: expected 0 <= rank < size",
          rank, size);
  require(size == 1 || broadcast != nullptr, "World::from_ranks: no broadcast function");
  const auto called = std::make_shared<bool>(false);
  const auto publish = [broadcast, called](const std::string& text, net::Clock::time_point) {
    *called = true;
    require(broadcast(text) == text,
            "World::from_ranks: on rank 0, `broadcast` returned another text than it was given: on "
            "every rank it must return the text of rank 0");
  };
  const auto look_up = [broadcast, rank](net::Clock::time_point) {
    return checked(broadcast(""), "from_ranks", "broadcast", rank);
  };
  // The other ranks wait in a broadcast without a time limit, so rank 0 broadcasts its failure.
  const auto withdraw = [publish, called](std::string_view reason) {
    if (*called) return;
    try {
      publish(fmt::format("{}{:.900}", failed, reason), {});
    } catch (const std::exception& problem) {
      log::warn("cannot tell the other ranks that rank 0 failed: {}", problem.what());
    }
  };
  return {"program", rank, size, std::nullopt, Rendezvous{publish, look_up, withdraw}};
}

Job from_exchange(int rank, int size,
                  std::function<void(const std::string& key, const std::string& value)> put,
                  std::function<std::string(const std::string& key)> get) {
  require(rank >= 0 && rank < size,
          "World::from_exchange: rank {} of {}: expected 0 <= rank < size", rank, size);
  require(size == 1 || (put != nullptr && get != nullptr),
          "World::from_exchange: `put` and `get` must be functions");
  const std::string key = next_key();
  const auto publish = [put = std::move(put), key](const std::string& text,
                                                   net::Clock::time_point) { put(key, text); };
  const auto look_up = [get = std::move(get), key, rank](net::Clock::time_point) {
    return checked(get(key), "from_exchange", "get", rank);
  };
  // The other ranks wait in `get`, so rank 0 puts its failure under the same key.
  const auto withdraw = [publish](std::string_view reason) {
    try {
      publish(fmt::format("{}{:.900}", failed, reason), {});
    } catch (const std::exception& problem) {
      log::warn("cannot tell the other ranks that rank 0 failed: {}", problem.what());
    }
  };
  return {"program", rank, size, std::nullopt, Rendezvous{publish, look_up, withdraw}};
}

Job find(const Config& config) {
  for (const auto finder : {find_explicit, find_pmix, find_pmi, find_torchrun, find_slurm}) {
    if (std::optional<Job> job = finder(config)) return std::move(*job);
  }
  Job alone;
  alone.launcher = "single";
  return alone;
}

}  // namespace atoll_v1::atoll::launch
