// Who did what on one communicator, told from the logs of its ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/flight.hpp"

namespace atoll_v1::atoll {

// "all_reduce 42", "all_to_all 42 of all_reduce": a part of one that was called.
std::string name_text(const FlightOperation& operation);
// "all_reduce 42 (1024 x f32, sum)".
std::string call_text(const FlightOperation& operation);
// "rank 3", "ranks 0-2, 5"; `ranks` ascending, not empty.
std::string ranks_text(const std::vector<int>& ranks);
// "0.52 s"
std::string seconds_text(std::int64_t ns);
// Collectives that the backends can run together.
bool same_call(const FlightOperation& a, const FlightOperation& b);

// What one rank has on one communicator. Points into its log.
struct FlightView {
  const FlightLog* log = nullptr;
  const FlightCommunicator* communicator = nullptr;
  std::size_t index = 0;                                         // of communicator in log
  const FlightOperation* last = nullptr;                         // enqueued on this communicator
  const FlightOperation* running = nullptr;                      // on any communicator
  std::map<std::int64_t, const FlightOperation*> collectives{};  // by FlightOperation::collective

  int rank() const { return log->rank; }
};
// `communicator` null: the rank has not opened it.
FlightView view_of(const FlightLog& log, std::string_view id);

// The first collective that is in several logs and not the same in all of them; -1: none.
std::int64_t first_disagreement(const std::vector<FlightView>& views);

struct Story {
  bool disagreed = false;
  std::vector<std::string> sentences;  // those that blame somebody first
};
// About collective number `collective` of the communicator: calls that differ, ranks that have not
// called it, and, if `views` are all there is and there are neither, how far each one is with it.
enum class Views {
  all,
  some
};
Story tell_collective(const std::vector<FlightView>& views, std::int64_t collective,
                      Views completeness);
// "its last operation on this communicator was all_gather 41, complete", and what else it is in.
std::string last_text(const FlightView& view);

}  // namespace atoll_v1::atoll
