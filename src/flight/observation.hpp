// What a rank tells an observer: a short text of numbers and names, made only on demand.
#pragma once

#include <string>
#include <string_view>

#include "atoll/observer.hpp"
#include "flight/recorder.hpp"

namespace atoll_v1::atoll {

// Returns the answer of a rank with this log. `bytes` are those of all operations that the rank has
// called.
std::string encode_observation(const FlightLog& log, std::uint64_t bytes);
// Throws Error(bad_data) for anything that is not such an answer.
ObservedRank decode_observation(std::string_view text);

}  // namespace atoll_v1::atoll
