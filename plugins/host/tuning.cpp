#include "host/tuning.hpp"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <optional>
#include <string>

#include "sdk/describe.hpp"
#include "sdk/guard.hpp"

namespace atoll_sdk::host {
namespace {

// Below, the few trips of a flat exchange or of doubling beat the several meetings of two levels.
constexpr std::uint64_t two_level_bytes = 32 * 1024;

std::optional<Algorithm> algorithm_of(std::string_view name) {
  if (name == "flat") return Algorithm::flat;
  if (name == "ring") return Algorithm::ring;
  if (name == "doubling") return Algorithm::doubling;
  if (name == "two_level") return Algorithm::two_level;
  return std::nullopt;
}

bool is_half(std::int32_t dtype) { return dtype == ATOLL_BF16 || dtype == ATOLL_F16; }

bool takes(std::int32_t kind, Algorithm algorithm) {
  if (algorithm == Algorithm::flat) return true;
  if (algorithm == Algorithm::doubling) return kind == ATOLL_ALL_REDUCE;
  return kind == ATOLL_ALL_GATHER || kind == ATOLL_REDUCE_SCATTER || kind == ATOLL_ALL_REDUCE ||
         kind == ATOLL_ALL_GATHER_V || kind == ATOLL_REDUCE_SCATTER_V;
}

std::string_view next_word(std::string_view& line) {
  const auto end = std::min(line.find(' '), line.size());
  const auto word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

}  // namespace

Tuning::Tuning(const atoll_group& group, const atoll_sdk::Layout& layout) {
  if (group.size < sizeof(atoll_group)) return;  // an older core asks for nothing
  deterministic_ = group.deterministic != 0;
  tree_of_hosts_ = layout.tree_of_hosts();
  hosts_ = static_cast<unsigned>(layout.hosts());
  std::string_view text = group.tuning == nullptr ? "" : group.tuning;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    if (end > 0) add(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

void Tuning::add(std::string_view line) {
  std::string_view rest = line;
  const auto kind = kind_of(next_word(rest));
  const auto bytes_text = next_word(rest);
  const auto algorithm = algorithm_of(rest);
  std::uint64_t bytes = 0;
  const auto* end = bytes_text.data() + bytes_text.size();
  const bool number = std::from_chars(bytes_text.data(), end, bytes).ptr == end;
  if (kind < 0 || !number || !algorithm || !takes(kind, *algorithm)) {
    throw Error(ATOLL_INVALID_ARGUMENT,
                fmt::format("algorithm \"{}\": the host backend has flat for every collective, and "
                            "ring and two_level for all_gather, reduce_scatter, their _v forms and "
                            "all_reduce, and doubling for all_reduce",
                            line));
  }
  rules_.push_back({kind, bytes, *algorithm});
}

Algorithm Tuning::choose(const atoll_operation& operation, std::uint64_t bytes) const noexcept {
  const std::int32_t kind = operation.kind;
  auto choice = Algorithm::flat;
  if (takes(kind, Algorithm::two_level) && bytes >= two_level_bytes) {
    choice = Algorithm::two_level;
  } else if (kind == ATOLL_ALL_REDUCE && !is_half(operation.dtype)) {
    choice = Algorithm::doubling;
  }
  for (const auto& rule : rules_) {
    if (rule.kind == kind && bytes >= rule.min_bytes) choice = rule.algorithm;
  }
  if (!deterministic_ || !reduces(kind) || choice == Algorithm::flat) return choice;
  // Two levels round the 16-bit types twice, and a ring adds in an order of its own.
  const bool levels = choice == Algorithm::two_level ||
                      (choice == Algorithm::doubling && std::has_single_bit(hosts_));
  const bool same = levels && tree_of_hosts_ && !is_half(operation.dtype);
  return same ? choice : Algorithm::flat;
}

}  // namespace atoll_sdk::host
