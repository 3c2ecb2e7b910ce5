// Topology::discover and discover_ports: the lowest rank of each host discovers the host, and every
// rank merges the results.
#include <fmt/format.h>

#include "atoll/topology.hpp"
#include "atoll/world.hpp"
#include "core/errors.hpp"
#include "store/store.hpp"

namespace atoll_v1::atoll {
namespace {

// Prefix of the text that a rank sends instead of a topology when it cannot discover its host. All
// ranks throw when they receive this text, instead of waiting for the failed rank.
constexpr std::string_view failed = "failed: ";

const HostInfo& own_host(const World& world) {
  const auto& me = world.placements().at(static_cast<std::size_t>(world.rank()));
  return world.hosts().at(static_cast<std::size_t>(me.host));
}

using Look = Topology (*)(std::string_view host_id);

std::string describe(const HostInfo& host, Look look) {
  try {
    Topology topology = look(host.id);
    for (TopologyHost& seen : topology.hosts) seen.name = host.name;
    return topology.to_json();
  } catch (const std::exception& error) {
    return fmt::format("{}{}", failed, text_of(error));
  }
}

Topology gather(World& world, std::string_view key, Look look) {
  const HostInfo& host = own_host(world);
  // The lowest rank of the host, not local rank 0: users can set local ranks, so there may be no 0.
  const bool is_first = host.ranks.front() == world.rank();
  // Every call can use the same key of the store, because no rank leaves an exchange before all
  // ranks have entered it.
  const auto texts = world.exchange(key, is_first ? describe(host, look) : "");
  std::vector<Topology> parts;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const std::string_view text = texts[rank];
    if (text.empty()) continue;
    if (text.starts_with(failed))
      throw make_error(ErrorCode::io, "rank {} cannot describe its host: {}", rank,
                       text.substr(failed.size()));
    parts.push_back(Topology::from_json(text, fmt::format("topology of rank {}", rank)));
  }
  return merge(parts);
}

}  // namespace

Topology Topology::discover(World& world) {
  return gather(world, store::titled("Topology::discover", "topology"), &Topology::discover_local);
}

Topology Topology::discover_ports(World& world) {
  return gather(world, store::titled("finding the ports of the hosts", "ports"),
                &Topology::discover_local_ports);
}

}  // namespace atoll_v1::atoll
