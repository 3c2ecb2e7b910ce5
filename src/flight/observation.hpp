// The answer of a rank to an observer: a short text of numbers and names. A rank encodes it only
// when an observer asks.
#pragma once

#include <string>
#include <string_view>

#include "atoll/tooling/observer.hpp"
#include "flight/recorder.hpp"
#include "store/protocol.hpp"

namespace atoll_v1::atoll {

// Returns the answer of a rank with this log. `bytes` is the sum over all operations that the rank
// has called; the answer contains the sum over the operations that have ended.
std::string encode_observation(const FlightLog& log, std::uint64_t bytes);
// Throws Error(bad_data) if `text` is not an answer of encode_observation().
ObservedRank decode_observation(std::string_view text);
// Returns the state of a rank, given its entry in the answer of the store.
ObservedRank observed_rank(const store::Answered& answer);

}  // namespace atoll_v1::atoll
