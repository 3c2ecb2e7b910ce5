// The implementation of Communicator: its backend group, and the groups for collectives in two
// levels.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "comm/backend_communicator.hpp"
#include "comm/two_level.hpp"

namespace atoll_v1::atoll {

struct Communicator::Impl {
  // The handles of a communicator, which with_timeout() makes, share this object: its destructor
  // waits until the operations of all of them are complete.
  struct Handles {
    std::shared_ptr<BackendCommunicator> group, tags;
    Handles(std::shared_ptr<BackendCommunicator> group_, std::shared_ptr<BackendCommunicator> tags_)
        : group(std::move(group_)), tags(std::move(tags_)) {}
    Handles(const Handles&) = delete;
    Handles& operator=(const Handles&) = delete;
    ~Handles();
  };

  std::shared_ptr<TwoLevel> two_level;  // groups inside and across hosts; null if never used
  // Backend group, which operations in flight also own. It is destroyed before two_level.
  std::shared_ptr<BackendCommunicator> group;
  std::shared_ptr<BackendCommunicator> tags;  // for sends and receives with tags; null without tags
  std::chrono::milliseconds timeout{-1};      // time limit of an operation; -1: that of the group
  std::shared_ptr<Handles> handles;           // the first member to be destroyed
};

}  // namespace atoll_v1::atoll
