// Communicator::split: ranks exchange color and key through the store, then open communicators.
#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "atoll/communicator.hpp"
#include "comm/communicator_impl.hpp"
#include "comm/registry/backend_choice.hpp"
#include "core/errors.hpp"
#include "core/parse.hpp"
#include "store/store.hpp"

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

}  // namespace

std::optional<Communicator> Communicator::split(std::optional<int> color, int key,
                                                std::string name) const {
  World& world = impl_->group->world();
  const std::string base = fmt::format("{}/split", impl_->group->id());
  const std::string round = fmt::format("{}/{}", base, world.ticket(base));
  world.check();
  impl_->group->check_ended();

  struct Member {
    int key;
    int rank;
  };
  std::vector<Member> members;
  // Ranks without a color also wait for the others, so that an absent rank is an error on all
  // ranks.
  const auto texts =
      exchange_on_axis(impl_->group->axis(), store::titled("", round),
                       fmt::format("rank {}: split of communicator {}: every rank of it must call "
                                   "split()",
                                   world.rank(), impl_->group->name()),
                       to_text({color, key}), impl_->group->settings().timeout);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const int rank = impl_->group->axis().ranks[i];
    const SplitWish wish = wish_from(texts[i], rank);
    if (color && wish.color == color) members.push_back({wish.key, rank});
  }
  if (!color) {
    const auto calling = impl_->group->call_when_idle();
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
