#include "core/agreement.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "core/hash.hpp"
#include "core/store_protocol.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::size_t most_text = std::size_t{1} << 20;

// The first message of a rank: its error, or a digest of its declarations.
struct Opening {
  std::uint32_t code = 0;  // value of ErrorCode; 0 when the rank has no error
  std::string text;        // message of the error, or digest

  std::string encode() const { return store::Packer().number(code).text(text).take(); }
  static Opening decode(std::string_view bytes) {
    store::Unpacker unpacker(bytes);
    const std::uint32_t code = unpacker.number();
    return {code, std::string(unpacker.text(most_text))};
  }
};

using Declarations = std::vector<Declaration>;

std::string encode(const Declarations& declarations) {
  store::Packer packer;
  packer.number(static_cast<std::uint32_t>(declarations.size()));
  for (const auto& [subject, value] : declarations) packer.text(subject).text(value);
  return packer.take();
}

Declarations decode(std::string_view bytes) {
  Declarations declarations;
  store::Unpacker unpacker(bytes);
  for (std::uint32_t left = unpacker.number(); left > 0; --left) {
    const std::string_view subject = unpacker.text(most_text);
    declarations.push_back({std::string(subject), std::string(unpacker.text(most_text))});
  }
  return declarations;
}

Opening open(const std::function<Declarations()>& declare, Declarations& mine) {
  try {
    mine = declare();
    return {0, fmt::format("{:016x}", fnv1a(encode(mine)))};
  } catch (const Error& error) {
    return {static_cast<std::uint32_t>(error.code()), error.what()};
  } catch (const std::exception& error) {
    return {static_cast<std::uint32_t>(ErrorCode::invalid_argument), error.what()};
  }
}

// Exchanges the openings. The error of a rank that does not come names the call that the others
// wait in.
std::vector<Opening> meet(const RankSet& group, std::string_view call, const std::string& key,
                          const Opening& mine) {
  std::vector<Opening> openings;
  try {
    for (const std::string& bytes : group.exchange(key, mine.encode()))
      openings.push_back(Opening::decode(bytes));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout && error.code() != ErrorCode::peer_lost) throw;
    if (group.world().failure()) throw;
    throw Error(error.code(),
                fmt::format("{}: all ranks must make this call: {}", call, error.what()));
  }
  return openings;
}

// Describes the first difference between the declarations of two ranks.
std::string first_difference(const Declarations& a, int rank_a, const Declarations& b, int rank_b) {
  const auto [left, right] = std::ranges::mismatch(a, b);
  if (left != a.end() && right != b.end() && left->subject == right->subject)
    return fmt::format("{}: {} on rank {}, {} on rank {}", left->subject, left->value, rank_a,
                       right->value, rank_b);
  const auto said = [](const Declarations& all, Declarations::const_iterator at) {
    return at == all.end() ? std::string("nothing") : at->subject;
  };
  return fmt::format("the next value to compare: {} on rank {}, {} on rank {}", said(a, left),
                     rank_a, said(b, right), rank_b);
}

}  // namespace

void agree(const RankSet& group, std::string_view call,
           const std::function<std::vector<Declaration>()>& declare) {
  Declarations mine;
  const auto declare_call = [&] {
    Declarations all = declare();
    all.insert(all.begin(), {"the call", std::string(call)});
    return all;
  };
  const Opening opening = open(declare_call, mine);
  // The key does not contain the call, so that ranks which make different calls also compare.
  const std::string key = group.key("agreement");
  const std::vector<Opening> openings = meet(group, call, key, opening);
  const auto rank_at = [&](auto position) {
    return group.ranks()[static_cast<std::size_t>(position - openings.begin())];
  };

  const auto failed = std::ranges::find_if(openings, [](const Opening& o) { return o.code != 0; });
  if (failed != openings.end())
    throw Error(static_cast<ErrorCode>(failed->code),
                rank_at(failed) == group.world().rank()
                    ? failed->text
                    : fmt::format("rank {}: {}", rank_at(failed), failed->text));

  const auto other = std::ranges::find_if(
      openings, [&](const Opening& o) { return o.text != openings.front().text; });
  if (other == openings.end()) return;
  const int first = group.ranks().front(), rank = rank_at(other);
  const bool is_shown = group.is_first() || group.world().rank() == rank;
  const auto lists = group.exchange(key + " detail", is_shown ? encode(mine) : std::string());
  const std::string& others = lists[static_cast<std::size_t>(other - openings.begin())];
  throw Error(ErrorCode::mismatch,
              fmt::format("{}: ranks disagree about {}; all ranks must pass the same", call,
                          first_difference(decode(lists[0]), first, decode(others), rank)));
}

}  // namespace atoll_v1::atoll
