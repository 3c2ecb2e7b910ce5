#include "comm/settings.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/tuning.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/text.hpp"

namespace atoll_v1::atoll {
namespace {

// The limit of Config::timeout: the nanoseconds of longer times do not fit into 64 bits.
constexpr std::chrono::milliseconds longest_timeout = std::chrono::seconds(1'000'000'000);

std::string tuning_of(const std::optional<std::string>& algorithm, const Config& config) {
  std::string lines = tuning_file_lines(config);
  return lines + (algorithm ? algorithm_lines(*algorithm, "CommunicatorOptions::algorithm")
                            : algorithm_lines(config.algorithm, "ATOLL_ALGORITHM"));
}

// Removes the characters that have no meaning in a choice of algorithms, and line breaks with them.
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
      tuning(tuning_of(options.algorithm, config)),
      tcp_checksum(config.tcp_checksum == "off" ? "" : config.tcp_checksum),
      compute_units(options.compute_units.value_or(ComputeUnits::any)),
      levels(options.levels) {
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
std::string Settings::lines() const {
  const std::string own =
      own_timeout ? fmt::format("{} ms", own_timeout->count()) : std::string("not set");
  return fmt::format(
      "CommunicatorOptions::timeout\t{}\n"
      "the algorithm (ATOLL_ALGORITHM)\t\"{}\"\n"
      "the content of the tuning file (ATOLL_TUNING)\thash {:016x}\n"
      "the deterministic mode (ATOLL_DETERMINISTIC)\t{}\n"
      "the backend (ATOLL_BACKEND)\t\"{}\"\n"
      "the checksum of TCP data (ATOLL_TCP_CHECKSUM)\t\"{}\"\n"
      "CommunicatorOptions::compute_units\t{}\n"
      "CommunicatorOptions::levels\t{}\n",
      own, compact(algorithm), fnv1a(tuning), deterministic, compact(backend), tcp_checksum,
      static_cast<int>(compute_units), levels);
}

void require_equal(std::span<const std::string> lines, const Axis& axis, const std::string& name) {
  const auto other =
      std::ranges::find_if(lines, [&](const std::string& text) { return text != lines.front(); });
  if (other == lines.end()) return;
  const auto mine = split(lines.front(), '\n'), theirs = split(*other, '\n');
  const std::size_t count = std::min(mine.size(), theirs.size());
  std::size_t line = 0;
  while (line + 1 < count && mine[line] == theirs[line]) ++line;
  const auto value = [](std::string_view text) { return text.substr(text.find('\t') + 1); };
  throw make_error(
      ErrorCode::mismatch,
      "communicator {}: {} is {} on rank {}, but {} on rank {}: pass the same settings "
      "on all ranks",
      name, mine[line].substr(0, mine[line].find('\t')), value(mine[line]), axis.ranks.front(),
      value(theirs[line]), axis.ranks[static_cast<std::size_t>(other - lines.begin())]);
}

}  // namespace atoll_v1::atoll
