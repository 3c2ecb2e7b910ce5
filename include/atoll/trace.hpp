// Records of what ran when on each stream, and their export as a Chrome trace, which Perfetto
// (https://ui.perfetto.dev) and chrome://tracing display.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

enum class Activity {
  all_gather,
  reduce_scatter,
  all_reduce,
  wait,  // time during which a compute stream waits for a collective
  work   // work that is neither a collective nor a wait
};
ATOLL_API std::string_view name(Activity activity) noexcept;
ATOLL_API bool is_collective(Activity activity) noexcept;

// One span of work on a stream. Times are taken on the stream and given on the steady clock of this
// process.
struct TraceRecord {
  Activity activity = Activity::work;
  std::string row{};    // name of the stream that ran the work
  std::string label{};  // purpose, such as a unit or a step
  // A collective begins when this rank is ready to start it, so waiting for peers is included.
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  // Only records of collectives set the following members.
  std::uint64_t bytes = 0;     // bytes of the whole tensor, as after a gather or before a reduction
  std::string axis{};          // name of the axis: "shard", "secondary" or "replicate"
  int ranks = 1;               // number of ranks on the axis
  std::int64_t waited_ns = 0;  // part of the span during which compute waited for the collective
};

struct TraceLog {
  std::vector<TraceRecord> records;  // records in the order of the calls
  std::uint64_t left_out = 0;        // number of oldest records dropped from a full log
};

// Returns the time after `from_ns` (steady clock) during which at least one collective ran.
ATOLL_API std::int64_t communication_ns(
    std::span<const TraceRecord> records,
    std::int64_t from_ns = std::numeric_limits<std::int64_t>::min());

// Bandwidths in GB/s (1e9 B/s), as nccl-tests defines them; 0 if the collective took no time.
struct TraceBandwidth {
  double algorithm = 0;  // bytes of the whole tensor divided by time
  double bus = 0;        // `algorithm` x (n - 1) / n for n ranks, and x 2 for all_reduce
};
ATOLL_API TraceBandwidth bandwidth(const TraceRecord& collective);

// How one rank appears in a trace.
struct TraceProcess {
  int rank = 0;
  std::string host{};
  std::int64_t zero_ns = 0;    // this process's steady clock at time 0 of the trace
  std::uint64_t left_out = 0;  // number of records dropped earlier (TraceLog::left_out)
  std::size_t most_records =
      100'000;  // only the earliest records are exported; a note in the trace counts the others
};

// Converts the records of one rank to trace events: JSON objects separated by commas, with times in
// us. Each stream is a row; of two spans that partly overlap, one moves to an additional row. Bytes
// that are not UTF-8 are replaced.
ATOLL_API std::string chrome_events(const TraceProcess& process,
                                    std::span<const TraceRecord> records);
// Joins the results of chrome_events() on every rank into a complete document.
ATOLL_API std::string chrome_trace(std::span<const std::string> events);

}  // namespace atoll_v1::atoll
