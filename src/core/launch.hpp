// How this process was started: rank, size, and how ranks learn where rank 0 serves the store. One
// file per launcher, each with one function that looks at the environment and gives nothing when
// the process was not started that way.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/config.hpp"
#include "core/socket.hpp"

namespace atoll_v1::atoll::launch {

// Where the store is. As text: "host id|address,address|port|token", which every launcher can carry
// (no white space, no '=').
struct Endpoint {
  std::string host_id;                 // of rank 0; "": unknown
  std::vector<std::string> addresses;  // numeric, or a host name that was given by hand
  int port = 0;
  std::string token;
};
std::string to_text(const Endpoint& endpoint);
Endpoint endpoint_from_text(std::string_view text);

// What a launcher offers to pass the endpoint from rank 0 to the others. Lives as long as World.
class Board {
 public:
  virtual ~Board() = default;
  virtual void publish(const std::string& text, net::Clock::time_point deadline) = 0;  // rank 0
  virtual std::string look_up(net::Clock::time_point deadline) = 0;                    // others
};

struct Job {
  std::string launcher;
  int rank = 0;
  int size = 1;
  // With more than one rank, one of these two.
  std::optional<Endpoint> agreed;  // known to all ranks beforehand; rank 0 listens there
  std::unique_ptr<Board> board;
};

// The first that applies, in this order.
Job find(const Config& config);

std::optional<Job> find_explicit(const Config& config);
std::optional<Job> find_pmix(const Config& config);  // Open MPI's mpirun, srun --mpi=pmix
std::optional<Job> find_pmi(const Config& config);   // MPICH's Hydra, srun --mpi=pmi2
std::optional<Job> find_torchrun(const Config& config);
std::optional<Job> find_slurm(const Config& config);  // srun without PMI or PMIx

// For those files:

std::optional<std::string> variable(const char* name);
// Error(invalid_argument) for a value that is not a number or less than `least`.
std::optional<int> number(const char* name, int least);
// ATOLL_ADDR and ATOLL_TOKEN, where both are set: better than any board.
std::optional<Endpoint> configured_endpoint(const Config& config);
// A new name for what rank 0 publishes, since a process can have several Worlds, one after another;
// equal on all ranks, because making a World is collective.
std::string next_key();

}  // namespace atoll_v1::atoll::launch
