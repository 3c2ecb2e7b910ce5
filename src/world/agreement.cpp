#include "atoll/rank_set.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <utility>

#include "core/parse.hpp"
#include "store/protocol.hpp"

namespace atoll_v1::atoll {
namespace {

// Maximum number of bytes of a text that is sent; longer texts are cut.
constexpr std::size_t most_text = std::size_t{1} << 16;
// Ranks find the first difference by digests of at most this many ranges at a time.
constexpr std::size_t most_ranges = 1024;

std::string digest_of(std::string_view text) { return fmt::format("{:016x}", fnv1a(text)); }

// Cuts a long text. The digest shows if two texts differ in the rest.
std::string shortened(std::string_view text) {
  constexpr std::size_t kept = most_text - 64;
  if (text.size() <= kept) return std::string(text);
  return fmt::format("{}... ({} bytes, digest {})", text.substr(0, kept), text.size(),
                     digest_of(text));
}

// The first message of a rank: its error, or a digest of its declarations and their number.
struct Opening {
  std::uint32_t code = 0;  // value of ErrorCode; 0 when the rank has no error
  std::string text;        // message of the error, or digest of the declarations
  std::uint32_t entries = 0;

  std::string encode() const {
    return store::Packer().number(code).text(shortened(text)).number(entries).take();
  }
  static Opening decode(std::string_view bytes) {
    store::Unpacker unpacker(bytes);
    const std::uint32_t code = unpacker.number();
    const std::string_view text = unpacker.text(most_text);
    return {code, std::string(text), unpacker.number()};
  }
};

using Declarations = std::vector<Declaration>;

// Encodes the entries of the list at the positions from `begin` to `end`; the list may end earlier.
std::string encode(const Declarations& declarations, std::size_t begin, std::size_t end) {
  store::Packer packer;
  for (std::size_t i = begin; i < std::min(end, declarations.size()); ++i)
    packer.text(declarations[i].subject).text(declarations[i].value);
  return packer.take();
}

Opening open(const std::function<Declarations()>& declare, Declarations& mine) {
  try {
    mine = declare();
    return {0, digest_of(encode(mine, 0, mine.size())), static_cast<std::uint32_t>(mine.size())};
  } catch (const Error& error) {
    return {static_cast<std::uint32_t>(error.code()), error.what(), 0};
  } catch (const std::bad_alloc&) {
    return {static_cast<std::uint32_t>(ErrorCode::out_of_memory),
            "this process cannot allocate more memory", 0};
  } catch (const std::exception& error) {
    return {static_cast<std::uint32_t>(ErrorCode::invalid_argument), error.what(), 0};
  }
}

// Exchanges the openings. If a rank does not take part, the error names the call in which the other
// ranks wait.
std::vector<Opening> meet(const RankSet& group, std::string_view call, const std::string& key,
                          const Opening& mine, std::chrono::milliseconds timeout,
                          const std::stop_token& stop) {
  std::vector<Opening> openings;
  const std::string why = fmt::format("{}: rank {} stopped it", call, group.world().rank());
  try {
    for (const std::string& bytes : group.exchange(key, mine.encode(), timeout, stop, why))
      openings.push_back(Opening::decode(bytes));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout && error.code() != ErrorCode::peer_lost) throw;
    if (group.world().failure()) throw;
    throw Error(error.code(),
                fmt::format("{}: all ranks must make this call: {}", call, error.what()));
  }
  return openings;
}

// Two ranks show their lists, which differ, to all ranks of the group.
struct Shown {
  const RankSet& group;
  const std::string& key;
  std::size_t position;  // group position of the rank whose list differs from the first rank's
  std::size_t entries;   // number of entries of the longer list

  int rank() const { return group.ranks()[position]; }
  // Exchanges the texts of the two ranks. `describe` returns the text of this rank.
  std::pair<std::string, std::string> exchange(std::string_view subject,
                                               const std::function<std::string()>& describe) const {
    const bool shows = group.is_first() || group.world().rank() == rank();
    const auto texts =
        group.exchange(fmt::format("{} {}", key, subject), shows ? describe() : std::string());
    return {texts[0], texts[position]};
  }
};

// Returns the position of the first entry that differs. Each round divides the range that contains
// this entry, and compares the digests of the parts. Lists of any length need few small messages.
std::size_t find_difference(const Shown& shown, const Declarations& mine) {
  std::size_t begin = 0, end = shown.entries;
  while (end - begin > 1) {
    const std::size_t part = (end - begin + most_ranges - 1) / most_ranges;
    const auto [a, b] = shown.exchange(fmt::format("from {} to {}", begin, end), [&] {
      std::string digests;
      for (std::size_t at = begin; at < end; at += part)
        digests += digest_of(encode(mine, at, std::min(at + part, end)));
      return digests;
    });
    const auto equal = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
    const std::size_t last = (end - begin - 1) / part;
    begin += std::min(equal / digest_of("").size(), last) * part;
    end = std::min(begin + part, end);
  }
  return begin;
}

std::string first_difference(const Shown& shown, const Declarations& mine) {
  const std::size_t at = find_difference(shown, mine);
  const auto [a, b] = shown.exchange("entry", [&] {
    if (at >= mine.size()) return std::string();
    return store::Packer().text(shortened(mine[at].subject)).text(shortened(mine[at].value)).take();
  });
  const auto decode = [](std::string_view bytes) {
    if (bytes.empty()) return Declaration{"nothing", ""};
    store::Unpacker unpacker(bytes);
    const std::string_view subject = unpacker.text(most_text);
    return Declaration{std::string(subject), std::string(unpacker.text(most_text))};
  };
  const Declaration left = decode(a), right = decode(b);
  const int first = shown.group.ranks().front();
  if (left.subject == right.subject)
    return fmt::format("{}: {} on rank {}, {} on rank {}", left.subject, left.value, first,
                       right.value, shown.rank());
  return fmt::format("what to compare next: {} on rank {}, {} on rank {}", left.subject, first,
                     right.subject, shown.rank());
}

}  // namespace

void agree(const RankSet& group, std::string_view call,
           const std::function<std::vector<Declaration>()>& declare,
           std::optional<std::chrono::milliseconds> timeout, const std::stop_token& stop) {
  Declarations mine;
  const auto declare_call = [&] {
    Declarations all = declare();
    all.insert(all.begin(), {"the call", std::string(call)});
    return all;
  };
  const Opening opening = open(declare_call, mine);
  // The key does not contain the call, so that ranks which make different calls also compare.
  const std::string key = group.key("");
  const std::vector<Opening> openings =
      meet(group, call, key, opening, timeout.value_or(group.world().config().timeout), stop);
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
  const Shown shown{group, key, static_cast<std::size_t>(other - openings.begin()),
                    std::max(openings.front().entries, other->entries)};
  throw Error(ErrorCode::mismatch,
              fmt::format("{}: ranks disagree about {}; all ranks must pass the same", call,
                          first_difference(shown, mine)));
}

}  // namespace atoll_v1::atoll
