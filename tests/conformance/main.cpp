// conformance_suite BACKEND [--pairwise] [--threads N [--hosts H]]
//
// Runs every check over one communicator of BACKEND. run_ranks or an MPI launcher starts one
// process per rank. With --threads the ranks are N threads of one process, each with its own World,
// so that the thread sanitizer sees the data that ranks share: the threads of the store, of
// communicators and of streams, and plain memory that a peer reads. Exchanges through shared memory
// stay invisible to the sanitizer, because each rank maps shared memory at a different address.
// With --pairwise reductions run on pairwise combinations of dtype, op and count instead of all.
// With --hosts the N ranks are divided among H simulated hosts, N / H on each. The address and the
// token of the job come from the environment that run_ranks gives to a single rank.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"
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
  if (argc > 2 && std::string_view(argv[2]) == "--pairwise") {
    conformance::pairwise_grid = true;
    std::copy(argv + 3, argv + argc, argv + 2);
    --argc;
  }
  if (argc == 2) return conformance::run_rank(atoll::Config::from_env(), argv[1]);
  const bool hosts = argc == 6 && std::string_view(argv[4]) == "--hosts";
  if ((argc == 4 || hosts) && std::string_view(argv[2]) == "--threads") {
    return run_threads(argv[1], std::atoi(argv[3]), hosts ? std::atoi(argv[5]) : 1);
  }
  std::fputs("conformance_suite BACKEND [--pairwise] [--threads N [--hosts H]]\n", stderr);
  return 2;
}
