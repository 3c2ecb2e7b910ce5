// The implementation of Communicator: its backend group, and the groups for collectives in two
// levels.
#pragma once

#include "comm/backend_group.hpp"
#include "comm/two_level.hpp"

namespace atoll_v1::atoll {

struct Communicator::Impl {
  std::unique_ptr<TwoLevel> two_level;  // groups inside and across hosts; null if never used
  // Backend group, which operations in flight also own. It is destroyed before two_level.
  std::shared_ptr<BackendGroup> group;
};

}  // namespace atoll_v1::atoll
