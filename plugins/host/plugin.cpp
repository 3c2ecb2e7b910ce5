// Defines the C table of the host backend, and opens the TCP transport of a communicator. Every
// rank creates a listening socket per rail and publishes the ports in the store under the group's
// id. Ranks connect on demand (tcp_rendezvous.hpp).
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "atoll/plugin.h"
#include "collectives/communicator/host_communicator.hpp"
#include "host/tcp_rendezvous.hpp"
#include "host/tcp_transport.hpp"
#include "sdk/backend.hpp"

namespace {

using namespace std::chrono_literals;
using namespace atoll_host_backend;
using atoll_collectives::GroupStore;
using atoll_collectives::Team;
using atoll_collectives::Transport;
using atoll_sdk::Error;

constexpr auto usual_cut = 10s;  // silence after which a network counts as cut, by default
// Time that the lookup of a rank waits for the rank to publish its ports.
constexpr auto lookup_limit = 1ms;

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
  return group.checksum == ATOLL_CHECKSUM_CRC32C ? Checksum::crc32c : Checksum::none;
}

std::chrono::nanoseconds cut_of(const atoll_group& group) {
  return group.cut_ns > 0 ? std::chrono::nanoseconds(group.cut_ns) : usual_cut;
}

std::string key(int rank) { return fmt::format("host/{}", rank); }

std::unique_ptr<Rendezvous> listen(const atoll_group& group) {
  auto open = std::chrono::nanoseconds(group.timeout_ns);
  if (open <= 0ns) open = atoll_collectives::no_limit;
  if (group.owns_process != 0) atoll_v1::atoll::net::descriptor_limit(true);
  Identity identity{text_or_empty(group.token), group.id, group.rank, host_name(),
                    static_cast<std::int32_t>(checksum_of(group))};
  return std::make_unique<Rendezvous>(std::move(identity), Network(group),
                                      Limits{cut_of(group), open});
}

// Returns a function that reads from the store on which ports a rank listens. It outlives `group`.
TcpTransport::Lookup lookup(const atoll_core& core, const atoll_group& group, const Team& team) {
  return [core = &core, id = std::string(group.id), team = &team](int rank) {
    std::string value;
    const auto limit = std::chrono::nanoseconds(lookup_limit).count();
    const auto status = atoll_collectives::read(*core, id + "/" + key(rank), limit, value);
    if (status == ATOLL_TIMEOUT) return Contact();
    const auto who = team->describe(rank);
    if (status != ATOLL_OK) {
      throw Error(status, fmt::format("cannot read the address of {} from the store", who));
    }
    return decode(value, who);
  };
}

// Returns a function that publishes that this rank has closed.
std::function<void()> retract(const atoll_core& core, const atoll_group& group, const Team& team) {
  return [core = &core, path = fmt::format("{}/{}", group.id, key(team.rank))] {
    // The status is ignored: the store fails only if the job has failed, and no rank looks then.
    core->put(core->ctx, path.c_str(), closed.data(), closed.size());
  };
}

std::unique_ptr<Transport> open_tcp(const atoll_core& core, const atoll_group& group,
                                    const Team& team, const GroupStore& store) {
  auto rendezvous = listen(group);
  store.put(key(team.rank), fmt::format("{}", fmt::join(rendezvous->ports(), " ")));
  return std::make_unique<TcpTransport>(
      std::move(rendezvous), lookup(core, group, team),
      TcpTransport::Options{checksum_of(group), cut_of(group), retract(core, group, team)});
}

struct HostBackend : atoll_collectives::HostCommunicator {
  using HostCommunicator::HostCommunicator;
  // Returns the preference of this backend, by which the library chooses among usable backends.
  static std::int32_t probe(const atoll_group& /*world*/) { return 100; }
  static std::unique_ptr<HostBackend> open(const atoll_core& core, const atoll_group& group) {
    return std::make_unique<HostBackend>(core, group, open_tcp);
  }
};

constexpr atoll_backend table = atoll_collectives::table_of<HostBackend>("host");

}  // namespace

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1() {
  return &table;
}
