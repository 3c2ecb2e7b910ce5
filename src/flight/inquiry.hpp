// Asks the other ranks of a communicator what they were doing when an operation failed here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/flight.hpp"
#include "atoll/world.hpp"
#include "core/store.hpp"

namespace atoll_v1::atoll {

// The operation that failed: one collective, or messages (send and recv) with the given ranks.
struct InquirySubject {
  std::string communicator;      // id of the communicator
  std::vector<int> ranks;        // ranks of the World that receive the question
  std::int64_t collective = -1;  // number of the collective; -1 for send and recv
};

struct InquiryResult {
  bool disagreed = false;  // true when the ranks called different collectives
  std::string text;        // empty when the ranks reported nothing of interest
};

// Asks through the World's store and waits up to 2 s for the answers. Returns nothing when the job
// has failed meanwhile. Ranks that ask about the same collective get the same result.
std::optional<InquiryResult> inquire(World& world, const InquirySubject& subject);

// Explains the answers of all ranks, by rank. Throws Error(bad_data) if the answer of a rank is not
// its flight log.
InquiryResult explain_answers(const std::vector<store::Answered>& answers, InquirySubject subject);

// Name of the question that inquire() asks.
inline constexpr std::string_view inquiry_question = "inquiry";
// Returns this rank's answer: the part of its log that the question is about, as JSON.
std::string answer_inquiry(FlightLog log, std::string_view detail);

}  // namespace atoll_v1::atoll
