// Which backend a communicator opens on: what every rank can use, the best of it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "comm/communicator_impl.hpp"

namespace atoll_v1::atoll {

// As `atoll_memory` of plugin.h.
constexpr std::int32_t memory_of(DeviceKind kind) { return static_cast<std::int32_t>(kind); }

// A group as plugins see it; owns what the C structs point to.
struct GroupDescription {
  std::string id, name;
  std::string token;
  std::string tuning;
  std::vector<std::string> rails;  // by rank of the axis
  std::vector<atoll_placement> placements;
  std::vector<const atoll_placement*> pointers;
  atoll_group group{};

  GroupDescription(const World& world, const Axis& axis, std::string id_, std::string name_,
                   DeviceKind kind, std::string tuning_ = {}, int device = -1)
      : id(std::move(id_)),
        name(std::move(name_)),
        token(world.config().token),
        tuning(std::move(tuning_)) {
    for (const int rank : axis.ranks) {
      const Placement& place = world.placements()[static_cast<std::size_t>(rank)];
      rails.push_back(fmt::format("{}", fmt::join(place.rail_addresses, " ")));
    }
    for (std::size_t i = 0; i < rails.size(); ++i) {
      const Placement& place = world.placements()[static_cast<std::size_t>(axis.ranks[i])];
      placements.push_back({sizeof(atoll_placement), place.rank, place.host, -1,
                            place.address.c_str(), rails[i].c_str()});
    }
    placements[static_cast<std::size_t>(axis.index)].device = device;
    for (const auto& placement : placements) pointers.push_back(&placement);
    group.size = sizeof(atoll_group);
    group.rank = axis.index;
    group.nranks = axis.size();
    group.world_rank = world.rank();
    group.world_size = world.size();
    group.memory = memory_of(kind);
    group.id = id.c_str();
    group.name = name.c_str();
    group.placements = pointers.data();
    group.token = token.c_str();
    group.timeout_ns = std::chrono::nanoseconds(world.config().rendezvous_timeout).count();
    group.tuning = tuning.c_str();
    group.deterministic = world.config().deterministic;
    const auto& places = world.placements();
    const int here = places[static_cast<std::size_t>(world.rank())].host;
    group.host_ranks = static_cast<std::int32_t>(
        std::ranges::count(places, here, [](const Placement& place) { return place.host; }));
  }
  GroupDescription(const GroupDescription&) = delete;
  GroupDescription& operator=(const GroupDescription&) = delete;
};

// Collective over the communicator's axis. Throws Error(unsupported) that says what each backend
// lacks, and Error(mismatch) when ranks ask for different algorithms or orders of sums.
const Plugin& choose_backend(const Communicator::Impl& impl, std::string_view tuning);

}  // namespace atoll_v1::atoll
