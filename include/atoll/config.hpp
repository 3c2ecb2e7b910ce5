// Every setting of the library in one struct, filled from defaults, then a file, then the
// environment (ATOLL_*), then flags of the program. One table declares each variable.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

struct Config {
  // Who this process is, for a start without a launcher; -1 and "" mean: ask the launcher.
  int rank = -1;
  int size = -1;
  int local_rank = -1;
  std::string addr;   // "host:port" of rank 0's store
  std::string token;  // shared secret of the job
  int port = 0;       // port of the store under torchrun; 0: MASTER_PORT + 1
  // Network interfaces of this rank, separated by commas, each of them a rail; "": the default
  // route's. The first has the address for everything but the data of collectives.
  std::string interface;
  // Sets this rank apart from ranks of this host that have another one, as if they were on
  // different hosts, which gives several hosts on one machine; "": as it is.
  std::string host_id;

  std::chrono::seconds rendezvous_timeout{60};  // for all ranks to appear
  std::chrono::seconds timeout{600};            // for one collective

  std::string backend;       // "": the best that probes on every rank
  std::string plugin_path;   // directories, colon separated, searched before the installed ones
  std::string algorithm;     // "all_reduce:two_level,all_gather:ring"; "": the backend chooses
  std::string tuning;        // file of measured choices; `algorithm` goes before it
  int deterministic = 0;     // 1: sums in one order whatever size and placement
  std::string flight;        // prefix of the flight recorders' files, PREFIX.RANK.json; "": none
  int islands = 0;           // emulate this many islands over all ranks; 0: what topology says
  int threads = 0;           // compute threads of this rank; 0: cores of the host / its ranks
  std::string check;         // "lifetimes": a use of memory that no event orders is an error
  std::string log = "info";  // trace, debug, info, warn, error, off

  // Defaults, then the file named by ATOLL_CONFIG (lines `name = value`, `#` comments), then the
  // environment. An unknown ATOLL_* variable or name in the file is warned about with the nearest
  // known one. Throws Error(invalid_argument) that names the variable for a value that does not
  // parse.
  static Config from_env();

  // Sets one entry by its variable name ("ATOLL_TIMEOUT") or its name in a file ("timeout").
  void set(std::string_view name, std::string_view value);
};

struct ConfigEntry {
  std::string_view variable;  // "ATOLL_TIMEOUT"
  std::string_view unit;      // "seconds", "path", "" ...
  std::string_view meaning;
};

// Every variable that from_env() reads, in the order of the struct.
std::span<const ConfigEntry> config_entries() noexcept;

// One line per entry: variable, its value in `config`, its meaning. What `atoll-topo --env` prints.
std::string describe(const Config& config);

}  // namespace atoll_v1::atoll
