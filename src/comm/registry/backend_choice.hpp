// Chooses the backend of a communicator: the best one that every rank can use.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/communicator.hpp"
#include "comm/registry/registry.hpp"

namespace atoll_v1::atoll {

// Returns the value of `atoll_memory` in plugin.h for a kind of device.
constexpr std::int32_t memory_of(DeviceKind kind) { return static_cast<std::int32_t>(kind); }

// Describes a group of ranks to plugins in the C structs of plugin.h, and owns the memory to which
// these structs point.
struct GroupDescription {
  std::string id, name;
  std::string token;
  std::string tuning;
  std::string links;               // model of the links of a simulated device
  std::vector<std::string> rails;  // rail addresses, one entry per rank of the axis
  std::vector<atoll_placement> placements;
  std::vector<const atoll_placement*> pointers;
  atoll_group group{};

  // `device` is the CUDA ordinal of this rank's GPU, or -1.
  GroupDescription(const World& world, const Axis& axis, std::string id_, std::string name_,
                   DeviceKind kind, std::string tuning_ = {}, int device = -1);
  GroupDescription(const GroupDescription&) = delete;
  GroupDescription& operator=(const GroupDescription&) = delete;
};

// Describes the communicator for which a backend is to be chosen.
struct BackendQuery {
  const Axis& axis;
  const std::string& id;
  const std::string& name;
  const Device& device;
  const std::string& wanted;  // name of the only backend to consider; empty for any
};

// Returns the texts that the ranks of the axis pass as `mine`, in axis order: one message to the
// store and one back. `key` is unique to this call. Throws Error(timeout) with `call`, a text that
// says what the ranks must do, and the ranks that did not come.
std::vector<std::string> exchange_on_axis(const Axis& axis, const std::string& key,
                                          std::string_view call, const std::string& mine,
                                          std::chrono::milliseconds timeout);

// Chooses the backend for a communicator. Collective over the axis. Throws Error(unsupported) with
// the reason why each backend is unusable.
const Plugin& choose_backend(const BackendQuery& query);

}  // namespace atoll_v1::atoll
