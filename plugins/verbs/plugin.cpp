// Defines the C table of the verbs backend.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "atoll/plugin.h"
#include "collectives/communicator/host_communicator.hpp"
#include "collectives/layout.hpp"
#include "verbs/choice.hpp"
#include "verbs/verbs_transport.hpp"

namespace {

using namespace std::chrono_literals;
using atoll_collectives::GroupStore;
using atoll_collectives::Team;
using atoll_collectives::Transport;
using atoll_sdk::Error;

constexpr std::int32_t preference = 110;  // higher than that of the host backend
constexpr auto lookup_limit = 1ms;        // time for which a lookup waits for the other rank

// Logs once per process which adapters it uses, and why.
void report(const atoll_core& core, const std::string& adapters, const std::string& why) {
  static std::atomic<bool> is_reported = false;
  if (is_reported.exchange(true)) return;
  const auto line = fmt::format("verbs: RDMA through {} ({})", adapters, why);
  core.log(core.ctx, ATOLL_LOG_INFO, line.c_str());
}

// Returns the key that two ranks share. Its value is the rank that wrote it last, then that rank's
// address. Backends cannot delete keys, so forget() stores an empty value, which needs little
// memory.
std::string key_of(const std::string& id, int one, int other) {
  return fmt::format("{}/verbs/{}.{}", id, std::min(one, other), std::max(one, other));
}

void put(const atoll_core& core, const std::string& key, const std::string& value) {
  const auto status = core.put(core.ctx, key.c_str(), value.data(), value.size());
  if (status != ATOLL_OK) throw Error(status, "cannot publish an RDMA address in the store");
}

// Returns the address that a rank has published, or "" if there is none.
std::string find(const atoll_core& core, const std::string& key, const Team& team, int peer) {
  std::string value;
  const auto limit = std::chrono::nanoseconds(lookup_limit).count();
  const auto status = atoll_collectives::read(core, key, limit, value);
  if (status == ATOLL_TIMEOUT) return "";
  if (status != ATOLL_OK) {
    throw Error(status, fmt::format("cannot read the RDMA address of {} from the store",
                                    team.describe(peer)));
  }
  const auto writer = fmt::format("{} ", peer);
  return value.starts_with(writer) ? value.substr(writer.size()) : "";
}

atoll_verbs_backend::Exchange exchange_of(const atoll_core& core, const atoll_group& group,
                                          const Team& team) {
  const std::string id = group.id;
  const int own = group.rank;
  return {.publish =
              [&core, id, own](int peer, const std::string& contact) {
                put(core, key_of(id, own, peer), fmt::format("{} {}", own, contact));
              },
          .look_up = [&core, &team, id,
                      own](int peer) { return find(core, key_of(id, own, peer), team, peer); },
          .forget = [&core, id, own](int peer) { put(core, key_of(id, own, peer), ""); }};
}

atoll_verbs_backend::Membership membership_of(const atoll_core& core, const atoll_group& group,
                                              const Team& team) {
  const auto layout = atoll_collectives::layout_of(group);
  const auto here = layout.ranks_of(layout.host_of(group.rank)).size();
  return {.rank = group.rank,
          .ranks = group.nranks,
          .remote_ranks = group.nranks - static_cast<int>(here),
          .timeout = std::chrono::nanoseconds(group.timeout_ns),
          .warn = [&core, &team](int peer, const std::string& text) {
            const auto line = fmt::format("closing communicator {} on {}: {}: {}", team.name,
                                          team.describe(team.rank), team.describe(peer), text);
            core.log(core.ctx, ATOLL_LOG_WARN, line.c_str());
          }};
}

std::unique_ptr<Transport> open_verbs(const atoll_core& core, const atoll_group& group,
                                      const Team& team, const GroupStore& store) {
  try {
    auto settings = atoll_verbs_backend::settings_of(group);
    auto choice = atoll_verbs_backend::choose_ports(core, settings.devices,
                                                    atoll_verbs_backend::active_ports(),
                                                    group.placements[group.rank]->device);
    settings.devices = std::move(choice.ports);
    auto transport = std::make_unique<atoll_verbs_backend::VerbsTransport>(
        std::move(settings), exchange_of(core, group, team), membership_of(core, group, team));
    report(core, transport->description(), choice.why);
    return transport;
  } catch (const Error& error) {
    throw Error(error.status(), fmt::format("{}: {}", store.opening(), error.what()));
  }
}

struct VerbsBackend : atoll_collectives::HostCommunicator {
  using HostCommunicator::HostCommunicator;
  static std::int32_t probe(const atoll_group& /*world*/) {
    if (atoll_verbs_backend::active_ports().empty()) {
      throw Error(ATOLL_UNSUPPORTED, "no RDMA device of this host has an active port");
    }
    return preference;
  }
  static std::unique_ptr<VerbsBackend> open(const atoll_core& core, const atoll_group& group) {
    return std::make_unique<VerbsBackend>(core, group, open_verbs);
  }
};

constexpr atoll_backend table = atoll_collectives::table_of<VerbsBackend>("verbs");

}  // namespace

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1() {
  return &table;
}
