// Communicator::split: ranks exchange color and key through the store, then open communicators.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "atoll/communicator.hpp"
#include "comm/communicator_impl.hpp"
#include "core/errors.hpp"
#include "core/text.hpp"

namespace atoll_v1::atoll {
namespace {

// The color and key that a rank passes to split().
struct Wish {
  std::optional<int> color;
  int key = 0;
};

std::string to_text(const Wish& wish) {
  return wish.color ? fmt::format("{} {}", *wish.color, wish.key) : "";
}

Wish wish_from(std::string_view text, int rank) {
  if (text.empty()) return {};
  const auto words = split(text, ' ');
  const auto color = number_from<int>(words.front()), key = number_from<int>(words.back());
  require(words.size() == 2 && color && key, ErrorCode::bad_data,
          "split: rank {} sent \"{}\", which is not a color and a key", rank, text);
  return {color, *key};
}

Wish wish_of(const BackendGroup& group, int rank, std::string_view at) {
  const auto timeout = group.settings().timeout;
  try {
    return wish_from(group.world().get(at, timeout), rank);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw;
    throw make_error(ErrorCode::timeout,
                     "rank {}: split of communicator {}: rank {} did not call split() within {} s",
                     group.world().rank(), group.name(), rank,
                     std::chrono::duration<double>(timeout).count());
  }
}

}  // namespace

std::optional<Communicator> Communicator::split(std::optional<int> color, int key,
                                                std::string name) const {
  World& world = impl_->group->world();
  const std::string base = fmt::format("{}/split", impl_->group->id());
  const std::string round = fmt::format("{}/{}", base, world.ticket(base));
  const auto at = [&](int rank) { return fmt::format("{}/{}", round, rank); };
  world.check();
  impl_->group->check_aborted();
  if (size() > 1) world.put(at(world.rank()), to_text({color, key}));

  struct Member {
    int key;
    int rank;
  };
  std::vector<Member> members;
  // Ranks without a color also wait for the others, so that an absent rank is an error on all
  // ranks.
  for (const int rank : impl_->group->axis().ranks) {
    const Wish wish =
        rank == world.rank() ? Wish{color, key} : wish_of(*impl_->group, rank, at(rank));
    if (color && wish.color == color) members.push_back({wish.key, rank});
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
  return open(axis, {.name = "", .parent = this});
}

}  // namespace atoll_v1::atoll
