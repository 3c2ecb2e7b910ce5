// Explains what the ranks of one communicator did, from their logs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/flight.hpp"

namespace atoll_v1::atoll {

// Returns text such as "all_reduce 42", or "all_to_all 42 of all_reduce" when the all_to_all is one
// of the operations that make up an all_reduce.
std::string name_text(const FlightOperation& operation);
// Returns text such as "all_reduce 42 (1024 x f32, sum)".
std::string call_text(const FlightOperation& operation);
// Returns a text of the program, such as the name of a communicator or the text of an exception, as
// a flight file holds it: as terminal_safe() returns it, and a long text is cut.
std::string flight_text(std::string_view text);
// Returns text such as "rank 3" or "ranks 0-2, 5". `ranks` must be ascending and not empty.
std::string ranks_text(const std::vector<int>& ranks);
// A call of an operation, and the ranks that made this call, in ascending order.
struct CallOfRanks {
  FlightOperation operation;
  std::vector<int> ranks;
};
// "ranks 1, 2 called A, rank 3 called B where rank 0 called C", for at least two calls. Sorts the
// calls, so that the most frequent one, C, is the first.
std::string disagreement_text(std::vector<CallOfRanks>& calls);
// Returns true when the calls of two ranks match, so that they can be one collective.
bool same_call(const FlightOperation& a, const FlightOperation& b);

// The operations of one rank on one communicator. Points into the rank's log.
struct FlightView {
  const FlightLog* log = nullptr;
  const FlightCommunicator* communicator = nullptr;
  std::size_t index = 0;                     // index of the communicator in the rank's log
  const FlightOperation* last = nullptr;     // last call of the rank on the communicator
  const FlightOperation* running = nullptr;  // operation in progress on any communicator, or null
  std::map<std::int64_t, const FlightOperation*> collectives{};  // keys: collective numbers

  int rank() const { return log->rank; }
};
// Returns one rank's operations on the communicator `id`. In the result, `communicator` is null
// when the rank has not opened that communicator.
FlightView view_of(const FlightLog& log, std::string_view id);

// Returns the number of the first collective that differs between the logs of ranks, or -1 when
// there is none.
std::int64_t first_disagreement(const std::vector<FlightView>& views);

struct Explanation {
  bool disagreed = false;
  std::vector<std::string> sentences;  // explanation; sentences that name a culprit come first
};
// States whether there are logs of all ranks of a communicator. If the log of a rank is missing,
// that explains why the others wait, so their progress is not described.
enum class Views {
  all,
  some
};
// Explains collective number `collective` of a communicator: which ranks called something else, and
// which ranks have not called it. If there are no such ranks, and the logs of all ranks are there,
// describes how far each rank is.
Explanation explain_collective(const std::vector<FlightView>& views, std::int64_t collective,
                               Views completeness);
// Returns text such as "its last operation on this communicator was all_gather 41, complete", and
// the operation that the rank is executing on another communicator, if any.
std::string last_text(const FlightView& view);

}  // namespace atoll_v1::atoll
