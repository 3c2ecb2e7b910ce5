// The store of a job outside its ranks, so that the loss of rank 0 ends no job (the program
// atoll-store).
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "atoll/export.hpp"
#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// Serves the store of one job, on a thread. Raises the soft limit of open file descriptors of the
// process (RLIMIT_NOFILE) to the hard limit. The ranks set Config::store to "external",
// Config::addr to address(), Config::token to Options::token and Config::failure_scope to
// "communicator".
class ATOLL_API StoreServer {
 public:
  struct Options {
    std::string address{};                        // "host:port" of this host; port 0: any free port
    std::string token{};                          // secret shared by all ranks of the job
    int ranks = 0;                                // number of ranks of World::epoch() 0
    std::chrono::seconds rendezvous_timeout{60};  // time for all ranks to join the first epoch
    std::chrono::seconds cut_timeout{10};         // silence of a host that counts as a cut network
    std::chrono::seconds heartbeat{10};           // silence after which a rank counts as lost
  };
  // Throws Error(invalid_argument) for a wrong option, and Error(io) if the address is not one of
  // this host or is taken.
  explicit StoreServer(const Options& options);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  ~StoreServer();  // ends the job if ranks are left

  std::string address() const;  // "host:port" with the port that was chosen
  // Returns when no rank of any epoch is left: each has left the job or was lost.
  void wait();

 private:
  struct ATOLL_LOCAL Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atoll_v1::atoll
