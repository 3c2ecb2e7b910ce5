// One step of a Chrome trace, for the page's timeline and its picture of the memory over the step.
#pragma once

#include <nlohmann/json.hpp>

namespace train::page {

// Returns the traced step whose duration is the median, or null if the trace has no whole step:
//   name, us    of the step
//   ranks       how many were traced; at most the first 8 are in the rest
//   rows        [rank, row, name], in the order of the trace, without that of the steps themselves
//   spans       [rank, row, begin, us, name, kind, bytes], with begins relative to the step. Spans
//               too narrow to see are left out. The lowest rank, whose memory the page draws, has
//               all spans since the start of the previous step.
// Times are microseconds. Throws nlohmann::json::exception if the events have another form than
// atoll's.
nlohmann::json timeline_of(const nlohmann::json& trace);

}  // namespace train::page
