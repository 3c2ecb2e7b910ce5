// Explains what the ranks of one communicator did, from their logs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/flight.hpp"

namespace atoll_v1::atoll {

// Returns text such as "all_reduce 42", or "all_to_all 42 of all_reduce" for a part of a
// collective.
std::string name_text(const FlightOperation& operation);
// Returns text such as "all_reduce 42 (1024 x f32, sum)".
std::string call_text(const FlightOperation& operation);
// Returns text such as "rank 3" or "ranks 0-2, 5". `ranks` must be ascending and not empty.
std::string ranks_text(const std::vector<int>& ranks);
// A call and the ranks that made it, in ascending order.
struct CallOfRanks {
  FlightOperation operation;
  std::vector<int> ranks;
};
// "ranks 1, 2 called A, rank 3 called B where rank 0 called C", for at least two calls. Sorts the
// calls, so that the most frequent one, C, is the first.
std::string disagreement_text(std::vector<CallOfRanks>& calls);
// True when the two collectives match, so that backends can run them together.
bool same_call(const FlightOperation& a, const FlightOperation& b);

// The operations of one rank on one communicator. Points into the rank's log.
struct FlightView {
  const FlightLog* log = nullptr;
  const FlightCommunicator* communicator = nullptr;
  std::size_t index = 0;                     // index of the communicator in the log
  const FlightOperation* last = nullptr;     // last call of the rank on the communicator
  const FlightOperation* running = nullptr;  // operation in progress, on any communicator
  std::map<std::int64_t, const FlightOperation*> collectives{};  // key: collective number

  int rank() const { return log->rank; }
};
// `communicator` is null in the result when the rank has not opened it.
FlightView view_of(const FlightLog& log, std::string_view id);

// The number of the first collective that differs between logs; -1 when there is none.
std::int64_t first_disagreement(const std::vector<FlightView>& views);

struct Story {
  bool disagreed = false;
  std::vector<std::string> sentences;  // sentences that name a culprit come first
};
// Whether the views cover all ranks that may explain a failure. A rank that is missing explains why
// the others wait, so their progress is then not described.
enum class Views {
  all,
  some
};
// Explains collective number `collective` of the communicator: calls that differ, and ranks that
// have not called it. If there are none and the views are complete, describes how far each rank is.
Story tell_collective(const std::vector<FlightView>& views, std::int64_t collective,
                      Views completeness);
// Returns text such as "its last operation on this communicator was all_gather 41, complete", and
// the operation that the rank is executing on another communicator, if any.
std::string last_text(const FlightView& view);

}  // namespace atoll_v1::atoll
