// The flight recorder: what each rank did last, and who did what when a job hung or failed.
//
// Every rank keeps its last flight_capacity operations, whatever communicator they are on. With
// Config::flight (ATOLL_FLIGHT) a rank writes them to PREFIX.RANK.json when the job fails and at
// every SIGUSR1, also while its collectives hang. SIGUSR1 is left alone where the program has a
// handler of its own when its first communicator opens. Each file replaces the one before at once.
//
// File format, version 1: UTF-8 JSON, one object.
//
//   atoll_flight    1, the version; a reader refuses another one
//   rank, size      of the World
//   host, pid       where the rank runs
//   reason          why it was written: "failure", "signal" or "call"
//   failure         why the job failed; "" if it has not
//   written_ns      when, in ns since 1970 (UTC)
//   monotonic_ns    the same moment on the host's steady clock
//   communicators   objects, in the order of opening:
//     id            the same on all its ranks, different between communicators
//     name, backend
//     rank          of this process in it
//     ranks         the ranks of the World, by rank in it
//     closed        true once it is gone on this rank
//     enqueued, completed   operations so far, and of them those that are complete
//     collectives_enqueued, collectives_completed   the same without send and recv
//   operations      objects, the oldest first:
//     number        of this process, over all communicators, from 0
//     communicator  index into `communicators`
//     kind          "all_reduce" ..., as in plugin.h
//     part_of       the kind that was called, where the library builds that collective of several
//                   operations because the backend lacks it; "" or absent: this one was called
//     sequence      of all operations of the communicator, from 0: the number in messages of errors
//     collective    of its collectives alone, from 0; -1 for send and recv. Ranks that agree have
//                   the same collective at the same number
//     dtype, op     "f32" ..., "sum" ...; op is "" where nothing is reduced
//     count, bytes  elements as plugin.h counts them for the kind; bytes = count * size of dtype
//     peer          root, or peer of send and recv, a rank of the communicator; -1: none
//     state         "enqueued", "started", "completed" or "failed"
//     enqueued_ns, started_ns, finished_ns   on the steady clock; 0: not yet. Of a backend of CUDA
//                   memory, finished is when it was launched
//     error         of a failed one, else ""
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/world.hpp"

namespace atoll_v1::atoll {

inline constexpr std::size_t flight_capacity = 1024;
// Larger files, and files with more or longer entries, are refused.
inline constexpr std::size_t max_flight_bytes = std::size_t{16} << 20;
inline constexpr std::size_t max_flight_operations = 8 * flight_capacity;
inline constexpr std::size_t max_flight_communicators = 1024;
inline constexpr std::size_t max_flight_ranks = std::size_t{1} << 20;
inline constexpr std::size_t max_flight_text = 16384;

enum class FlightState {
  enqueued,
  started,
  completed,
  failed
};
std::string_view name(FlightState state) noexcept;

// The fields of the file; times on the steady clock, in ns.
struct FlightOperation {
  std::uint64_t number = 0;
  std::size_t communicator = 0;
  std::string kind;
  std::string part_of;
  std::uint64_t sequence = 0;
  std::int64_t collective = -1;
  std::string dtype;
  std::string op;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  int peer = -1;
  FlightState state = FlightState::enqueued;
  std::int64_t enqueued_ns = 0;
  std::int64_t started_ns = 0;
  std::int64_t finished_ns = 0;
  std::string error;
};

struct FlightCommunicator {
  std::string id;
  std::string name;
  std::string backend;
  int rank = 0;
  std::vector<int> ranks;
  bool closed = false;
  std::uint64_t enqueued = 0;
  std::uint64_t completed = 0;
  std::uint64_t collectives_enqueued = 0;
  std::uint64_t collectives_completed = 0;
};

struct FlightLog {
  int rank = 0;
  int size = 1;
  std::string host;
  int pid = 0;
  std::string reason;
  std::string failure;
  std::int64_t written_ns = 0;
  std::int64_t monotonic_ns = 0;
  std::vector<FlightCommunicator> communicators;
  std::vector<FlightOperation> operations;
};

// What this rank has recorded by now; empty before its first communicator. Any thread may call.
FlightLog flight_log(World& world);
// Writes it to config().flight, now. Throws Error(invalid_argument) when that is empty and
// Error(io).
void write_flight(World& world);

// `text` is a file's content; `file` names it in errors. Throws Error(bad_data) with file and byte
// offset for anything that is not a flight file of version 1 within the bounds above.
FlightLog parse_flight(std::string_view text, std::string_view file);
std::string to_json(const FlightLog& log);
// Throws Error(io) too.
FlightLog read_flight(const std::filesystem::path& file);

// Who did what, from the logs of some or all ranks of one job, as lines of text: the failure, the
// ranks without a log, and for each communicator the last collective that all are through with, who
// is behind or in which operation, and calls that do not agree side by side. Throws
// Error(mismatch) for logs of different jobs, Error(invalid_argument) for none.
std::string tell_flight(std::span<const FlightLog> logs);
// Reads the files first.
std::string tell_flight(std::span<const std::filesystem::path> files);

}  // namespace atoll_v1::atoll
