// The inside of a Communicator: its backend group, and the two levels that core may build on it.
#pragma once

#include "comm/backend_group.hpp"
#include "comm/two_level.hpp"

namespace atoll_v1::atoll {

struct Communicator::Impl {
  std::unique_ptr<TwoLevel> two_level;  // null when the backend or the axis leaves no use for it
  std::shared_ptr<BackendGroup> group;  // shared with the operations in flight; closed first
};

}  // namespace atoll_v1::atoll
