#include "collectives/tuning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <iterator>

#include "sdk/backend.hpp"

namespace atoll_collectives {

using namespace atoll_sdk;

namespace {

// A set of kinds of operations has one bit for each kind.
constexpr std::uint32_t bit(std::int32_t kind) { return 1U << kind; }
constexpr std::uint32_t gathers = bit(ATOLL_ALL_GATHER) | bit(ATOLL_ALL_GATHER_V);
constexpr std::uint32_t reduce_scatters = bit(ATOLL_REDUCE_SCATTER) | bit(ATOLL_REDUCE_SCATTER_V);
constexpr std::uint32_t all_reduces = bit(ATOLL_ALL_REDUCE);
constexpr std::uint32_t reduces_to_root = bit(ATOLL_REDUCE);
constexpr std::uint32_t broadcasts = bit(ATOLL_BROADCAST);

// The names of the algorithms in the user's rules, and the kinds that each algorithm supports.
struct Choice {
  std::string_view name;
  Algorithm algorithm;
  std::uint32_t kinds;
};
constexpr Choice choices[] = {
    {"flat", Algorithm::flat, ~0U},
    {"ring", Algorithm::ring, gathers | reduce_scatters | all_reduces},
    {"chain", Algorithm::chain, broadcasts},
    {"doubling", Algorithm::doubling, all_reduces},
    {"halving", Algorithm::halving, all_reduces},
    {"two_level", Algorithm::two_level, gathers | reduce_scatters | all_reduces | reduces_to_root},
};

constexpr std::uint64_t KiB = 1024;
enum class Ranks {  // number of ranks on the host with the most ranks
  any,
  one,
  several,
};

// The conditions under which a built-in rule matches an operation.
struct When {
  std::uint64_t bytes = 0;           // minimum size of the tensor in bytes
  std::uint64_t bytes_per_host = 0;  // minimum bytes of the tensor divided by the number of hosts
  int min_hosts = 2;
  bool power_of_two = false;  // true if the number of hosts must be a power of two
  Ranks ranks = Ranks::any;
  // If true, the rule excludes 16-bit types, which most algorithms round more often than flat does.
  bool wide = false;
};
struct Default {
  std::uint32_t kinds;
  Algorithm algorithm;
  When when;
};

// The built-in rules. The last row that matches decides; if no row matches, the algorithm is flat.
// The thresholds were measured on links of 1 Gbit/s (tests/bench/results-host-backend.md).
constexpr Default defaults[] = {
    // Flat sends a message between any two ranks, two_level only between a rank and its counterpart
    // on each other host. With one rank per host the only difference is that two_level sends each
    // block in pieces.
    {gathers, Algorithm::two_level, {.bytes = 32 * KiB}},
    {gathers, Algorithm::two_level, {.ranks = Ranks::several}},
    {reduce_scatters, Algorithm::two_level, {.bytes = 32 * KiB}},
    {reduce_scatters, Algorithm::two_level, {.ranks = Ranks::several, .wide = true}},
    // In a ring each rank receives from only one sender. With four or more hosts this reaches 5 to
    // 40 % more bandwidth than when all ranks send to all at once. The ring adds one message
    // latency per host, so it is faster only for large blocks.
    {gathers, Algorithm::ring, {.bytes_per_host = 256 * KiB, .min_hosts = 4, .ranks = Ranks::one}},
    {reduce_scatters,
     Algorithm::ring,
     {.bytes_per_host = 256 * KiB, .min_hosts = 4, .ranks = Ranks::one, .wide = true}},

    // For small data, latency decides. On H hosts, doubling needs log2 H messages with all data in
    // sequence, halving 2 log2 H messages with parts of the data, and two_level 2 messages to each
    // of H - 1 hosts, which are sent at the same time.
    {all_reduces, Algorithm::doubling, {.wide = true}},
    {all_reduces, Algorithm::two_level, {.bytes = 32 * KiB}},
    // Halving requires a power-of-two number of hosts, because otherwise some hosts send twice the
    // bytes.
    {all_reduces,
     Algorithm::halving,
     {.bytes = 64 * KiB, .min_hosts = 4, .power_of_two = true, .wide = true}},
    // Two_level sends large data in pieces, so that the network and shared memory are busy at the
    // same time.
    {all_reduces, Algorithm::two_level, {.bytes = 1024 * KiB, .ranks = Ranks::several}},
    {all_reduces, Algorithm::two_level, {.bytes = 2048 * KiB}},
    {all_reduces,
     Algorithm::ring,
     {.bytes_per_host = 256 * KiB, .min_hosts = 4, .ranks = Ranks::one, .wide = true}},

    // In a reduce, flat sends every rank's data to the root's host. Two_level sends only one sum
    // per host, but needs two messages in sequence.
    {reduces_to_root, Algorithm::two_level, {.bytes_per_host = 4 * KiB}},
    // In a broadcast over H hosts, chain sends H - 1 messages in sequence, so it is faster than
    // flat only if a message's transfer time exceeds its latency.
    {broadcasts, Algorithm::chain, {.bytes = 64 * KiB, .min_hosts = 3}},
};

bool is_half(std::int32_t dtype) { return dtype == ATOLL_BF16 || dtype == ATOLL_F16; }

bool matches(const Default& row, int host_count, int ranks_per_host,
             const atoll_operation& operation, std::uint64_t bytes) {
  const When& when = row.when;
  const auto hosts = static_cast<unsigned>(host_count);
  if ((row.kinds & bit(operation.kind)) == 0 || host_count < when.min_hosts) return false;
  if (bytes < when.bytes || bytes < when.bytes_per_host * hosts) return false;
  if (when.power_of_two && !std::has_single_bit(hosts)) return false;
  const auto ranks = ranks_per_host == 1 ? Ranks::one : Ranks::several;
  if (when.ranks != Ranks::any && when.ranks != ranks) return false;
  return !when.wide || !is_half(operation.dtype);
}

constexpr std::string_view connections = "connections";

std::string_view text_of(const atoll_group& group) {
  return group.tuning == nullptr ? "" : group.tuning;
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

Tuning::Tuning(const atoll_group& group, const Layout& layout)
    : deterministic_(group.deterministic != 0),
      hosts_(layout.hosts()),
      tree_of_hosts_(layout.is_subtree()) {
  for (int host = 0; host < layout.hosts(); ++host) {
    ranks_per_host_ = std::max(ranks_per_host_, static_cast<int>(layout.ranks_of(host).size()));
  }
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
  const auto choice = std::ranges::find(choices, rest, &Choice::name);
  const bool known = kind >= 0 && choice != std::end(choices) && (choice->kinds & bit(kind)) != 0;
  std::uint64_t bytes = 0;
  const auto* end = bytes_text.data() + bytes_text.size();
  const auto [rest_of_number, problem] = std::from_chars(bytes_text.data(), end, bytes);
  const bool number = problem == std::errc() && rest_of_number == end && !bytes_text.empty();
  if (!known || !number) {
    // A choice in ATOLL_ALGORITHM becomes a line for 0 bytes, so it is shown as the user wrote it.
    const bool chosen = number && bytes == 0 && kind >= 0;
    throw Error(
        ATOLL_INVALID_ARGUMENT,
        fmt::format("algorithm \"{}\" is unknown: use flat for any collective; "
                    "ring or two_level for all_gather, reduce_scatter, their _v forms and "
                    "all_reduce; doubling or halving for all_reduce; two_level for reduce; "
                    "chain for broadcast",
                    chosen ? fmt::format("{}:{}", kind_name(kind), rest) : std::string(line)));
  }
  rules_.push_back({kind, bytes, choice->algorithm});
}

Algorithm Tuning::choose(const atoll_operation& operation, std::uint64_t bytes) const noexcept {
  const bool sums_in_order = deterministic_ && reduces(operation.kind);
  auto choice = Algorithm::flat;
  for (const auto& row : defaults) {
    if (!matches(row, hosts_, ranks_per_host_, operation, bytes)) continue;
    if (!sums_in_order || ordered(row.algorithm, operation.dtype)) choice = row.algorithm;
  }
  for (const auto& rule : rules_) {
    if (rule.kind == operation.kind && bytes >= rule.min_bytes) choice = rule.algorithm;
  }
  return sums_in_order && !ordered(choice, operation.dtype) ? Algorithm::flat : choice;
}

// Returns true if the algorithm sums in an adjacent-pair tree over the ranks and rounds only once.
bool Tuning::ordered(Algorithm choice, std::int32_t dtype) const noexcept {
  // Algorithms with several levels round 16-bit types at each level, so they never give the result
  // of flat for these types.
  const bool levels = tree_of_hosts_ && !is_half(dtype);
  switch (choice) {
    case Algorithm::flat:
      return true;
    case Algorithm::two_level:
      return levels;
    case Algorithm::doubling:
    case Algorithm::halving:
      return levels && std::has_single_bit(static_cast<unsigned>(hosts_));
    case Algorithm::ring:   // sums in ring order, one rank after the other
    case Algorithm::chain:  // never sums: used only for broadcast
      return false;
  }
  return false;
}

}  // namespace atoll_collectives
