// Finds out how this process was started: its rank, the size of the job, and how ranks learn the
// address of the store on rank 0. Each launcher has one function, which inspects the environment
// and returns nothing if the process was not started by that launcher.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/config.hpp"
#include "core/socket.hpp"

namespace atoll_v1::atoll::launch {

// Address of the store. Its text form is "host id|address,address|port|token", without white space
// or '=', so that every launcher can transport it.
struct Endpoint {
  std::string host_id;                 // host id of rank 0; "" if unknown
  std::vector<std::string> addresses;  // numeric addresses, or the host name in ATOLL_ADDR
  int port = 0;
  std::string token;
};
std::string to_text(const Endpoint& endpoint);
Endpoint endpoint_from_text(std::string_view text);

// Passes the endpoint of the store from rank 0 to the other ranks through the launcher. Lives as
// long as the World.
struct Rendezvous {
  // Only rank 0 calls publish(), and only the other ranks call look_up().
  std::function<void(const std::string& text, net::Clock::time_point deadline)> publish;
  std::function<std::string(net::Clock::time_point deadline)> look_up;
  // Rank 0 calls this function, if there is one, when it cannot publish, so that the other ranks do
  // not wait. It throws nothing.
  std::function<void(std::string_view reason)> withdraw{};
};

struct Job {
  std::string launcher;
  int rank = 0;
  int size = 1;
  // A job with more than one rank has one of these: an endpoint of the store that all ranks know in
  // advance, or a rendezvous through which rank 0 publishes the endpoint.
  std::optional<Endpoint> agreed;  // endpoint of the store, on which rank 0 listens
  std::optional<Rendezvous> rendezvous{};
};

// Returns the job of the first launcher that applies, or a job of one rank.
Job find(const Config& config);

// Makes the job of World::from_exchange(). Throws Error(invalid_argument) for an impossible rank.
Job from_exchange(int rank, int size,
                  std::function<void(const std::string& key, const std::string& value)> put,
                  std::function<std::string(const std::string& key)> get);

// Makes the job of World::from_ranks(). Throws Error(invalid_argument) for an impossible rank.
Job from_broadcast(int rank, int size,
                   const std::function<std::string(const std::string&)>& broadcast);

std::optional<Job> find_pmix(const Config& config);  // for Open MPI's mpirun and srun --mpi=pmix
std::optional<Job> find_pmi(const Config& config);   // for MPICH's Hydra and srun --mpi=pmi2

// The following functions are helpers of the launchers' source files.

std::optional<std::string> variable(const char* name);
// Reads a number from the environment. Throws Error(invalid_argument) if it is malformed or less
// than `least`.
std::optional<int> number(const char* name, int least);
// Returns the store's endpoint from ATOLL_ADDR and ATOLL_TOKEN if both are set. It overrides the
// endpoint from the launcher.
std::optional<Endpoint> configured_endpoint(const Config& config);
// Returns a new name under which rank 0 publishes its endpoint, because a process can create
// several Worlds in sequence. All ranks get equal names, because creating a World is collective.
std::string next_key();

}  // namespace atoll_v1::atoll::launch
