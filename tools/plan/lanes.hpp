// Seconds of a step by kind of work and by stream (lane), of a predicted step and of a trace that
// atoll-train wrote, so that both can be compared line by line.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "atoll/trace.hpp"

namespace plan {

// Means over ranks and steps. `gather`, `reduce` and `replicate` are the times in which a
// collective runs on the stream of that name. They include the exposed times.
struct LaneTimes {
  double forward = 0, backward = 0, other = 0;  // seconds of work on the compute stream
  double exposed_gather = 0, exposed_reduce = 0, exposed_replicate = 0;
  double gather = 0, reduce = 0, replicate = 0;
};

LaneTimes lanes_of(std::span<const atoll::TraceRecord> step);
// Reads a Chrome trace of atoll-train --trace. Throws Error(io), and Error(bad_data) for a file
// that is no such trace or has no whole step.
LaneTimes read_lanes(const std::filesystem::path& trace);

std::string to_text(const LaneTimes& expected, const LaneTimes& measured);

}  // namespace plan
