// How a BackendCommunicator opens: the ranks compare what they open, choose a backend and open it.
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <iterator>

#include "atoll/rank_set.hpp"
#include "comm/backend_communicator.hpp"
#include "comm/registry/backend_choice.hpp"
#include "core/errors.hpp"
#include "core/parse.hpp"
#include "flight/flight.hpp"
#include "world/introduction.hpp"
#include "world/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

// Time that operations in flight get to complete after a rank has called World::leave(). The thread
// that reads from the store waits this long, so the time is short.
constexpr std::chrono::milliseconds leave_patience{200};

void check_axis(const Axis& axis) {
  require(axis.world && !axis.ranks.empty(), "Communicator::open: the axis is empty");
  require(!WorldInternals::is_over(axis.hold),
          "Communicator::open: the World of axis {} has been destroyed: it must outlive its meshes",
          axis.name);
  const World& world = *axis.world;
  std::vector<int> sorted = axis.ranks;
  std::ranges::sort(sorted);
  require(sorted.front() >= 0 && sorted.back() < world.size() &&
              std::ranges::adjacent_find(sorted) == sorted.end(),
          "Communicator::open: axis {} has the ranks {}: list ranks from 0 to {}, each once",
          axis.name, fmt::join(axis.ranks, ", "), world.size() - 1);
  const bool intra = axis.index >= 0 && axis.index < axis.size();
  require(
      intra && axis.ranks[static_cast<std::size_t>(axis.index)] == world.rank(),
      "Communicator::open: axis {} has the index {} on rank {}, but its ranks are {}: the index "
      "is the position of this rank among them",
      axis.name, axis.index, world.rank(), fmt::join(axis.ranks, ", "));
}

}  // namespace

std::shared_ptr<BackendCommunicator> BackendCommunicator::open(const Axis& axis,
                                                               CommunicatorOptions options,
                                                               const BackendCommunicator* parent,
                                                               Use use) {
  check_axis(axis);
  World& world = *axis.world;
  world.check();
  std::shared_ptr<BackendCommunicator> group;
  const std::string name = options.name.empty() ? axis.name : options.name;
  const std::string call = fmt::format("opening communicator {}", name);
  const std::stop_token stop = options.stop;
  // A wrong option of one rank becomes the error of all ranks.
  const auto declare = [&]() -> std::vector<Declaration> {
    require(!stop.stop_requested(), ErrorCode::aborted, "{}: rank {} stopped it", call,
            world.rank());
    group = std::make_shared<BackendCommunicator>(axis, std::move(options), use);
    std::vector<Declaration> all{
        {"the ranks of the axis", fmt::format("{}", fmt::join(axis.ranks, ", "))},
        {"the memory", group->device().kind() == DeviceKind::cpu ? "CPU" : "GPU"},
        {"the parent", parent ? parent->id() : "none"}};
    std::ranges::move(group->settings().declarations(), std::back_inserter(all));
    return all;
  };
  if (axis.size() == 1) {
    declare();
  } else {
    agree({world, axis.ranks}, call, declare, world.config().rendezvous_timeout, stop);
  }
  group->take_id();
  const std::stop_callback ends(stop, [&] { group->abort("its open() was stopped"); });
  try {
    group->open_backend(parent);
  } catch (const Error&) {
    group->check_ended();  // the cause
    throw;
  }
  group->check_ended();
  return group;
}

void BackendCommunicator::take_id() {
  const std::string base =
      fmt::format("comm/{}/{:016x}", name_, fnv1a(fmt::format("{}", fmt::join(axis_.ranks, ","))));
  id_ = fmt::format("{}/{}", base, world().ticket(base));
  // The flight recorder must exist before the backend opens, so that it can record a failure.
  flight_ = Flight::of(world());
  // A rank that has opened the group may end it while this rank still opens it.
  flight_->questions().add(end_name(), [this](std::string_view why) {
    announced(decode_error(why));
    return std::string();
  });
}

void BackendCommunicator::open_backend(const BackendCommunicator* parent) {
  if (parent && parent->plugin_->table.split == nullptr) parent = nullptr;
  on_departure_ = world().on_departure([this](int rank, const Error& why) {
    if (std::ranges::find(axis_.ranks, rank) == axis_.ranks.end()) return;
    const bool is_leave = why.code() == ErrorCode::aborted;  // by World::leave()
    end(make_error(why.code(), "communicator {}: {}", name_, why.what()),
        WorldInternals::departure_time(world(), rank) +
            (is_leave ? leave_patience : std::chrono::milliseconds(0)));
  });
  plugin_ =
      parent ? parent->plugin_ : &choose_backend({axis_, id_, name_, device_, settings_.backend});
  std::string tuning = settings_.tuning;
  if (lacks_levels()) level_choice_ = LevelChoice::take_from(tuning);
  GroupDescription group(world(), axis_, id_, name_, device_.kind(), tuning, device_.ordinal());
  group.group.deterministic = settings_.deterministic;
  group.group.tags = use_ == Use::tags ? 1 : 0;
  group.group.compute_units = static_cast<std::int32_t>(settings_.compute_units);
  if (device_.kind() == DeviceKind::simulated) {
    group.links = device_.backend()->info().links;
    group.group.links = group.links.c_str();
  }
  // Backends without tags return ATOLL_UNSUPPORTED. Those with an ABI minor below 2 do not read the
  // field `tags`.
  const bool is_refused = use_ == Use::tags && plugin_->table.abi_minor < 2;
  const atoll_status status = is_refused ? ATOLL_UNSUPPORTED
                              : parent   ? split_group(*parent, group.group)
                                         : open_group(group.group);
  require(use_ != Use::tags || status != ATOLL_UNSUPPORTED, ErrorCode::unsupported,
          "CommunicatorOptions::tags: the backend {} does not support tags", plugin_->name);
  if (status != ATOLL_OK) {
    comm_ = nullptr;
    if (parent) parent->check_ended();
    await_cause();
    world().check();  // throws another rank's failure if that failure came first
  }
  check(status, fmt::format("open communicator {} on backend {}", name_, plugin_->name));
  try {
    opened();
  } catch (const std::exception& error) {
    // Fails all ranks, because the others have opened the group and would wait for this one.
    fail_all(Error(ErrorCode::internal, text_of(error)));
    throw;
  }
}

// Opens the group again without ordered sums if the backend returns ATOLL_UNSUPPORTED for them.
// Fallbacks, which are collectives that the library builds itself, then compute the ordered sums.
atoll_status BackendCommunicator::open_group(atoll_group& group) {
  if (order_needs_fallback(group)) {
    shape_.block = axis_.block;
    backend_orders_sums_ = false;
    group.deterministic = 0;
  }
  const atoll_status status = plugin_->table.open(&services_, &group, &comm_);
  if (status != ATOLL_UNSUPPORTED || group.deterministic == 0) return status;
  group.deterministic = 0;
  backend_orders_sums_ = false;
  return plugin_->table.open(&services_, &group, &comm_);
}

// Ordered sums may have to add the ranks of each block of a mesh first (Axis::block). Backends do
// not know these blocks, so such a sum needs a fallback. If the size of a block is a power of two,
// a block is a subtree of the adjacent-pair tree over all ranks, and the backend's order is
// correct.
bool BackendCommunicator::order_needs_fallback(const atoll_group& group) const {
  const bool in_blocks = axis_.block > 0 && axis_.block < axis_.size() &&
                         !std::has_single_bit(static_cast<unsigned>(axis_.block));
  return group.deterministic != 0 && in_blocks;
}

atoll_status BackendCommunicator::split_group(const BackendCommunicator& parent,
                                              atoll_group& group) {
  if (order_needs_fallback(group)) shape_.block = axis_.block;
  backend_orders_sums_ =
      group.deterministic == 0 || (parent.backend_orders_sums_ && shape_.block == 0);
  if (!backend_orders_sums_) group.deterministic = 0;
  parent.wait_until_idle();
  return plugin_->table.split(parent.comm_, &group, &comm_);
}

}  // namespace atoll_v1::atoll
