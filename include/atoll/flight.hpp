// The flight recorder keeps the last operations of each rank, so that one can see who did what when
// a job hangs or fails.
//
// Every rank keeps its last flight_capacity operations over all communicators. If Config::flight
// (ATOLL_FLIGHT) is set, a rank writes them to PREFIX.RANK.json when the job or a communicator
// fails and at every SIGUSR1, even while its collectives hang. A program that has its own SIGUSR1
// handler when its first communicator opens keeps that handler. A new file replaces the old one
// atomically.
//
// File format, version 1: UTF-8 JSON, one object. Texts have no control characters: a line break in
// an error or a name is written as \x0a.
//
//   atoll_flight    the version, 1; a reader refuses another one
//   rank, size      rank of the writer in the World, and size of the World
//   host, pid       host name and process id of the writer
//   reason          reason for writing: "failure", "signal" or "call"
//   failure         the newest failure of the job or of a communicator, or "" if there is none
//   step            number that the program passed to mark_step() last; -1 or absent: none
//   written_ns      time of writing, in ns since 1970 (UTC)
//   monotonic_ns    the same moment on the host's steady clock
//   communicators   list of objects, in the order of opening:
//     id            identifier, the same on all ranks of the communicator and unique in the job
//     name, backend
//     ranks         World rank of every member, by its rank in the communicator
//     rank          rank of the writer in the communicator
//     closed        true after the communicator was closed on this rank
//     enqueued, completed   numbers of operations that were called, and that are complete
//     collectives_enqueued, collectives_completed   the same numbers without send and recv
//   operations      list of objects, the oldest first:
//     number        number of the operation in this process, over all communicators, from 0
//     communicator  index into `communicators`
//     kind          "all_reduce" ..., as in plugin.h
//     part_of       kind that the user called, when the library built that collective from several
//                   operations; "" or absent when the user called this operation itself
//     sequence      number among all operations of the communicator, from 0; errors print it too
//     collective    number among the communicator's collectives, from 0; -1 for send and recv. If
//                   ranks made the same calls, a number denotes the same collective on each
//     dtype, op     "f32" ..., "sum" ...; op is "" for operations that do not reduce
//     count, bytes  elements, as plugin.h counts them for the kind; bytes = count * size of dtype
//     peer          root of the collective, or peer of a send or recv, as a rank of the
//                   communicator; -1 when there is none
//     state         "enqueued", "started", "completed" or "failed"
//     enqueued_ns, started_ns, finished_ns   times on the steady clock; 0 when not reached yet. On
//                   a GPU a watchdog polls, so the last two may be a few ms late
//     error         reason of a failed operation, otherwise ""
//   stacks          absent, or list of objects: the call stacks of threads at the moment when the
//                   rank learned of the failure, before waiting operations ended
//                   (Config::stack_signal)
//     thread        id of the thread, as gettid() returns it
//     role          "caller" or "executor" of operations, or "main"
//     frames        "function+0x1c (file)", or "file+0x1f20" where the file exports no name, the
//                   innermost first
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
// Limits for reading: larger files, and files with more or longer entries, are refused.
inline constexpr std::size_t max_flight_bytes = std::size_t{16} << 20;
inline constexpr std::size_t max_flight_operations = 8 * flight_capacity;
inline constexpr std::size_t max_flight_communicators = 1024;
inline constexpr std::size_t max_flight_ranks = std::size_t{1} << 20;
inline constexpr std::size_t max_flight_text = 16384;
inline constexpr std::size_t max_flight_stacks = 32;
inline constexpr std::size_t max_flight_frames = 64;  // maximum number of frames of one stack

enum class FlightState {
  enqueued,
  started,
  completed,
  failed
};
ATOLL_API std::string_view name(FlightState state) noexcept;

// The structs below have the same fields as the flight file. Times are ns on the steady clock.
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

struct FlightStack {
  int thread = 0;
  std::string role;
  std::vector<std::string> frames;
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
  std::int64_t step = -1;
  std::vector<FlightStack> stacks;
};

// Returns the last operations of this rank. The log is empty before the first communicator opens.
// Thread-safe.
ATOLL_API FlightLog flight_log(World& world);
// Records the number of the step that the program begins, for flight files and observers; a
// negative number means none. Costs tens of ns. Thread-safe.
ATOLL_API void mark_step(World& world, std::int64_t step);
// Writes the last operations of this rank to PREFIX.RANK.json. Throws Error(invalid_argument) when
// config().flight is empty, and Error(io) when the file cannot be written.
ATOLL_API void write_flight(World& world);

// Parses the content of a flight file; `file` names the file in errors. Throws Error(bad_data) with
// file and byte offset for anything that is not a flight file of version 1 within the limits above.
ATOLL_API FlightLog parse_flight(std::string_view text, std::string_view file);
ATOLL_API std::string to_json(const FlightLog& log);
// Reads and parses a flight file. Throws the errors of parse_flight(), and Error(io) when the file
// cannot be read.
ATOLL_API FlightLog read_flight(const std::filesystem::path& file);

// Explains the logs of some or all ranks of a job in lines of text: the failure, the ranks without
// a log, and for each communicator the last collective that all ranks have completed, the ranks
// that are behind or in an operation, and calls that differ between ranks. Throws Error(mismatch)
// for logs of different jobs and Error(invalid_argument) when there are no logs.
ATOLL_API std::string explain_flight(std::span<const FlightLog> logs);
ATOLL_API std::string explain_flight(std::span<const std::filesystem::path> files);

}  // namespace atoll_v1::atoll
