#include "comm/registry/backend_choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "atoll/rank_set.hpp"
#include "core/descriptor.hpp"
#include "core/errors.hpp"
#include "store/store.hpp"

namespace atoll_v1::atoll {
namespace {

using Preferences = std::map<std::string, int>;  // preference of each usable backend, by name

Axis world_axis(World& world) {
  Axis axis{&world, "world", {}, world.rank()};
  for (int rank = 0; rank < world.size(); ++rank) axis.ranks.push_back(rank);
  return axis;
}

// Returns the preference of every backend that is usable here, by name. `found` receives every
// backend, with the reason when it is unusable.
Preferences probe_all(World& world, DeviceKind kind, std::vector<BackendInfo>& found) {
  const atoll_core services = core_services(world);
  const GroupDescription group(world, world_axis(world), "world", "world", kind);
  Preferences usable;
  for (const auto& file : find_plugins(world.config())) {
    BackendInfo info{file.filename().string(), file.string(), {}, 0};
    try {
      const Plugin& plugin = load_plugin(file);
      info.name = plugin.name;
      info.preference = plugin.table.probe(&services, &group.group);
      if (info.preference <= 0) info.unusable = last_error(plugin, nullptr);
      const bool moves =
          plugin.table.capability(ATOLL_ALL_TO_ALL, ATOLL_F32, ATOLL_SUM, memory_of(kind)) != 0;
      if (info.preference > 0 && !moves) info.unusable = "does not support this kind of memory";
    } catch (const Error& error) {
      info.unusable = error.what();
    }
    if (info.unusable.empty()) usable[info.name] = info.preference;
    found.push_back(std::move(info));
  }
  return usable;
}

std::string encode(const Preferences& usable) {
  std::string text;
  for (const auto& [name, preference] : usable) text += fmt::format("{} {}\n", preference, name);
  return text;
}

Preferences decode(const std::string& text) {
  Preferences usable;
  std::istringstream lines(text);
  int preference = 0;
  for (std::string name; lines >> preference && std::getline(lines >> std::ws, name);) {
    usable[name] = preference;
  }
  return usable;
}

std::string reasons(const std::vector<BackendInfo>& found) {
  if (found.empty())
    return "no backend was found; set ATOLL_PLUGIN_PATH to the folder of the backends";
  std::string text;
  for (const auto& info : found) {
    if (!text.empty()) text += "; ";
    text += fmt::format("{}: {}", info.name, info.unusable.empty() ? "usable here" : info.unusable);
  }
  return text;
}

// Removes from `usable` every backend that some rank of the axis cannot use. The preference of each
// remaining backend becomes its lowest preference on any rank.
void keep_common(const BackendQuery& query, Preferences& usable, std::vector<BackendInfo>& found) {
  if (query.axis.size() == 1) return;
  const auto texts =
      exchange_on_axis(query.axis, store::titled("", query.id + "/backends"),
                       fmt::format("rank {}: communicator {}: every rank of it must open it",
                                   query.axis.world->rank(), query.name),
                       encode(usable), query.axis.world->config().rendezvous_timeout);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const int rank = query.axis.ranks[i];
    const auto theirs = decode(texts[i]);
    for (auto entry = usable.begin(); entry != usable.end();) {
      const auto other = theirs.find(entry->first);
      if (other == theirs.end()) {
        found.push_back({entry->first, "", fmt::format("not usable on rank {}", rank), 0});
        entry = usable.erase(entry);
      } else {
        entry->second = std::min(entry->second, other->second);
        ++entry;
      }
    }
  }
}

}  // namespace

std::vector<std::string> exchange_on_axis(const Axis& axis, const std::string& key,
                                          std::string_view call, const std::string& mine,
                                          std::chrono::milliseconds timeout) {
  if (axis.size() == 1) return {mine};
  const RankSet ranks(*axis.world, axis.ranks);
  try {
    const auto values = ranks.exchange(key, mine, timeout);
    std::vector<std::string> result;
    for (const int rank : axis.ranks) {  // an axis may have its ranks in any order
      const auto place = std::ranges::lower_bound(ranks.ranks(), rank) - ranks.ranks().begin();
      result.push_back(values[static_cast<std::size_t>(place)]);
    }
    return result;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout || ranks.world().failure()) throw;
    throw make_error(ErrorCode::timeout, "{}: {}", call, error.what());
  }
}

GroupDescription::GroupDescription(const World& world, const Axis& axis, std::string id_,
                                   std::string name_, DeviceKind kind, std::string tuning_,
                                   int device)
    : id(std::move(id_)),
      name(std::move(name_)),
      token(world.config().token),
      tuning(std::move(tuning_)) {
  const auto& places = world.placements();
  for (const int rank : axis.ranks) {
    const Placement& place = places[static_cast<std::size_t>(rank)];
    rails.push_back(fmt::format("{}", fmt::join(place.rail_addresses, " ")));
  }
  for (std::size_t i = 0; i < rails.size(); ++i) {
    const Placement& place = places[static_cast<std::size_t>(axis.ranks[i])];
    atoll_placement& entry = placements.emplace_back();
    entry.size = sizeof(atoll_placement);
    entry.world_rank = place.rank;
    entry.host = place.host;
    entry.device = -1;
    entry.address = place.address.c_str();
    entry.rail_addresses = rails[i].c_str();
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
  const int here = places[static_cast<std::size_t>(world.rank())].host;
  group.host_ranks = static_cast<std::int32_t>(std::ranges::count(places, here, &Placement::host));
  group.checksum =
      world.config().tcp_checksum == "crc32c" ? ATOLL_CHECKSUM_CRC32C : ATOLL_CHECKSUM_NONE;
  group.owns_process = world.config().owns_process;
  group.cut_ns = std::chrono::nanoseconds(world.config().cut_timeout).count();
  group.rdma = world.config().rdma.c_str();
}

const Plugin& choose_backend(const BackendQuery& query) {
  World& world = *query.axis.world;
  std::vector<BackendInfo> found;
  Preferences common;
  try {
    common = probe_all(world, query.device.kind(), found);
  } catch (const Error&) {
    // Without file descriptors no folder can be read. The other ranks wait for this one in
    // keep_common(), and learn there that it can use no backend.
    if (!net::lacks_descriptors()) throw;
  }
  keep_common(query, common, found);
  if (!query.wanted.empty()) {
    std::erase_if(common, [&](const auto& entry) { return entry.first != query.wanted; });
  }
  const auto best = std::ranges::max_element(common, {}, &Preferences::value_type::second);
  if (best == common.end()) {
    if (net::lacks_descriptors()) {
      throw make_error(ErrorCode::io,
                       "rank {}: communicator {}: no file descriptor is left to load a backend; "
                       "raise `ulimit -n` (now {})",
                       world.rank(), query.name, ::sysconf(_SC_OPEN_MAX));
    }
    const std::string wanted = query.wanted.empty() ? "" : " \"" + query.wanted + "\"";
    throw make_error(
        ErrorCode::unsupported,
        "rank {}: communicator {}: no backend{} for {} memory is usable on all ranks ({})",
        world.rank(), query.name, wanted, query.device.name(), reasons(found));
  }
  const auto file = std::find_if(found.begin(), found.end(), [&](const BackendInfo& info) {
    return info.name == best->first && !info.file.empty() && info.unusable.empty();
  });
  return load_plugin(file->file);
}

std::vector<BackendInfo> available_backends(World& world, DeviceKind kind) {
  std::vector<BackendInfo> found;
  probe_all(world, kind, found);
  return found;
}

}  // namespace atoll_v1::atoll
