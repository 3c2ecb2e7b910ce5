// Options of atoll-busbw.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/communicator.hpp"
#include "collective.hpp"
#include "report.hpp"

namespace busbw {

enum class MemoryKind {
  registered,  // registered memory from atoll::allocate
  plain        // memory allocated by the device alone
};
constexpr std::string_view name(MemoryKind kind) noexcept {
  return kind == MemoryKind::registered ? "registered" : "plain";
}
// Selects the time that the report shows. The enumerators are the values of option -a.
enum class TimeOf {
  rank_0 = 0,
  average = 1,
  fastest = 2,
  slowest = 3
};
// Selects when operations wait. The enumerators are the values of option -z.
enum class Blocking {
  none = 0,
  barrier = 1,  // wait and barrier after every operation
  wait = 2,     // wait after every operation
  batch = 3     // wait and barrier after every -m operations; barriers are not timed
};
enum class LimitFrom {
  machine,
  given,
  nothing
};

struct Options {
  // Options that select what runs.
  std::vector<Collective> collectives{Collective::all_reduce};
  std::vector<atoll::DType> dtypes{atoll::DType::f32};
  std::vector<Op> ops{Op::sum};
  int root = 0;                 // rank of the root within the axis; -1 means every rank in turn
  std::string axis = "world";   // "world", "shard" or "replicate"
  std::string device = "auto";  // "auto", "cpu" (or "host") or "cuda"; see atoll/rank_device.hpp
  std::string backend;
  atoll::ComputeUnits compute_units = atoll::ComputeUnits::any;
  bool require_gdr = false;
  std::string algorithm;
  MemoryKind memory = MemoryKind::registered;
  // Message sizes in bytes.
  std::uint64_t min_bytes = 32 << 20;
  std::uint64_t max_bytes = 32 << 20;
  std::uint64_t step_bytes = 1 << 20;
  std::uint64_t step_factor = 1;
  int unalign = 0;  // elements by which buffers are misaligned
  // Options that control the measurement.
  int iterations = 20;
  int warmups = 1;
  int batch = 1;
  int cycles = 1;  // how often to repeat all sizes; 0: until interrupted
  int checks = 1;
  TimeOf time_of = TimeOf::average;
  Blocking blocking = Blocking::none;
  int timeout_s = 0;  // time limit of one operation; 0: the library's timeout
  int latency_skip = 0;
  // Options that select what is reported.
  Layout layout;
  LimitFrom limit_from = LimitFrom::machine;
  double limit_busbw = 0;
  std::optional<double> expect;
  std::optional<double> wanted_busbw;  // least average bandwidth, set by NCCL_TESTS_MIN_BW
  int memory_report = 0;
  std::vector<std::string> notes;  // options that were accepted and have no effect
  // Modes that replace the sweep over sizes.
  int pairs = 0;
  std::vector<std::filesystem::path> flight;
  std::vector<std::filesystem::path> tune;  // the file to write, then the curves to read
  // Paths of the output files. An empty path means that the file is not written.
  std::string json, save, plot;
};

// Whether this process prints messages. Only one process of a job does.
enum class Speaks {
  yes,
  no
};

// Returns nothing after printing --help or --version. Throws std::exception whose what() is one
// line.
std::optional<Options> parse_options(int argc, char** argv, Speaks speaks);

}  // namespace busbw
