#include "comm/registry/backend_choice.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "comm/registry/host_services.hpp"
#include "core/hash.hpp"

namespace atoll_v1::atoll {
namespace {

Axis world_axis(World& world) {
  Axis axis{&world, "world", {}, world.rank()};
  for (int rank = 0; rank < world.size(); ++rank) axis.ranks.push_back(rank);
  return axis;
}

// Name -> preference of every backend that works here; the others go to `unusable` with a reason.
std::map<std::string, int> probe_all(World& world, DeviceKind kind,
                                     std::vector<BackendInfo>& found) {
  const atoll_host services = host_services(world);
  const GroupDescription group(world, world_axis(world), "world", "world", kind);
  std::map<std::string, int> usable;
  for (const auto& file : find_plugins(world.config())) {
    BackendInfo info{file.filename().string(), file.string(), {}, 0};
    try {
      const Plugin& plugin = load_plugin(file);
      info.name = plugin.name;
      info.preference = plugin.table.probe(&services, &group.group);
      if (info.preference <= 0) info.unusable = last_error(plugin, nullptr);
      const bool moves =
          plugin.table.capability(ATOLL_ALL_TO_ALL, ATOLL_F32, ATOLL_SUM, memory_of(kind)) != 0;
      if (info.preference > 0 && !moves) info.unusable = "does not take this kind of memory";
    } catch (const Error& error) {
      info.unusable = error.what();
    }
    if (info.unusable.empty()) usable[info.name] = info.preference;
    found.push_back(std::move(info));
  }
  return usable;
}

std::string encode(const std::map<std::string, int>& usable) {
  std::string text;
  for (const auto& [name, preference] : usable) text += fmt::format("{} {}\n", name, preference);
  return text;
}

std::map<std::string, int> decode(std::string_view text) {
  std::map<std::string, int> usable;
  while (!text.empty()) {
    const std::size_t line = std::min(text.find('\n'), text.size());
    const std::size_t space = text.substr(0, line).rfind(' ');
    if (space != std::string_view::npos) {
      usable[std::string(text.substr(0, space))] =
          std::atoi(std::string(text.substr(space + 1, line - space - 1)).c_str());
    }
    text.remove_prefix(std::min(line + 1, text.size()));
  }
  return usable;
}

// What must be equal on all ranks, in one line of a fixed length.
std::string describe_wishes(const Config& config, std::string_view tuning) {
  return fmt::format("{:016x}\n", fnv1a(tuning) + static_cast<unsigned>(config.deterministic));
}

std::string reasons(const std::vector<BackendInfo>& found) {
  if (found.empty()) return "no backend was found (set ATOLL_PLUGIN_PATH to the folder of them)";
  std::string text;
  for (const auto& info : found) {
    if (!text.empty()) text += "; ";
    text += fmt::format("{}: {}", info.name, info.unusable.empty() ? "usable here" : info.unusable);
  }
  return text;
}

// Drops from `usable` what some other rank of the axis cannot use; a preference becomes the least
// of all ranks'.
void keep_common(const Communicator::Impl& impl, std::string_view tuning,
                 std::map<std::string, int>& usable, std::vector<BackendInfo>& found) {
  if (impl.axis.size() == 1) return;
  World& world = impl.world;
  const auto key = [&](int rank) { return fmt::format("{}/probe/{}", impl.id, rank); };
  const std::string wishes = describe_wishes(world.config(), tuning);
  world.put(key(world.rank()), wishes + encode(usable));
  for (const int rank : impl.axis.ranks) {
    if (rank == world.rank()) continue;
    const std::string text = world.get(key(rank), world.config().rendezvous_timeout);
    if (!text.starts_with(wishes)) {
      throw Error(ErrorCode::mismatch,
                  fmt::format("rank {}: communicator {}: rank {} has other settings of "
                              "ATOLL_ALGORITHM, ATOLL_TUNING or ATOLL_DETERMINISTIC",
                              world.rank(), impl.name, rank));
    }
    const auto theirs = decode(std::string_view(text).substr(wishes.size()));
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

const Plugin& choose_backend(const Communicator::Impl& impl, std::string_view tuning) {
  std::vector<BackendInfo> found;
  auto common = probe_all(impl.world, impl.device.kind(), found);
  keep_common(impl, tuning, common, found);
  if (!impl.wanted_backend.empty()) {
    std::erase_if(common, [&](const auto& entry) { return entry.first != impl.wanted_backend; });
  }
  const auto best =
      std::max_element(common.begin(), common.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (best == common.end()) {
    const std::string wanted =
        impl.wanted_backend.empty() ? "" : " \"" + impl.wanted_backend + "\"";
    throw Error(
        ErrorCode::unsupported,
        fmt::format("rank {}: communicator {}: no common backend{} on {} memory ({})",
                    impl.world.rank(), impl.name, wanted, impl.device.name(), reasons(found)));
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
