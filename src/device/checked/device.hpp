// A device that checks how its memory is used: what ATOLL_CHECK=lifetimes puts around another one.
#pragma once

#include <string_view>

#include "atoll/device.hpp"

namespace atoll_v1::atoll {

// The same device, under a checker (lifetimes.hpp). Fresh memory, and memory whose lifetime has
// ended, is filled with NaN, so that a use that nobody told shows in the numbers. All streams whose
// work meets must come from the device that is returned; a checked device is returned as it is.
Device checked_device(const Device& device);

// checked_device() where `check` (of a Config) asks for it, else `device`.
Device checked_device(const Device& device, std::string_view check);

// For tests: `stream`, of a checked device, already comes behind all that the event stands for, so
// that to wait for it adds nothing.
bool is_behind(const StreamBackend& stream, const EventBackend& event);
// The same of an event in place of the stream.
bool is_behind(const EventBackend& later, const EventBackend& event);

}  // namespace atoll_v1::atoll
