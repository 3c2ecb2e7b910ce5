// All settings of the library. Each setting has a default, which a file, then an environment
// variable (ATOLL_*), then a flag of the program can override.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// A World refuses values that set() would refuse. The following settings must be equal on all
// ranks; otherwise every rank throws Error(mismatch): `timeout`, `check` and `failure_scope` when
// the job opens; `backend`, `algorithm`, the content of the file `tuning`, `deterministic` and
// `tcp_checksum` when a communicator opens; `islands` when a mesh is planned. Every other setting
// may differ.
struct ATOLL_API Config {
  // Identity of this process, for jobs without a launcher. -1 and "" mean that the launcher
  // decides.
  int rank = -1;
  int size = -1;
  int local_rank = -1;
  // "host:port" at which rank 0 serves the rendezvous store. On rank 0, port 0 means any free port,
  // which rank 0 logs.
  std::string addr;
  std::string token;  // secret shared by all ranks of the job
  // The process that serves the store. "" or "rank0": rank 0 does. "external": the program
  // atoll-store does, at `addr`.
  // Equal on all ranks.
  std::string store;
  int port = 0;  // port of the store under torchrun; 0 means MASTER_PORT + 1
  // Comma-separated network interfaces of this rank; each is one rail, and all carry the data of
  // collectives. The first also carries control traffic. "" means the interface of the default
  // route.
  std::string interface;
  // Ranks on one machine with different values are treated as if they ran on different hosts, so
  // that multi-host jobs can be tested on one machine.
  std::string host_id;

  std::chrono::seconds rendezvous_timeout{60};  // time limit for all ranks to join the job
  std::chrono::seconds timeout{600};            // time limit of one collective; equal on all ranks
  // Time without any answer from another host after which the network between two hosts counts as
  // cut. A rank that is slow or stopped is not a cut, because its host still answers.
  std::chrono::seconds cut_timeout{10};
  // With `failure_scope` "communicator", a rank whose process gives no sign of life for this time,
  // for example because it is stopped, counts as lost; 0: never. The setting of rank 0 counts.
  std::chrono::seconds heartbeat{10};
  // Time limit for a rank to wait until the other ranks have read or written their files, such as
  // the shards of a checkpoint.
  std::chrono::seconds file_timeout{3600};

  std::string backend;  // name of the backend; "" chooses the best that works on every rank
  // Colon-separated directories, searched before the installed backends. A World logs a warning for
  // a directory that cannot be read.
  std::string plugin_path;
  std::string algorithm;  // such as "all_reduce:ring"; "" lets the backend choose algorithms
  std::string tuning;     // file with measured algorithm choices; `algorithm` overrides it
  // What ends when a collective fails or a rank is lost. "" or "job": the job, on all ranks.
  // "communicator": the communicator of the collective, or those that contain the lost rank; the
  // job goes on, unless rank 0 was lost. Equal on all ranks.
  std::string failure_scope;
  // 1 lets a World act on the whole process. A program whose only purpose is the job sets it. Then
  // std::terminate fails the job, the process ends 5 s after its launcher, SIGUSR1 writes the
  // flight file, `stack_signal` records stacks, the World sets environment variables for NCCL, and
  // rank 0 raises its soft limit of open file descriptors (RLIMIT_NOFILE) to the hard limit.
  // 0: a World changes nothing outside itself.
  int owns_process = 0;
  // When the launcher of this process (mpirun, slurmstepd, torchrun, ...) has ended, the rank fails
  // the job; with `owns_process` 1 its process ends as well. "" or "end": watch the launcher.
  // "parent": without a launcher, watch the parent process. "ignore": watch nothing.
  std::string parent;
  // Checksum of the data that the host backend sends over TCP. "" or "off": none. "crc32c": data
  // that arrives corrupted is an error.
  std::string tcp_checksum;
  // Settings of the verbs backend as words NAME=VALUE separated by spaces, for example
  // "devices=mlx5_0:1,mlx5_1 gid=3" (plugins/verbs/README.md).
  std::string rdma;
  // 1 adds floating-point numbers in one order for every backend, algorithm and element count. The
  // order depends on the mesh only (communicator.hpp).
  int deterministic = 0;
  // Prefix of the flight recorder's PREFIX.RANK.json files; "" writes none. A World logs a warning
  // if the directory cannot be written.
  std::string flight;
  // When the job fails, the flight recorder sends this signal to threads of this rank, which then
  // record their stacks for the flight file; 0: no stacks. If the program handles or ignores the
  // signal, it keeps its setting, and the flight file has no stacks.
  int stack_signal = 42;
  int islands = 0;  // number of islands to emulate; 0 uses the islands of the topology
  int threads = 0;  // compute threads of this rank; 0 divides the host's cores among its ranks
  // "lifetimes" reports races on device memory; "" checks nothing. Equal on all ranks.
  std::string check;
  std::string log = "info";  // lowest level to log: trace, debug, info, warn, error or off

  // Reads the file named by ATOLL_CONFIG (lines `name = value`; `#` at the start of a line or after
  // white space begins a comment), then the environment. An unknown name gives a warning, which
  // suggests a known name if it is similar. A malformed value throws Error(invalid_argument) with
  // the name of the variable.
  static Config from_env();

  // Sets one entry by its variable ("ATOLL_TIMEOUT") or by its name in a file ("timeout"). Throws
  // Error(invalid_argument) for an unknown name or a malformed value.
  void set(std::string_view name, std::string_view value);
};

struct ConfigEntry {
  std::string_view variable;  // environment variable, such as "ATOLL_TIMEOUT"
  std::string_view unit;      // unit or form of the value, such as "seconds" or "path"; "" if none
  std::string_view meaning;
};

// Describes every variable that from_env() reads, in the order of the struct.
ATOLL_API std::span<const ConfigEntry> config_entries() noexcept;

// Returns one line per entry with the variable, its value in `config` and its meaning, as
// `atoll-topo --env` prints them.
ATOLL_API std::string describe(const Config& config);

}  // namespace atoll_v1::atoll
