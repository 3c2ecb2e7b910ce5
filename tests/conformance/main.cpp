// conformance_suite BACKEND [--threads N [--hosts H]]
//
// Every check, on every rank, over one communicator of BACKEND. Started once per rank by run_ranks
// or by an MPI launcher. With --threads the ranks are threads of this process, each with a World of
// its own, so that a thread sanitizer sees what ranks of a process share: the store's threads,
// communicators, streams, plain memory that a peer reads. Memory that ranks map, each for itself,
// has other addresses in each of them, and its exchanges are not seen. They are ranks of H hosts,
// as many of each. The address and the token of the job come from the environment, as a single rank
// of run_ranks has them.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "suite.hpp"

namespace {

int run_threads(const std::string& backend, int ranks, int hosts) {
  std::vector<int> results(static_cast<std::size_t>(ranks), conformance::failed);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&results, &backend, rank, ranks, hosts] {
        atoll::Config config = atoll::Config::from_env();
        config.rank = rank;
        config.size = ranks;
        if (hosts > 1) config.host_id = "h" + std::to_string(rank * hosts / ranks);
        results[static_cast<std::size_t>(rank)] = conformance::run_rank(std::move(config), backend);
      });
    }
  }
  for (const int result : results) {
    if (result != 0) return result;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2) return conformance::run_rank(atoll::Config::from_env(), argv[1]);
  const bool hosts = argc == 6 && std::string_view(argv[4]) == "--hosts";
  if ((argc == 4 || hosts) && std::string_view(argv[2]) == "--threads") {
    return run_threads(argv[1], std::atoi(argv[3]), hosts ? std::atoi(argv[5]) : 1);
  }
  std::fputs("conformance_suite BACKEND [--threads N [--hosts H]]\n", stderr);
  return 2;
}
