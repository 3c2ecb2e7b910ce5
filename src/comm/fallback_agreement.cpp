// The exchange before a fallback reduction: every rank describes the operation that it called, with
// its factor, in one all_gather of 40 bytes per rank. The messages of a fallback do not show which
// reduction was called: a sum and a maximum move the same bytes, and 16-bit elements may be sent as
// f32. If ranks called different operations, every rank throws an error.
#include <algorithm>
#include <array>
#include <bit>

#include "atoll/plugin_names.hpp"
#include "comm/fallback.hpp"
#include "core/operation_label.hpp"
#include "core/parse.hpp"
#include "flight/explanation.hpp"

namespace atoll_v1::atoll {
namespace {

// A call is encoded in five 64-bit words. Word 0 holds kind, dtype, op and root; word 1 the count;
// word 2 a digest of the label and of the counts by rank; word 3 the factor; word 4 the sequence
// number, which may differ between ranks because of sends and receives.
constexpr std::size_t words_of_call = 5;
constexpr std::size_t compared_words = 3;
constexpr std::size_t factor_word = 3;
constexpr std::size_t sequence_word = 4;

using Words = std::array<std::int64_t, words_of_call>;

Words words_of(const Operation& operation, std::uint64_t sequence) {
  std::uint64_t digest = fnv1a(OperationLabel::of_this_thread());
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
  // Does not compare factor and sequence number, which may differ between ranks.
  return std::equal(a.begin(), a.begin() + compared_words, b.begin());
}

FlightOperation call_of(const Words& words) {
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
  return call;
}

// Returns a text such as "ranks 1, 2 called A where rank 0 called B", or "" when all ranks made the
// same call.
std::string disagreement(std::span<const Words> calls, std::span<const int> ranks) {
  const auto same = [&](const Words& call) { return same_call(call, calls[0]); };
  if (std::ranges::all_of(calls, same)) return {};
  std::vector<Words> different;
  std::vector<CallOfRanks> groups;  // the different calls, each with its ranks
  for (std::size_t r = 0; r < calls.size(); ++r) {
    const auto known = std::ranges::find_if(
        different, [&](const Words& call) { return same_call(call, calls[r]); });
    const auto index = static_cast<std::size_t>(known - different.begin());
    if (index == different.size()) {
      different.push_back(calls[r]);
      groups.push_back({call_of(calls[r]), {}});
    }
    groups[index].ranks.push_back(ranks[r]);
  }
  for (CallOfRanks& group : groups) std::ranges::sort(group.ranks);
  const std::string text = disagreement_text(groups);
  const bool same_text = std::ranges::all_of(groups, [&](const CallOfRanks& group) {
    return call_text(group.operation) == call_text(groups[0].operation);
  });
  return same_text ? text + ", with different counts or labels" : text;
}

}  // namespace

std::uint64_t bytes_of_agreement(const GroupShape& shape) {
  return shape.ranks * (sizeof(Words) + sizeof(double));
}

const double* agree(const FallbackContext& call, View room) {
  if (call.shape.memory != DeviceKind::cpu) return nullptr;
  const View said{room.data, call.ranks() * words_of_call, DType::i64};
  const View own = said.part(call.rank() * words_of_call, words_of_call);
  call.stream.enqueue([to = static_cast<Words*>(own.data),
                       words = words_of(call.operation, call.sequence())] { *to = words; });
  call.submit({{ATOLL_ALL_GATHER, own, said, words_of_call, DType::i64}});
  auto* const factors =
      reinterpret_cast<double*>(static_cast<std::byte*>(room.data) + said.bytes());
  const std::span from(static_cast<const Words*>(said.data), call.ranks());
  call.enqueue_check([from, factors, ranks = call.world_ranks()] {
    for (std::size_t r = 0; r < from.size(); ++r) {
      factors[r] = std::bit_cast<double>(from[r][factor_word]);
    }
    return disagreement(from, ranks);
  });
  return factors;
}

}  // namespace atoll_v1::atoll
