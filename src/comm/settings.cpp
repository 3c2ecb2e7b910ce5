#include "comm/settings.hpp"

#include <fmt/format.h>

#include "comm/tuning.hpp"
#include "core/errors.hpp"
#include "core/parse.hpp"

namespace atoll_v1::atoll {
namespace {

// The limit of Config::timeout: the nanoseconds of longer times do not fit into 64 bits.
constexpr std::chrono::milliseconds longest_timeout = std::chrono::seconds(1'000'000'000);

// Removes the characters that have no meaning in a choice of algorithms.
std::string compact(std::string text) {
  std::erase_if(text, [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; });
  return text;
}

}  // namespace

Settings::Settings(const CommunicatorOptions& options, const Config& config)
    : own_timeout(options.timeout),
      own_deterministic(options.deterministic),
      own_algorithm(options.algorithm),
      own_compute_units(options.compute_units),
      backend(options.backend.empty() ? config.backend : options.backend),
      timeout(options.timeout.value_or(config.timeout)),
      deterministic(options.deterministic.value_or(config.deterministic)),
      algorithm(options.algorithm.value_or(config.algorithm)),
      tuning(tuning_lines(config, options.algorithm)),
      tcp_checksum(config.tcp_checksum == "off" ? "" : config.tcp_checksum),
      compute_units(options.compute_units.value_or(ComputeUnits::any)),
      levels(options.levels),
      tags(options.tags) {
  const std::chrono::milliseconds limit = own_timeout.value_or(timeout);
  require(limit.count() > 0, "CommunicatorOptions::timeout is {} ms, but must be positive",
          limit.count());
  require(limit <= longest_timeout,
          "CommunicatorOptions::timeout is {} ms, but at most {} ms are allowed", limit.count(),
          longest_timeout.count());
  require(!own_deterministic || *own_deterministic == 0 || *own_deterministic == 1,
          "CommunicatorOptions::deterministic is {}, but must be 0 or 1", deterministic);
}

void Settings::pass_on(CommunicatorOptions& options) const {
  if (!options.timeout) options.timeout = own_timeout;
  if (!options.deterministic) options.deterministic = own_deterministic;
  if (!options.algorithm) options.algorithm = own_algorithm;
  if (!options.compute_units) options.compute_units = own_compute_units;
}

// The Config of each rank may have another timeout, so ranks compare only the timeout option.
std::vector<Declaration> Settings::declarations() const {
  const auto quoted = [](const std::string& text) { return fmt::format("\"{}\"", text); };
  return {
      {"CommunicatorOptions::timeout",
       own_timeout ? fmt::format("{} ms", own_timeout->count()) : "not set"},
      {"the algorithm (ATOLL_ALGORITHM)", quoted(compact(algorithm))},
      {"the content of the tuning file (ATOLL_TUNING)", fmt::format("hash {:016x}", fnv1a(tuning))},
      {"the deterministic mode (ATOLL_DETERMINISTIC)", fmt::format("{}", deterministic)},
      {"the backend (ATOLL_BACKEND)", quoted(backend)},
      {"the checksum of TCP data (ATOLL_TCP_CHECKSUM)", quoted(tcp_checksum)},
      {"CommunicatorOptions::compute_units", fmt::format("{}", static_cast<int>(compute_units))},
      {"CommunicatorOptions::levels", fmt::format("{}", levels)},
      {"CommunicatorOptions::tags", fmt::format("{}", tags)}};
}

}  // namespace atoll_v1::atoll
