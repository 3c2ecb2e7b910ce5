// What ran when: records of collectives, of waiting for them and of compute, as the streams
// themselves saw it, and a Chrome trace made of them, which Perfetto (https://ui.perfetto.dev) and
// chrome://tracing show.
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
  wait,  // of a stream of compute, for a collective
  work   // anything else
};
std::string_view name(Activity activity) noexcept;
bool is_collective(Activity activity) noexcept;

struct TraceRecord {
  Activity activity = Activity::work;
  std::string row{};          // the name of the stream
  std::string label{};        // what for: a unit, a step
  std::int64_t begin_ns = 0;  // steady clock; of a collective: it might start, as far as this rank
  std::int64_t end_ns = 0;    // is concerned. Waiting for its peers lies within
  // Of collectives:
  std::uint64_t bytes = 0;     // of the whole: gathered, or before it is reduced
  std::string axis{};          // of the scheduler: "shard", "inner", "replicate"
  int ranks = 1;               // of the axis
  std::int64_t waited_ns = 0;  // of compute, while this ran
};

struct TraceLog {
  std::vector<TraceRecord> records;  // in the order of calls
  std::uint64_t left_out = 0;        // older ones, dropped because nobody asked for them
};

// Time from `from_ns` on, of the steady clock, in which at least one collective ran.
std::int64_t communication_ns(std::span<const TraceRecord> records,
                              std::int64_t from_ns = std::numeric_limits<std::int64_t>::min());

// GB/s (1e9 B/s) of a collective: its bytes over its time, and what of them crosses each rank's
// link, as nccl-tests has it: (n - 1) / n of the bytes, twice that for all_reduce. 0 where it took
// no time.
struct TraceBandwidth {
  double algorithm = 0;
  double bus = 0;
};
TraceBandwidth bandwidth(const TraceRecord& collective);

// One rank in a trace.
struct TraceProcess {
  int rank = 0;
  std::string host{};
  std::int64_t zero_ns = 0;            // this process' steady clock at time 0 of the trace
  std::uint64_t left_out = 0;          // records that are missing already
  std::size_t most_records = 100'000;  // the first ones by their beginning; a note says the rest
};

// The events of a rank: a row per stream; spans of one row lie beside or inside each other (what
// would cross gets a row of its own). JSON objects with commas between, in us; bytes that are not
// UTF-8 are replaced.
std::string chrome_events(const TraceProcess& process, std::span<const TraceRecord> records);
// The whole document, from what chrome_events() made on every rank.
std::string chrome_trace(std::span<const std::string> events);

}  // namespace atoll_v1::atoll
