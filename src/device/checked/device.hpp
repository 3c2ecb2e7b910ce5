// The checked device: with ATOLL_CHECK=lifetimes it wraps another device and checks all uses of its
// memory.
#pragma once

#include <optional>

#include "atoll/device.hpp"

namespace atoll_v1::atoll {

// Wraps `device` in a checker (lifetimes.hpp); returns a device that is already checked unchanged.
// New memory, and memory at the end of its lifetime, is filled with NaN, so that undeclared uses
// show up in results. Streams that wait for each other must all come from the returned device.
// Messages name `rank`, the rank of this process, if it is given.
Device checked_device(const Device& device, std::optional<int> rank = {});

// For tests: returns whether `stream` of a checked device is already ordered after `event`, so that
// it need not wait for the event.
bool is_behind(const StreamBackend& stream, const EventBackend& event);
// For tests: returns whether the event `later` of a checked device is ordered after `event`.
bool is_behind(const EventBackend& later, const EventBackend& event);

}  // namespace atoll_v1::atoll
