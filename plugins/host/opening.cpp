#include "host/opening.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/group_store.hpp"
#include "host/tcp_rendezvous.hpp"
#include "sdk/guard.hpp"

namespace atoll_host_backend {
namespace {

using namespace std::chrono_literals;
using atoll_sdk::Error;

constexpr auto usual_cut = 10s;     // silence after which a network counts as cut, by default
constexpr auto lookup_limit = 1ms;  // time for which the lookup of a rank waits for it

const atoll_placement& placement(const atoll_group& group, int rank) {
  return *group.placements[rank];
}

std::string text_or_empty(const char* text) { return text == nullptr ? std::string() : text; }

using Contact = TcpTransport::Contact;

// The text that a rank publishes in the store when it closes. It replaces the text "PORT PORT",
// which has one port per rail.
constexpr std::string_view closed = "closed";

Contact decode(const std::string& text, const std::string& who) {
  if (text == closed) return {{}, true};
  std::istringstream in(text);
  Contact contact;
  contact.ports.assign(std::istream_iterator<std::uint16_t>(in), {});
  if (contact.ports.empty() || !in.eof()) {
    throw Error(ATOLL_BAD_DATA,
                fmt::format("{} published an invalid address '{}' in the store", who, text));
  }
  return contact;
}

Checksum checksum_of(const atoll_group& group) {
  const bool known = group.size >= offsetof(atoll_group, checksum) + sizeof(group.checksum);
  return known && group.checksum == ATOLL_CHECKSUM_CRC32C ? Checksum::crc32c : Checksum::none;
}

std::chrono::nanoseconds cut_of(const atoll_group& group) {
  const bool known = group.size >= offsetof(atoll_group, cut_ns) + sizeof(group.cut_ns);
  return known && group.cut_ns > 0 ? std::chrono::nanoseconds(group.cut_ns)
                                   : std::chrono::nanoseconds(usual_cut);
}

std::string key(int rank) { return fmt::format("host/{}", rank); }

std::unique_ptr<Rendezvous> listen(const atoll_group& group) {
  auto open = std::chrono::nanoseconds(group.timeout_ns);
  if (open <= 0ns) open = no_limit;
  Identity identity{text_or_empty(group.token), group.id, group.rank, host_name(),
                    static_cast<std::int32_t>(checksum_of(group))};
  return std::make_unique<Rendezvous>(std::move(identity), Network(group),
                                      Limits{cut_of(group), open});
}

// Returns a function that reads where a rank listens. It outlives the group.
TcpTransport::Lookup lookup(const atoll_host& host, const atoll_group& group,
                            const atoll_collectives::Team& team) {
  return [host = &host, id = std::string(group.id), team = &team](int rank) {
    std::string value;
    const auto limit = std::chrono::nanoseconds(lookup_limit).count();
    const auto status = read(*host, id, key(rank), limit, value);
    if (status == ATOLL_TIMEOUT) return Contact();
    const auto who = team->describe(rank);
    if (status != ATOLL_OK) {
      throw Error(status, fmt::format("cannot read the address of {} from the store", who));
    }
    return decode(value, who);
  };
}

// Lets this rank connect with ranks of other hosts. Returns null if the group has one host.
std::unique_ptr<TcpTransport> open_tcp(const atoll_host& host, const atoll_group& group,
                                       const atoll_collectives::Team& team,
                                       const GroupStore& store) {
  if (atoll_collectives::layout_of(group).hosts() == 1) return nullptr;
  auto rendezvous = listen(group);
  store.put(key(team.rank), fmt::format("{}", fmt::join(rendezvous->ports(), " ")));
  return std::make_unique<TcpTransport>(std::move(rendezvous), lookup(host, group, team),
                                        TcpTransport::Options{checksum_of(group), cut_of(group)});
}

// Returns a function that publishes that this rank has closed.
std::function<void()> retract(const atoll_host& host, const atoll_group& group,
                              const atoll_collectives::Team& team) {
  return [host = &host, path = fmt::format("{}/{}", group.id, key(team.rank))] {
    // A store that fails belongs to a job that has failed, and then nobody looks.
    host->put(host->ctx, path.c_str(), closed.data(), closed.size());
  };
}

}  // namespace

void describe_team(const atoll_group& group, atoll_collectives::Team& team) {
  if (group.memory != ATOLL_MEMORY_HOST) {
    throw Error(ATOLL_UNSUPPORTED, "the host backend supports host memory only");
  }
  if (group.nranks < 1 || group.rank < 0 || group.rank >= group.nranks || group.id == nullptr ||
      group.placements == nullptr) {
    throw Error(ATOLL_INVALID_ARGUMENT, "the group lacks an id, ranks, or their placements");
  }
  team.name = text_or_empty(group.name);
  team.rank = group.rank;
  for (int rank = 0; rank < group.nranks; ++rank) {
    team.world_ranks.push_back(placement(group, rank).world_rank);
  }
  const auto layout = atoll_collectives::layout_of(group);
  const auto here = static_cast<int>(layout.ranks_of(layout.host_of(group.rank)).size());
  const auto size = static_cast<std::size_t>(group.nranks);
  team.routes.assign(size, nullptr);
  team.channels.resize(size);
  const int neighbours = std::max(here, group.host_ranks);
  team.waiting = neighbours <= ::sysconf(_SC_NPROCESSORS_ONLN)
                     ? atoll_collectives::Waiting::spin_then_sleep
                     : atoll_collectives::Waiting::sleep;
}

Transports open_transports(const atoll_host& host, const atoll_group& group,
                           const atoll_collectives::Team& team) {
  const GroupStore store(host, group, team);
  Sharing sharing = share_memory(host, group, team, store);
  Transports transports;
  transports.group = std::make_unique<SplitGroup>(group, sharing.split);
  transports.shm = std::move(sharing.shm);
  transports.tcp = open_tcp(host, transports.group->get(), team, store);
  if (transports.tcp) transports.retract = retract(host, group, team);
  return transports;
}

}  // namespace atoll_host_backend
