// The exchange before a fallback reduction: every rank sends which operation it called, and its
// factor, in one all_gather of 40 bytes a rank. The messages of a fallback do not show which
// reduction was called: a sum and a maximum move the same bytes, and 16-bit elements may be sent as
// f32. If ranks called different operations, every rank throws an error.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "atoll/plugin_names.hpp"
#include "comm/fallback.hpp"
#include "core/hash.hpp"
#include "flight/story.hpp"

namespace atoll_v1::atoll {
namespace {

// A call is encoded in five 64-bit words. Word 0 holds kind, dtype, op and root; word 1 the count;
// word 2 a digest of the counts by rank; word 3 the factor; word 4 the sequence number, which may
// differ between ranks because of sends and receives.
constexpr std::size_t words_of_call = 5;
constexpr std::size_t compared_words = 3;
constexpr std::size_t factor_word = 3;
constexpr std::size_t sequence_word = 4;

using Words = std::array<std::int64_t, words_of_call>;

Words words_of(const Operation& operation, std::uint64_t sequence) {
  std::uint64_t digest = fnv1a("");
  for (const std::uint64_t count : operation.counts) {
    digest = (digest ^ count) * 0x100000001b3u;
  }
  std::uint64_t what = static_cast<std::uint32_t>(operation.peer);
  what = what << 8 | static_cast<std::uint64_t>(operation.kind);
  what = what << 8 | static_cast<std::uint64_t>(operation.dtype);
  what = what << 8 | static_cast<std::uint64_t>(operation.reduction.op);
  return {static_cast<std::int64_t>(what), static_cast<std::int64_t>(operation.count),
          static_cast<std::int64_t>(digest),
          std::bit_cast<std::int64_t>(operation.reduction.factor),
          static_cast<std::int64_t>(sequence)};
}

bool same_call(const Words& a, const Words& b) {
  // factors may differ between ranks
  return std::equal(a.begin(), a.begin() + compared_words, b.begin());
}

std::string text_of(const Words& words) {
  const auto byte = [what = static_cast<std::uint64_t>(words[0])](int n) {
    return static_cast<std::int32_t>(what >> (8 * n) & 0xffu);
  };
  FlightOperation call;
  call.kind = atoll_abi::kind_name(byte(2));
  call.sequence = static_cast<std::uint64_t>(words[sequence_word]);
  call.collective = 0;
  call.dtype = atoll_abi::dtype_name(byte(1));
  call.op = atoll_abi::op_name(byte(0));
  call.count = static_cast<std::uint64_t>(words[1]);
  if (byte(2) == ATOLL_REDUCE) call.peer = static_cast<int>(words[0] >> 24);
  return call_text(call);
}

// Returns a text such as "ranks 1, 2 called A where rank 0 called B", or "" when all ranks made the
// same call.
std::string disagreement(std::span<const Words> calls, std::span<const int> ranks) {
  // The different calls, each with its ranks.
  std::vector<std::pair<Words, std::vector<int>>> groups;
  for (std::size_t r = 0; r < calls.size(); ++r) {
    auto group = std::ranges::find_if(
        groups, [&](const auto& known) { return same_call(known.first, calls[r]); });
    if (group == groups.end()) group = groups.insert(groups.end(), {calls[r], {}});
    group->second.push_back(ranks[r]);
  }
  if (groups.size() < 2) return {};
  // The text compares all other calls with the most frequent call, which comes first.
  std::ranges::stable_sort(groups, std::ranges::greater{},
                           [](const auto& group) { return group.second.size(); });
  for (auto& group : groups) std::ranges::sort(group.second);
  std::string text;
  for (std::size_t g = 1; g < groups.size(); ++g) {
    text += fmt::format("{}{} called {}", g > 1 ? ", " : "", ranks_text(groups[g].second),
                        text_of(groups[g].first));
  }
  text +=
      fmt::format(" where {} called {}", ranks_text(groups[0].second), text_of(groups[0].first));
  const bool same_text = std::ranges::all_of(
      groups, [&](const auto& group) { return text_of(group.first) == text_of(groups[0].first); });
  return same_text ? text + ", with different counts" : text;
}

}  // namespace

std::uint64_t bytes_of_agreement(const GroupShape& shape) {
  return shape.ranks * (sizeof(Words) + sizeof(double));
}

const double* agree(const FallbackContext& call, View room) {
  if (call.shape.memory != DeviceKind::host) return nullptr;
  const View said{room.data, call.ranks() * words_of_call, DType::i64};
  const View own = said.part(call.rank() * words_of_call, words_of_call);
  call.stream.enqueue([to = static_cast<Words*>(own.data),
                       words = words_of(call.operation, call.group.sequence())] { *to = words; });
  call.submit({{ATOLL_ALL_GATHER, own, said, words_of_call, DType::i64}});
  auto* const factors =
      reinterpret_cast<double*>(static_cast<std::byte*>(room.data) + said.bytes());
  const std::span from(static_cast<const Words*>(said.data), call.ranks());
  call.enqueue_check([from, factors, ranks = std::span(call.group.axis().ranks)] {
    for (std::size_t r = 0; r < from.size(); ++r) {
      factors[r] = std::bit_cast<double>(from[r][factor_word]);
    }
    return disagreement(from, ranks);
  });
  return factors;
}

}  // namespace atoll_v1::atoll
