// Matches the devices of several views by keys, the strongest first: bus id, UUID, index, name. A
// key matches only if it is unique in both views. A device that matches no other is a new device if
// its keys prove this; otherwise GPUs that cannot be matched are an error.
#include "inspect/views/views.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <type_traits>

#include "atoll/error.hpp"

namespace atoll_v1::atoll {
namespace {

template <class Device>
using Sights = std::vector<Sight<Device>>;
template <class Device>
using Groups = std::vector<DeviceGroup<Device>>;

// States whether devices with different bus ids may match. They may be the same device, because a
// virtual machine renumbers its PCI bus.
enum class OtherBusids {
  accept,
  refuse
};

template <class Device>
std::string busid_of(const Device& device) {
  return device.busid;
}

// Returns the part of a device's id after the host: "gpu0" for "HOST/gpu0".
template <class Device>
std::string rest_of(const Device& device) {
  const std::string& id = device.id;
  return id.starts_with(device.host + '/') ? id.substr(device.host.size() + 1) : id;
}

std::string index_of(const TopologyGpu& gpu) {
  return gpu.index < 0 ? "" : std::to_string(gpu.index);
}

// Returns the UUID of a GPU; "" for a UUID of zeros, which anonymised files contain.
std::string uuid_of(const TopologyGpu& gpu) {
  const std::size_t begin = gpu.uuid.starts_with("GPU-") ? 4 : 0;
  const bool is_real = gpu.uuid.find_first_not_of("0-", begin) != std::string::npos;
  return is_real ? gpu.uuid : "";
}

// Returns the value of a key for a group: the first one among the group's devices that is not
// empty.
template <class Device, class Key>
std::string key_of(const DeviceGroup<Device>& group, const Key& key) {
  for (const Sight<Device>& sight : group.sights)
    if (std::string text = key(*sight.device); !text.empty()) return text;
  return "";
}

class DeviceMatcher {
 public:
  DeviceMatcher(std::string_view host, const std::vector<Topology>& views,
                const std::vector<std::string>& origins)
      : host_(host), views_(views), origins_(origins) {
    matched_.ids.resize(views.size());
  }

  MatchedDevices match() {
    for (view_ = 0; view_ < views_.size(); ++view_) {
      match_gpus();
      match_nics();
    }
    return std::move(matched_);
  }

 private:
  template <class Device>
  Sights<Device> sights_of(const std::vector<Device>& devices) const {
    Sights<Device> sights;
    for (const Device& device : devices) sights.push_back({view_, &device});
    return sights;
  }

  template <class Device>
  void join(DeviceGroup<Device>& group, const Sight<Device>& sight) {
    group.sights.push_back(sight);
    matched_.ids[view_].emplace(sight.device->id, group.id);
  }

  // Adds a device as a new group. If a device of another view has the same name, the new group gets
  // another name.
  template <class Device>
  void add_group(Groups<Device>& groups, const Sight<Device>& sight) {
    const std::string rest = rest_of(*sight.device);
    std::string name = rest;
    for (std::size_t number = groups.size(); !names_.insert(name).second; ++number)
      name = std::is_same_v<Device, TopologyGpu> ? fmt::format("gpu{}", number)
                                                 : fmt::format("{}@{}", rest, number);
    groups.push_back({.id = fmt::format("{}/{}", host_, name), .sights = {}});
    join(groups.back(), sight);
  }

  // Adds each device in `left` to the group with the same key, and removes the device from `left`.
  // Does nothing for keys that several groups or devices have.
  template <class Device, class Key>
  void join_by(const Key& key, OtherBusids others, Groups<Device>& groups, Sights<Device>& left) {
    std::map<std::string, std::vector<std::size_t>> of_groups, of_left;
    for (std::size_t i = 0; i < groups.size(); ++i)
      if (groups[i].sights.back().view != view_) of_groups[key_of(groups[i], key)].push_back(i);
    for (std::size_t i = 0; i < left.size(); ++i) of_left[key(*left[i].device)].push_back(i);
    std::vector<bool> found(left.size());
    for (const auto& [text, members] : of_left) {
      const auto at = of_groups.find(text);
      if (text.empty() || members.size() > 1 || at == of_groups.end() || at->second.size() > 1)
        continue;
      DeviceGroup<Device>& group = groups[at->second.front()];
      const Sight<Device>& sight = left[members.front()];
      const std::string busid = key_of(group, busid_of<Device>);
      if (others == OtherBusids::refuse && !busid.empty() && !sight.device->busid.empty() &&
          busid != sight.device->busid)
        continue;
      join(group, sight);
      found[members.front()] = true;
    }
    std::size_t at = 0;
    std::erase_if(left, [&](const auto&) { return found[at++]; });
  }

  void match_gpus() {
    Groups<TopologyGpu>& groups = matched_.gpus;
    Sights<TopologyGpu> left = sights_of(views_[view_].gpus);
    const std::size_t before = groups.size(), shown = left.size();
    join_by(busid_of<TopologyGpu>, OtherBusids::accept, groups, left);
    join_by(uuid_of, OtherBusids::accept, groups, left);
    join_by(index_of, OtherBusids::refuse, groups, left);
    if (before > 0 && shown == before && left.size() == shown) join_in_order(left);
    const bool is_stranger = before > 0 && left.size() == shown;
    if (!left.empty() &&
        (is_stranger || !(tells_apart(busid_of<TopologyGpu>, left) || tells_apart(index_of, left))))
      throw Error(ErrorCode::bad_data,
                  fmt::format("{}: the GPUs cannot be matched with the GPUs of {}: neither bus ids "
                              "nor UUIDs nor indices identify them",
                              origins_[view_], origins_[groups.front().sights.front().view]));
    for (const Sight<TopologyGpu>& sight : left) add_group(groups, sight);
  }

  // True if every device in `left` and every unmatched group has a value of the key. Different
  // values then prove that the devices are different.
  template <class Key>
  bool tells_apart(const Key& key, const Sights<TopologyGpu>& left) const {
    return std::ranges::none_of(left,
                                [&](const auto& sight) { return key(*sight.device).empty(); }) &&
           std::ranges::all_of(matched_.gpus, [&](const auto& group) {
             return group.sights.back().view == view_ || !key_of(group, key).empty();
           });
  }

  // If one view has only bus ids of GPUs and the other view has only indices, matches the GPUs in
  // order, because NVML assigns indices in the order of bus ids.
  void join_in_order(Sights<TopologyGpu>& left) {
    using Place = std::pair<std::string, int>;
    std::vector<std::pair<Place, std::size_t>> of_groups, of_left;
    for (const auto& group : matched_.gpus) {
      const std::string number = key_of(group, index_of);
      of_groups.push_back(
          {{key_of(group, busid_of<TopologyGpu>), number.empty() ? -1 : std::stoi(number)},
           of_groups.size()});
    }
    for (const auto& sight : left)
      of_left.push_back({{sight.device->busid, sight.device->index}, of_left.size()});
    // True if all places have a bus id and no index (`busids`), or an index and no bus id.
    const auto have_only = [](bool busids, const auto& places) {
      return std::ranges::all_of(places, [&](const auto& place) {
        return place.first.first.empty() != busids && (place.first.second < 0) == busids;
      });
    };
    if (!(have_only(true, of_groups) && have_only(false, of_left)) &&
        !(have_only(false, of_groups) && have_only(true, of_left)))
      return;
    std::ranges::sort(of_groups);
    std::ranges::sort(of_left);
    for (std::size_t i = 0; i < left.size(); ++i)
      join(matched_.gpus[of_groups[i].second], left[of_left[i].second]);
    left.clear();
  }

  // Tries several keys to match NICs, because both ports of an adapter may have the same bus id,
  // and a container may rename NICs.
  void match_nics() {
    Groups<TopologyNic>& groups = matched_.nics;
    Sights<TopologyNic> left = sights_of(views_[view_].nics);
    const auto both = [&](const TopologyNic& nic) {
      return nic.busid.empty() ? "" : nic.busid + '/' + rest_of(nic);
    };
    join_by(both, OtherBusids::refuse, groups, left);
    join_by(rest_of<TopologyNic>, OtherBusids::refuse, groups, left);
    join_by(busid_of<TopologyNic>, OtherBusids::accept, groups, left);
    join_by(rest_of<TopologyNic>, OtherBusids::accept, groups, left);
    for (const Sight<TopologyNic>& sight : left) add_group(groups, sight);
  }

  std::string_view host_;
  const std::vector<Topology>& views_;
  const std::vector<std::string>& origins_;
  std::size_t view_ = 0;
  std::set<std::string> names_;
  MatchedDevices matched_;
};

}  // namespace

MatchedDevices match_devices(std::string_view host, const std::vector<Topology>& views,
                             const std::vector<std::string>& origins) {
  return DeviceMatcher(host, views, origins).match();
}

}  // namespace atoll_v1::atoll
