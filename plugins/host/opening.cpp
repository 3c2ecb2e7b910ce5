#include "host/opening.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "collectives/tuning.hpp"
#include "host/tcp_rendezvous.hpp"
#include "sdk/guard.hpp"

namespace atoll_host_backend {
namespace {

using namespace std::chrono_literals;
using atoll_sdk::Error;
using Clock = std::chrono::steady_clock;

constexpr std::size_t largest_value = 1024;  // maximum size in bytes of an address in the store
constexpr int connections_wanted =
    2;  // minimum number of connections between two hosts on each rail
constexpr std::size_t most_rails = 64;
constexpr auto first_nap = 50us;
constexpr auto longest_nap = 2ms;
constexpr auto check_period = 250ms;
constexpr auto no_limit =
    10'000h;  // replaces an infinite time limit; adding it to a time does not overflow

const atoll_placement& placement(const atoll_group& group, int rank) {
  return *group.placements[rank];
}

std::string text_or_empty(const char* text) { return text == nullptr ? std::string() : text; }

// Returns the addresses of a rank, one per rail.
std::vector<std::string> rails_of(const atoll_placement& place) {
  std::istringstream in(text_or_empty(place.rail_addresses));
  std::vector<std::string> result{std::istream_iterator<std::string>(in), {}};
  if (result.empty()) result.push_back(text_or_empty(place.address));
  if (result.size() > most_rails) {
    throw Error(ATOLL_INVALID_ARGUMENT,
                fmt::format("world rank {} has {} rails; the host backend supports at most {}",
                            place.world_rank, result.size(), most_rails));
  }
  return result;
}

// The addresses that a rank publishes in the store as "NAME:RING_BYTES PORT...", with one port per
// rail. A rank without an inbox publishes "-" instead of NAME:RING_BYTES, and a rank of a group on
// one host publishes no ports.
struct Contact {
  std::string inbox;
  std::vector<std::uint16_t> ports;
};

std::string encode(const Contact& contact) {
  return fmt::format("{} {}", contact.inbox.empty() ? "-" : contact.inbox,
                     fmt::join(contact.ports, " "));
}

Contact decode(const std::string& text, const std::string& who) {
  std::istringstream in(text);
  Contact contact;
  in >> contact.inbox;
  contact.ports.assign(std::istream_iterator<std::uint16_t>(in), {});
  if (contact.inbox.empty() || !in.eof()) {
    throw Error(ATOLL_BAD_DATA,
                fmt::format("{} published an invalid address '{}' in the store", who, text));
  }
  return contact;
}

// Opens one communicator on one rank.
class Opening {
 public:
  Opening(const atoll_host& host, const atoll_group& group, const atoll_collectives::Team& team)
      : host_(host),
        group_(group),
        team_(team),
        layout_(atoll_collectives::layout_of(group)),
        here_(layout_.ranks_of(layout_.host_of(team.rank))),
        deadline_(Clock::time_point::max()) {
    const auto timeout = std::chrono::nanoseconds(group.timeout_ns);
    if (timeout > 0ns && timeout < deadline_ - Clock::now()) deadline_ = Clock::now() + timeout;
  }

  Transports run() {
    Transports transports;
    std::optional<Rendezvous> rendezvous;
    Contact mine;
    if (here_.size() > 1) {
      atoll_collectives::permit_access(group_);
      const auto doorbell = layout_.hosts() == 1 ? atoll_collectives::Doorbell::futex_only
                                                 : atoll_collectives::Doorbell::futex_or_socket;
      transports.shm =
          std::make_unique<atoll_collectives::ShmTransport>(here_, team_.rank, doorbell);
      mine.inbox = transports.shm->published();
    }
    if (layout_.hosts() > 1) {
      rendezvous.emplace(Identity{text_or_empty(group_.token), group_.id, team_.rank},
                         rails_of(placement(group_, team_.rank)));
      mine.ports = rendezvous->ports();
    }
    publish(mine);
    for (const int rank : here_) {
      if (rank != team_.rank) transports.shm->attach(rank, contact(rank).inbox);
    }
    if (rendezvous) transports.tcp = std::make_unique<TcpTransport>(connect(*rendezvous));
    if (transports.shm) {
      await_attached(*transports.shm);
      transports.shm->conceal();
    }
    return transports;
  }

 private:
  std::string key(int rank) const { return fmt::format("{}/host/{}", group_.id, rank); }

  std::string opening() const {
    return fmt::format("opening communicator {} on {}", team_.name, team_.describe(team_.rank));
  }

  void publish(const Contact& contact) const {
    const std::string value = encode(contact);
    const auto status = host_.put(host_.ctx, key(team_.rank).c_str(), value.data(), value.size());
    if (status != ATOLL_OK)
      throw Error(status,
                  fmt::format("{}: cannot publish this rank's address in the store", opening()));
  }

  std::string get(int rank) const {
    std::array<char, largest_value> value{};
    std::size_t size = value.size();
    // The time limit is at least 1 ns, because a store may treat 0 as no limit.
    std::int64_t left = std::chrono::nanoseconds(no_limit).count();
    if (deadline_ != Clock::time_point::max()) {
      left = std::max<std::int64_t>(1, std::chrono::nanoseconds(deadline_ - Clock::now()).count());
    }
    const auto status = host_.get(host_.ctx, key(rank).c_str(), value.data(), &size, left);
    if (status != ATOLL_OK) {
      throw Error(status, fmt::format("{}: cannot read the address of {} from the store", opening(),
                                      team_.describe(rank)));
    }
    return {value.data(), size};
  }

  Contact contact(int rank) const { return decode(get(rank), team_.describe(rank)); }

  // Throws if the job has failed: the store then returns an error at once, even for a key that
  // exists.
  void check_job() const { get(team_.rank); }

  // Returns the number of connections between two ranks on each rail. If hosts have few ranks, each
  // pair has more connections, so that two hosts have at least `connections_wanted`.
  int streams_per_rail() const {
    if (const int asked = atoll_collectives::connections_of(group_); asked > 0) return asked;
    return std::max(1, connections_wanted / layout_.fewest_ranks());
  }

  // Announces this rank's connections with `rank` to the rendezvous. Both ranks compute the same
  // connections, which are assigned in turn to the rails that both ranks have. Ranks of a host
  // begin with different rails to spread the load.
  void arrange(Rendezvous& rendezvous, int rank, int per_rail) const {
    const auto mine = rails_of(placement(group_, team_.rank));
    const auto theirs = rails_of(placement(group_, rank));
    const std::size_t rails = std::min(mine.size(), theirs.size());
    const int streams = per_rail * static_cast<int>(rails);
    const int first = layout_.local_of(std::min(rank, team_.rank));
    Contact listener;
    if (rank < team_.rank) {
      listener = contact(rank);
      if (listener.ports.size() < rails) {
        throw Error(ATOLL_BAD_DATA,
                    fmt::format("{} published {} ports for {} rails", team_.describe(rank),
                                listener.ports.size(), rails));
      }
    }
    for (int stream = 0; stream < streams; ++stream) {
      const std::size_t rail = static_cast<std::size_t>(first + stream) % rails;
      if (rank > team_.rank) {
        rendezvous.expect({rank, stream}, rail);
      } else {
        // With one rail the kernel chooses the source address, which also works behind NAT.
        rendezvous.connect_to({rank, stream},
                              {rails > 1 ? mine[rail] : "", theirs[rail], listener.ports[rail]});
      }
    }
  }

  std::map<int, Streams> connect(Rendezvous& rendezvous) const {
    const int per_rail = streams_per_rail();
    for (int rank = 0; rank < team_.size(); ++rank) {
      const bool is_here = layout_.host_of(rank) == layout_.host_of(team_.rank);
      if (!is_here) arrange(rendezvous, rank, per_rail);
    }
    try {
      return rendezvous.run(
          deadline_, [this] { check_job(); }, [this](int rank) { return team_.describe(rank); });
    } catch (const Error& error) {
      throw Error(error.status(), fmt::format("{}: {}", opening(), error.what()));
    }
  }

  void await_attached(const atoll_collectives::ShmTransport& shm) const {
    std::chrono::microseconds nap = first_nap;
    auto next_check = Clock::now() + check_period;
    for (auto absent = shm.absent(); !absent.empty(); absent = shm.absent()) {
      if (Clock::now() >= deadline_) {
        std::string names;
        for (const int rank : absent) names += fmt::format(" {}", team_.describe(rank));
        throw Error(ATOLL_TIMEOUT,
                    fmt::format("{}: these ranks did not attach to this rank's shared memory:{}",
                                opening(), names));
      }
      if (Clock::now() >= next_check) {
        check_job();
        next_check = Clock::now() + check_period;
      }
      std::this_thread::sleep_for(nap);
      nap = std::min<std::chrono::microseconds>(nap * 2, longest_nap);
    }
  }

  const atoll_host& host_;
  const atoll_group& group_;
  const atoll_collectives::Team& team_;
  atoll_collectives::Layout layout_;
  const std::vector<int>& here_;  // ranks of this host, including this rank
  Clock::time_point deadline_;
};

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
  return Opening(host, group, team).run();
}

}  // namespace atoll_host_backend
