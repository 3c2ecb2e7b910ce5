#include "host/tuning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include "sdk/describe.hpp"
#include "sdk/guard.hpp"

namespace atoll_sdk::host {
namespace {

constexpr std::int32_t gathers[] = {ATOLL_ALL_GATHER, ATOLL_ALL_GATHER_V};
constexpr std::int32_t reduce_scatters[] = {ATOLL_REDUCE_SCATTER, ATOLL_REDUCE_SCATTER_V};
constexpr std::int32_t all_reduces[] = {ATOLL_ALL_REDUCE};
constexpr std::int32_t reduces_to_root[] = {ATOLL_REDUCE};
constexpr std::int32_t broadcasts[] = {ATOLL_BROADCAST};

constexpr std::uint64_t KiB = 1024;
enum class Hosts {
  any,
  power_of_two,
};
enum class Ranks {
  any,
  one,  // on each host
  several,
};
enum class Dtypes {
  all,
  wide,  // 16-bit ones would be rounded more often
};

struct When {
  std::uint64_t bytes = 0;           // from so many on
  std::uint64_t bytes_per_host = 0;  // and from so many times the hosts
  int min_hosts = 2;
  Hosts hosts = Hosts::any;
  Ranks ranks = Ranks::any;
  Dtypes dtypes = Dtypes::all;
};
struct Default {
  std::span<const std::int32_t> kinds;
  Algorithm algorithm;
  When when;
};

// The backend's own choice; the last row that fits counts, and without any it is flat. Measured on
// links of 1 Gbit/s; figures in the README of this folder.
constexpr Default defaults[] = {
    // Flat sends as many messages as there are pairs of ranks, of which half or less cross; with
    // one rank on a host the two differ by the pieces only.
    {gathers, Algorithm::two_level, {.bytes = 32 * KiB}},
    {gathers, Algorithm::two_level, {.ranks = Ranks::several}},
    {reduce_scatters, Algorithm::two_level, {.bytes = 32 * KiB}},
    {reduce_scatters, Algorithm::two_level, {.ranks = Ranks::several, .dtypes = Dtypes::wide}},
    // One sender per receiver: 5 to 40 % more than all at once from four hosts on, once a block is
    // large beside the time of a trip, of which there are as many as hosts.
    {gathers, Algorithm::ring, {.bytes_per_host = 256 * KiB, .min_hosts = 4, .ranks = Ranks::one}},
    {reduce_scatters,
     Algorithm::ring,
     {.bytes_per_host = 256 * KiB, .min_hosts = 4, .ranks = Ranks::one, .dtypes = Dtypes::wide}},

    // Trips count: log2 H of everything, 2 log2 H of shares, 2 with H - 1 peers at the same time.
    {all_reduces, Algorithm::doubling, {.dtypes = Dtypes::wide}},
    {all_reduces, Algorithm::two_level, {.bytes = 32 * KiB}},
    // With other numbers of hosts some have twice the bytes to send.
    {all_reduces,
     Algorithm::halving,
     {.bytes = 64 * KiB, .min_hosts = 4, .hosts = Hosts::power_of_two, .dtypes = Dtypes::wide}},
    // The pieces of two_level keep both levels at work.
    {all_reduces, Algorithm::two_level, {.bytes = 1024 * KiB, .ranks = Ranks::several}},
    {all_reduces, Algorithm::two_level, {.bytes = 2048 * KiB}},
    {all_reduces,
     Algorithm::ring,
     {.bytes_per_host = 256 * KiB, .min_hosts = 4, .ranks = Ranks::one, .dtypes = Dtypes::wide}},

    // The root's link takes what every rank sends, or what it must; in two trips instead of one.
    {reduces_to_root, Algorithm::two_level, {.bytes_per_host = 4 * KiB}},
    // H - 1 trips: pays once a trip lasts longer than its latency.
    {broadcasts, Algorithm::chain, {.bytes = 64 * KiB, .min_hosts = 3}},
};

std::optional<Algorithm> algorithm_of(std::string_view name) {
  if (name == "flat") return Algorithm::flat;
  if (name == "ring") return Algorithm::ring;
  if (name == "doubling") return Algorithm::doubling;
  if (name == "chain") return Algorithm::chain;
  if (name == "halving") return Algorithm::halving;
  if (name == "two_level") return Algorithm::two_level;
  return std::nullopt;
}

bool is_half(std::int32_t dtype) { return dtype == ATOLL_BF16 || dtype == ATOLL_F16; }

bool one_of(std::span<const std::int32_t> kinds, std::int32_t kind) {
  return std::ranges::find(kinds, kind) != kinds.end();
}

bool fits(const Default& row, const Shape& shape, const atoll_operation& operation,
          std::uint64_t bytes) {
  const When& when = row.when;
  const auto hosts = static_cast<unsigned>(shape.hosts);
  if (!one_of(row.kinds, operation.kind) || shape.hosts < when.min_hosts) return false;
  if (bytes < when.bytes || bytes < when.bytes_per_host * hosts) return false;
  if (when.hosts == Hosts::power_of_two && !std::has_single_bit(hosts)) return false;
  const auto ranks = shape.ranks_per_host == 1 ? Ranks::one : Ranks::several;
  if (when.ranks != Ranks::any && when.ranks != ranks) return false;
  return when.dtypes == Dtypes::all || !is_half(operation.dtype);
}

bool takes(std::int32_t kind, Algorithm algorithm) {
  const bool in_blocks = one_of(gathers, kind) || one_of(reduce_scatters, kind);
  switch (algorithm) {
    case Algorithm::flat:
      return true;
    case Algorithm::ring:
      return in_blocks || kind == ATOLL_ALL_REDUCE;
    case Algorithm::chain:
      return kind == ATOLL_BROADCAST;
    case Algorithm::doubling:
    case Algorithm::halving:
      return kind == ATOLL_ALL_REDUCE;
    case Algorithm::two_level:
      return in_blocks || kind == ATOLL_ALL_REDUCE || kind == ATOLL_REDUCE;
  }
  return false;
}

constexpr std::string_view connections = "connections";

std::string_view text_of(const atoll_group& group) {
  const bool older = group.size < sizeof(atoll_group);  // a core that asks for nothing
  return older || group.tuning == nullptr ? "" : group.tuning;
}

template <class Line>
void for_each_line(std::string_view text, const Line& line) {
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    if (end > 0) line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::string_view next_word(std::string_view& line) {
  const auto end = std::min(line.find(' '), line.size());
  const auto word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

}  // namespace

Tuning::Tuning(const atoll_group& group, const atoll_sdk::Layout& layout) {
  shape_.hosts = layout.hosts();
  for (int host = 0; host < layout.hosts(); ++host) {
    const auto ranks = static_cast<int>(layout.ranks_of(host).size());
    shape_.ranks_per_host = std::max(shape_.ranks_per_host, ranks);
  }
  if (group.size < sizeof(atoll_group)) return;
  deterministic_ = group.deterministic != 0;
  tree_of_hosts_ = layout.tree_of_hosts();
  for_each_line(text_of(group), [&](std::string_view line) {
    if (!line.starts_with(connections)) add(line);
  });
}

int connections_of(const atoll_group& group) {
  int number = 0;
  for_each_line(text_of(group), [&](std::string_view line) {
    if (next_word(line) == connections)
      std::from_chars(line.data(), line.data() + line.size(), number);
  });
  return number;
}

void Tuning::add(std::string_view line) {
  std::string_view rest = line;
  const auto kind = kind_of(next_word(rest));
  const auto bytes_text = next_word(rest);
  const auto algorithm = algorithm_of(rest);
  std::uint64_t bytes = 0;
  const auto* end = bytes_text.data() + bytes_text.size();
  const auto [rest_of_number, problem] = std::from_chars(bytes_text.data(), end, bytes);
  const bool number = problem == std::errc() && rest_of_number == end && !bytes_text.empty();
  if (kind < 0 || !number || !algorithm || !takes(kind, *algorithm)) {
    throw Error(
        ATOLL_INVALID_ARGUMENT,
        fmt::format("algorithm \"{}\": the host backend has flat for every collective; "
                    "ring and two_level for all_gather, reduce_scatter, their _v forms and "
                    "all_reduce; doubling and halving for all_reduce; two_level for reduce; "
                    "chain for broadcast",
                    line));
  }
  rules_.push_back({kind, bytes, *algorithm});
}

Algorithm Tuning::choose(const atoll_operation& operation, std::uint64_t bytes) const noexcept {
  const bool sums_in_order = deterministic_ && reduces(operation.kind);
  auto choice = Algorithm::flat;
  for (const auto& row : defaults) {
    if (!fits(row, shape_, operation, bytes)) continue;
    if (!sums_in_order || ordered(row.algorithm, operation.dtype)) choice = row.algorithm;
  }
  for (const auto& rule : rules_) {
    if (rule.kind == operation.kind && bytes >= rule.min_bytes) choice = rule.algorithm;
  }
  return sums_in_order && !ordered(choice, operation.dtype) ? Algorithm::flat : choice;
}

// Whether the sum is the adjacent-pair tree over the ranks, rounded once.
bool Tuning::ordered(Algorithm choice, std::int32_t dtype) const noexcept {
  // Levels round the 16-bit types at each of them.
  const bool levels = tree_of_hosts_ && !is_half(dtype);
  switch (choice) {
    case Algorithm::flat:
      return true;
    case Algorithm::two_level:
      return levels;
    case Algorithm::doubling:
    case Algorithm::halving:
      return levels && std::has_single_bit(static_cast<unsigned>(shape_.hosts));
    case Algorithm::ring:   // one rank after the other
    case Algorithm::chain:  // sums nothing
      return false;
  }
  return false;
}

}  // namespace atoll_sdk::host
