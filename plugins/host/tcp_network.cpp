#include "host/tcp_network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "collectives/tuning.hpp"
#include "host/tcp_handshake.hpp"
#include "sdk/backend.hpp"

namespace atoll_host_backend {
namespace {

constexpr int connections_wanted =
    2;  // minimum number of connections between two hosts on each rail

std::vector<std::string> rails_of(const atoll_placement& place) {
  std::istringstream in(place.rail_addresses == nullptr ? "" : place.rail_addresses);
  std::vector<std::string> result{std::istream_iterator<std::string>(in), {}};
  if (result.empty()) result.emplace_back(place.address == nullptr ? "" : place.address);
  if (result.size() > most_rails) {
    throw atoll_sdk::Error(
        ATOLL_INVALID_ARGUMENT,
        fmt::format("world rank {} has {} rails; the host backend supports at most {}",
                    place.world_rank, result.size(), most_rails));
  }
  return result;
}

// If hosts have few ranks, each pair has more connections, so that two hosts have at least
// `connections_wanted`.
int streams_per_rail(const atoll_group& group, const atoll_collectives::Layout& layout) {
  if (const int asked = atoll_collectives::connections_of(group); asked > 0) return asked;
  return std::max(1, connections_wanted / layout.fewest_ranks());
}

}  // namespace

Network::Network(const atoll_group& group)
    : rank_(group.rank),
      layout_(atoll_collectives::layout_of(group)),
      per_rail_(streams_per_rail(group, layout_)) {
  for (int rank = 0; rank < group.nranks; ++rank) {
    rails_.push_back(rails_of(*group.placements[rank]));
  }
}

std::size_t Network::common_rails(int rank) const {
  return std::min(rails(rank_).size(), rails(rank).size());
}

int Network::streams(int rank) const { return per_rail_ * static_cast<int>(common_rails(rank)); }

std::size_t Network::rail(int rank, int stream) const {
  const int first = layout_.local_of(std::min(rank, rank_));
  return static_cast<std::size_t>(first + stream) % common_rails(rank);
}

}  // namespace atoll_host_backend
