// Fuzzes the reader of flight files: reads a log, writes it, reads the written text again, and
// prints a report on the log together with the log of another rank.
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/flight.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  atoll::FlightLog log;
  try {
    log = atoll::parse_flight({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const atoll::Error&) {
    return 0;
  }
  // A log that is accepted must stay the same when it is written and read again, and the report on
  // it must not be empty.
  const std::string text = atoll::to_json(log);
  if (text.size() <= atoll::max_flight_bytes &&
      atoll::to_json(atoll::parse_flight(text, "input")) != text) {
    std::abort();
  }
  std::vector<atoll::FlightLog> logs = {log};
  if (log.size > 1) {
    logs.push_back(log);
    logs.back().rank = log.rank == 0 ? 1 : 0;
  }
  if (atoll::explain_flight(logs).empty()) std::abort();
  return 0;
}
