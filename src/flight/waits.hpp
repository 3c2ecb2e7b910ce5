// Finds the ranks for which all others wait, even if these ranks and the rank that asks share no
// communicator.
#pragma once

#include <string>
#include <vector>

#include "core/store.hpp"
#include "flight/inquiry.hpp"

namespace atoll_v1::atoll {

// The answer of one rank to an inquiry, or the reason why there is none.
struct RankState {
  store::Answered::How how = store::Answered::How::silent;
  const FlightLog* log = nullptr;  // null unless the rank answered
};

// Returns what ranks are said to be, after "rank 3" or, for `ranks` > 1, after "ranks 3, 5".
std::string silence_text(std::size_t ranks);
std::string departure_text(std::size_t ranks);

// Follows the waits of the ranks from the operation of the subject on: an operation waits for ranks
// that have not called it or whose streams have not reached it, and such a rank may wait in an
// operation of another communicator. Returns sentences that name the ranks at the ends of these
// chains, or ranks that wait for each other. Omits the ranks for which the subject itself waits
// directly. `states` holds the state of each rank of the World. The work grows linearly with the
// number of ranks in the answers.
std::vector<std::string> tell_waits(const std::vector<RankState>& states,
                                    const InquirySubject& subject);

}  // namespace atoll_v1::atoll
