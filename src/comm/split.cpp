// Communicator::split: ranks exchange color and key through the store, then open communicators.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "atoll/communicator.hpp"
#include "comm/communicator_impl.hpp"
#include "core/errors.hpp"
#include "core/store_key.hpp"
#include "core/text.hpp"
#include "core/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

// The color and key that a rank passes to split().
struct SplitWish {
  std::optional<int> color;
  int key = 0;
};

std::string to_text(const SplitWish& wish) {
  return wish.color ? fmt::format("{} {}", *wish.color, wish.key) : "";
}

SplitWish wish_from(std::string_view text, int rank) {
  if (text.empty()) return {};
  const auto words = split(text, ' ');
  const auto color = number_from<int>(words.front()), key = number_from<int>(words.back());
  require(words.size() == 2 && color && key, ErrorCode::bad_data,
          "split: rank {} sent \"{}\", which is not a color and a key", rank, text);
  return {color, *key};
}

// Returns what the ranks of the group pass to split(), in the order of the group's axis.
std::vector<SplitWish> exchange_wishes(const BackendGroup& group, const std::string& round,
                                       const SplitWish& mine) {
  const Axis& axis = group.axis();
  if (axis.size() == 1) return {mine};
  std::vector<int> sorted = axis.ranks;
  std::ranges::sort(sorted);
  std::vector<std::string> texts;
  try {
    texts = WorldInternals::store(group.world())
                .exchange(round, to_text(mine), group.settings().timeout, sorted);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout || group.world().failure()) throw;
    throw make_error(ErrorCode::timeout,
                     "rank {}: split of communicator {}: every rank of it must call split(): {}",
                     group.world().rank(), group.name(), error.what());
  }
  std::vector<SplitWish> wishes;
  for (const int rank : axis.ranks) {
    const auto place = std::ranges::lower_bound(sorted, rank) - sorted.begin();
    wishes.push_back(wish_from(texts[static_cast<std::size_t>(place)], rank));
  }
  return wishes;
}

}  // namespace

std::optional<Communicator> Communicator::split(std::optional<int> color, int key,
                                                std::string name) const {
  World& world = impl_->group->world();
  const std::string base = fmt::format("{}/split", impl_->group->id());
  const std::string round = store::titled("", fmt::format("{}/{}", base, world.ticket(base)));
  world.check();
  impl_->group->check_aborted();

  struct Member {
    int key;
    int rank;
  };
  std::vector<Member> members;
  // Ranks without a color also wait for the others, so that an absent rank is an error on all
  // ranks.
  const auto wishes = exchange_wishes(*impl_->group, round, {color, key});
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    if (color && wishes[i].color == color) {
      members.push_back({wishes[i].key, impl_->group->axis().ranks[i]});
    }
  }
  if (!color) {
    impl_->group->join_split();
    return std::nullopt;
  }
  std::ranges::stable_sort(members, {}, &Member::key);

  Axis axis{&world,
            name.empty() ? fmt::format("{}.{}", impl_->group->name(), *color) : std::move(name),
            {},
            0};
  axis.hold = impl_->group->axis().hold;  // the new communicator can outlive this one
  for (const Member& member : members) {
    if (member.rank == world.rank()) axis.index = axis.size();
    axis.ranks.push_back(member.rank);
  }
  return open(axis, {.name = "", .parent = this, .levels = impl_->group->settings().levels});
}

}  // namespace atoll_v1::atoll
