// Asks the other ranks of a communicator what they were doing when an operation failed here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/flight.hpp"
#include "atoll/world.hpp"
#include "store/store.hpp"

namespace atoll_v1::atoll {

// The operation that failed: one collective, or messages (send and recv) with the given ranks.
struct InquirySubject {
  std::string communicator;      // id of the communicator
  std::vector<int> ranks;        // ranks of the World that receive the question
  std::int64_t collective = -1;  // number of the collective; -1 for send and recv
};

struct InquiryResult {
  bool disagreed = false;  // true when the ranks called different collectives
  std::string text;        // empty if the answers explain nothing
};

// Asks through the World's store and waits up to 2 s for the answers. Returns nothing if the job
// fails during the wait. Ranks that ask about the same collective get the same result.
std::optional<InquiryResult> inquire(World& world, const InquirySubject& subject);

// The answer of one rank to an inquiry, or the reason why there is none.
struct RankState {
  store::Answered::How how = store::Answered::How::silent;
  const FlightLog* log = nullptr;  // null unless the rank answered
};

// Return the predicate for the subject "rank 3" or, for `ranks` > 1, for "ranks 3, 5".
std::string silence_text(std::size_t ranks);
std::string departure_text(std::size_t ranks);

// Finds the ranks for which all others wait, even if these ranks and the rank that asks share no
// communicator. Starts at the failed operation and follows the waits of the ranks: an operation
// waits for ranks that have not called it or whose streams have not reached it, and such a rank may
// wait in an operation of another communicator. Returns sentences that name the ranks at the ends
// of these chains, or ranks that wait for each other. Omits the ranks for which the failed
// operation waits directly. `states` holds the state of each rank of the World. The work grows
// linearly with the number of ranks in the answers.
std::vector<std::string> explain_waits(const std::vector<RankState>& states,
                                       const InquirySubject& subject);

// Explains the answers of all ranks, by rank. Throws Error(bad_data) if the answer of a rank is not
// its flight log.
InquiryResult explain_answers(const std::vector<store::Answered>& answers, InquirySubject subject);

// Name of the question that inquire() asks.
inline constexpr std::string_view inquiry_question = "inquiry";
// Returns this rank's answer: the part of its log that the question is about, as JSON.
std::string answer_inquiry(FlightLog log, std::string_view detail);

}  // namespace atoll_v1::atoll
