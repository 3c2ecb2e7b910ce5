#include "atoll/rank_set.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "core/errors.hpp"
#include "core/parse.hpp"
#include "store/protocol.hpp"
#include "store/table.hpp"
#include "world/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

// A rank that runs answers at once.
constexpr std::chrono::milliseconds answer_patience{500};

std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Names ranks in a store key, which has a limited length.
std::string key_of_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t most = 64;
  std::string text = fmt::format("{}", fmt::join(ranks, ","));
  if (text.size() > most) text = fmt::format("{:.{}}... {:016x}", text, most, fnv1a(text));
  return text;
}

// Names the ranks that do not answer, such as stopped ones. An absent rank may wait for one of
// them, in this exchange or elsewhere. Throws the failure of the job if there is one by then, which
// may be the error of that absent rank.
std::string silence(World& world) {
  try {
    store::NameList names;
    const auto answers = WorldInternals::store(world).ask("", "", answer_patience);
    for (std::size_t rank = 0; rank < answers.size(); ++rank) {
      const auto& [how, text, host, pid] = answers[rank];
      if (how != store::Answered::How::silent || host.empty()) continue;
      names.add([&] { return fmt::format("rank {} (host {}, pid {})", rank, host, pid); });
    }
    return names.empty() ? "" : fmt::format("; no sign of life from {}", names.text());
  } catch (const Error&) {
    world.check();
    return "";
  }
}

}  // namespace

RankSet::RankSet(World& world) : RankSet(world, all_ranks(world)) {}

RankSet::RankSet(World& world, std::vector<int> ranks)
    : world_(std::make_shared<const WorldLink>(world)), ranks_(std::move(ranks)) {
  std::ranges::sort(ranks_);
  require(!ranks_.empty() && ranks_.front() >= 0 && ranks_.back() < world.size() &&
              std::ranges::adjacent_find(ranks_) == ranks_.end() &&
              std::ranges::binary_search(ranks_, world.rank()),
          "RankSet: the ranks are {}: pass ranks from 0 to {}, each once, and rank {} among them",
          fmt::join(ranks_, ", "), world.size() - 1, world.rank());
  if (ranks_.size() < static_cast<std::size_t>(world.size()))
    suffix_ = " of ranks " + key_of_ranks(ranks_);
}

World& RankSet::world() const { return world_->get(); }

bool RankSet::is_first() const { return world().rank() == ranks_.front(); }

std::string RankSet::key(std::string_view subject) const {
  const std::string base = fmt::format("{}{}", subject, suffix_);
  return store::titled(subject, fmt::format("{}{}", world().ticket(base), suffix_));
}

std::vector<std::string> RankSet::exchange(std::string_view key, std::string_view mine,
                                           std::optional<std::chrono::milliseconds> timeout) const {
  return exchange(key, mine, timeout, {}, "");
}

std::vector<std::string> RankSet::exchange(std::string_view key, std::string_view mine,
                                           std::optional<std::chrono::milliseconds> timeout,
                                           const std::stop_token& stop,
                                           std::string_view why) const {
  require(mine.size() <= store::max_value_bytes,
          "key \"{}\": a value of {} bytes; at most {} are allowed", key, mine.size(),
          store::max_value_bytes);
  const std::span<const int> some = ranks_;
  store::Store& store = WorldInternals::store(world());
  try {
    return store.exchange(key, mine, timeout.value_or(world().config().timeout),
                          suffix_.empty() ? std::span<const int>() : some, stop, why);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw;
    throw Error(error.code(), error.what() + silence(world()));
  }
}

}  // namespace atoll_v1::atoll
